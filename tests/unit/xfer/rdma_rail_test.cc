// Decisions of a path of the rdma transport without a device: the addresses that it tries, the amount that it takes at
// its speed, and the keys.
#include "test.h"
#include "xfer_rdma/choices.h"
#include "xfer_rdma/keyring.h"
#include "xfer_rdma/speed.h"

using namespace mc;
using namespace mc::xfer;

namespace {

GidChoice pair(uint8_t local, uint8_t remote) {
  GidChoice choice;
  choice.local.fill(local);
  choice.remote.fill(remote);
  return choice;
}

std::vector<std::byte> ports(size_t count) {
  wire::RdmaNics nics;
  for (size_t i = 0; i < count; ++i) nics.nics.push_back({.name = "rxe" + std::to_string(i), .mtu = 1024});
  return wire::encode(nics);
}

std::vector<std::byte> keys_of(uint32_t buffer, uint16_t nics) {
  return wire::encode(wire::RdmaKeys{.buffer = buffer,
                                     .base = 1 << 20,
                                     .length = 4096,
                                     .chunk_bytes = 1 << 30,
                                     .nics = nics,
                                     .rkeys = std::vector<uint32_t>(nics, 7)});
}

Descriptor naming(uint32_t version, std::initializer_list<uint32_t> buffers) {
  Descriptor descriptor;
  descriptor.version = version;
  for (const uint32_t id : buffers) descriptor.buffers.push_back({.id = id});
  return descriptor;
}

}  // namespace

TEST_CASE("xfer/rdma_choices: a dial gives up after each pair of addresses has failed once, and not before") {
  GidChoices choices({pair(1, 1), pair(2, 2)});
  CHECK(*choices.current() == pair(1, 1));
  choices.failed(false);
  CHECK(!choices.exhausted());
  CHECK(*choices.current() == pair(2, 2));
  choices.failed(false);
  CHECK(choices.exhausted());
  CHECK(*choices.current() == pair(1, 1));
}

TEST_CASE("xfer/rdma_choices: a port that is down exhausts every pair at once") {
  GidChoices choices({pair(1, 1), pair(2, 2)});
  choices.failed(true);
  CHECK(choices.exhausted());
}

TEST_CASE("xfer/rdma_choices: a path that is up stays on its pair while both sides have it") {
  GidChoices choices({pair(1, 1), pair(2, 2)});
  choices.failed(false);
  CHECK(choices.replan({pair(3, 3), pair(2, 2)}, true) == GidChoices::Change::kept);
  CHECK(*choices.current() == pair(2, 2));
  CHECK(choices.replan({pair(3, 3), pair(2, 2)}, true) == GidChoices::Change::none);
  CHECK(choices.replan({pair(3, 3)}, true) == GidChoices::Change::gone);
  CHECK(*choices.current() == pair(3, 3));
}

TEST_CASE("xfer/rdma_choices: new addresses are tried from the best, even after the old ones were exhausted") {
  GidChoices choices({pair(1, 1)});
  choices.failed(false);
  CHECK(choices.exhausted());
  CHECK(choices.replan({pair(2, 2), pair(1, 1)}, false) == GidChoices::Change::again);
  CHECK(!choices.exhausted());
  CHECK(*choices.current() == pair(2, 2));
  CHECK(GidChoices().current() == nullptr);
}

TEST_CASE("xfer/rdma_speed: a path holds in flight what it moves in 45 ms, and never less than 192 KiB") {
  const TimePoint start = TimePoint{} + 1s;
  PathSpeed speed;
  CHECK(speed.bytes_per_s() == 0);
  CHECK(speed.allowance() == PathSpeed::kFirstAhead);
  CHECK(speed.slice_bytes() == PathSpeed::kFirstSlice);
  speed.started(start);
  speed.moved(10'000'000, start + 100ms);  // 100 MB/s
  CHECK(speed.bytes_per_s() == doctest::Approx(1e8));
  CHECK(speed.allowance() == 4'500'000);
  CHECK(speed.slice_bytes() == 1'000'000);
  CHECK(speed.burst(1 << 20) == 100'000);
  PathSpeed slow;
  slow.started(start);
  slow.moved(PathSpeed::kSampleBytes, start + 10s);
  CHECK(slow.allowance() == PathSpeed::kLeastAhead);
  CHECK(slow.burst(1 << 20) == PathSpeed::kLeastBurst);
}

TEST_CASE("xfer/rdma_speed: a sample needs both 256 KiB and 20 ms") {
  const TimePoint start = TimePoint{} + 1s;
  PathSpeed speed;
  speed.started(start);
  speed.moved(PathSpeed::kSampleBytes, start + 19ms);
  CHECK(speed.bytes_per_s() == 0);
  speed.moved(1, start + 21ms);
  CHECK(speed.bytes_per_s() > 0);
  PathSpeed little;
  little.started(start);
  little.moved(PathSpeed::kSampleBytes - 1, start + 1s);
  CHECK(little.bytes_per_s() == 0);
}

TEST_CASE("xfer/rdma_keys: keys are refused before the ports, and for another number of ports") {
  RdmaKeyring keyring;
  const char* why = nullptr;
  std::vector<wire::RdmaNic> before;
  CHECK(keyring.take_keys(keys_of(1, 1), why) == Code::corrupt);
  REQUIRE(keyring.take_nics(ports(2), before) == Code::ok);
  CHECK(before.empty());
  CHECK(keyring.take_keys(keys_of(1, 1), why) == Code::corrupt);
  CHECK(keyring.take_keys(keys_of(1, 2), why) == Code::ok);
  CHECK(keyring.take_nics(ports(3), before) == Code::corrupt);
  CHECK(keyring.nics().size() == 2);
}

TEST_CASE("xfer/rdma_keys: a slice waits for keys of a newer descriptor, and is retried with keys that were renewed") {
  RdmaKeyring keyring;
  const char* why = nullptr;
  std::vector<wire::RdmaNic> before;
  REQUIRE(keyring.take_nics(ports(1), before) == Code::ok);
  REQUIRE(keyring.take_keys(keys_of(1, 1), why) == Code::ok);
  REQUIRE(keyring.take_keys(keys_of(2, 1), why) == Code::ok);
  keyring.described(naming(5, {1, 2}));
  CHECK(keyring.awaits(6));
  CHECK(!keyring.awaits(5));
  CHECK(keyring.renewed(1, 4));
  CHECK(!keyring.renewed(1, 5));
  keyring.described(naming(6, {1}));
  CHECK(keyring.find(1) != nullptr);
  CHECK(keyring.find(2) == nullptr);
  CHECK(!keyring.renewed(2, 5));
}
