// Devices and addresses that go and come under live transfers. Soft-RoCE never reports that it failed, so that word
// is injected (FaultPlan::lose_nic); what follows is real: queue pairs destroyed, the device closed, opened again,
// all memory registered anew and its new keys told.
#include <fstream>

#include "machine.h"

namespace device_test {

using namespace mc;
using namespace mc::xfer;
using namespace mc::xfer::test;

namespace {

/// Reads until `done`, all well; false when that takes too long.
template <class Done>
bool read_until(RdmaPair& pair, Done done) {
  constexpr size_t kBytes = size_t{256} << 10;
  const TimePoint deadline = in(kLong);
  for (uint64_t round = 0; !done(); ++round) {
    if (in(Duration{}) > deadline) return false;
    std::memset(pair.local.data(), 0, kBytes);
    const size_t at = round % 3 * kBytes;
    std::string text;
    CHECK_MESSAGE(pair.reader.run({{pair.read(0, at, kBytes)}}, nullptr, &text) == Code::ok, text);
    CHECK(equal(pair.local.bytes().first(kBytes), pair.kv.bytes().subspan(at, kBytes)));
    yield(25ms);  // emulated reads take a whole processor, and there are seconds to fill
  }
  return true;
}

Options losing_a_device(Options options) {
  options.faults.lose_nic = 1500ms;
  return options;
}

constexpr const char* kLost = "rdma: device failed";

}  // namespace

TEST_CASE("rdma/xfer: a device that fails is opened again, and carries reads of memory registered on it anew") {
  for (const bool reader_loses : {true, false}) {
    CAPTURE(reader_loses);
    RdmaPair pair(RdmaPair::kDefaultBytes, reader_loses ? holder_options() : losing_a_device(holder_options()),
                  reader_loses ? losing_a_device(reader_options()) : reader_options());
    Node& loser = reader_loses ? pair.reader : pair.holder;
    const auto lost_again = [&] {
      return read_until(pair, [&, lost = failures(loser, kLost)] { return failures(loser, kLost) > lost; });
    };
    const auto carries_again = [&] {  // v1 is the holder's side of the path on that device
      return read_until(pair, [moved = sent_bytes("v1")] { return sent_bytes("v1") > moved + (size_t{512} << 10); });
    };
    for (int round = 0; round < count(0, 20); ++round) {
      CHECK(lost_again());
      CHECK(carries_again());
    }
    // what is registered while the device is away is registered on it when it is open again
    auto more = mem::HostBuffer::allocate(size_t{1} << 20);
    REQUIRE_OK(more);
    CHECK(lost_again());
    auto id = loser->register_buffer(more->bytes(), {"more"});
    REQUIRE_OK(id);
    CHECK(carries_again());
    CHECK(lost_again());
    CHECK(loser->unregister(*id, in(kLong)).has_value());
    CHECK(pair.reader->counters().batches_failed == 0);
    CHECK(pair.reader->counters().peers_lost == 0);
  }
}

TEST_CASE("rdma/xfer: a device that is open again but cannot be watched is tried again until it can") {
  RdmaPair pair(RdmaPair::kDefaultBytes, holder_options(), losing_a_device(reader_options()));
  const std::string limit = "/proc/sys/fs/epoll/max_user_watches";
  {
    uint64_t watches = 0;
    std::ifstream(limit) >> watches;
    const Restored none([&] { std::ofstream(limit) << 0; }, [&] { std::ofstream(limit) << watches; });
    CHECK(read_until(pair, [&] { return failures(pair.reader, "rdma: device not watched") > 0; }));
  }
  const uint64_t moved = sent_bytes("v1");  // the holder's side of the path on that device
  CHECK(read_until(pair, [&] { return sent_bytes("v1") > moved + (size_t{512} << 10); }));
  CHECK(pair.reader->counters().batches_failed == 0);
  CHECK(pair.reader->counters().peers_lost == 0);
}

TEST_CASE("rdma/xfer: writes of a device that fails arrive whole, and nothing of them comes late") {
  constexpr size_t kBytes = size_t{2} << 20;
  RdmaPair pair(kBytes, losing_a_device(holder_options()), losing_a_device(reader_options()));
  const TimePoint end = in(count(2, 30) * 1s);
  for (uint64_t round = 0; in(Duration{}) < end || failures(pair.reader, kLost) == 0; ++round) {
    REQUIRE(in(Duration{}) < end + kLong);
    fill(pair.local.bytes().first(kBytes), round);
    std::string text;
    CHECK_MESSAGE(pair.reader.run({{pair.write(0, 0, kBytes)}}, nullptr, &text) == Code::ok, text);
    CHECK(equal(pair.local.bytes().first(kBytes), pair.landing.bytes().first(kBytes)));
  }
  CHECK(pair.reader->counters().batches_failed == 0);
}

TEST_CASE("rdma/xfer: a path whose address goes moves to another that came, under transfers that all end well") {
  RdmaPair pair(RdmaPair::kDefaultBytes, holder_options("rxe1"), reader_options("rxe0"));
  for (const bool readers : {true, false}) {
    CAPTURE(readers);
    const std::string netdev = readers ? "v0" : "v1", old_address = readers ? "10.0.0.1" : "10.0.0.2";
    const Address other("v0", "10.0.9.1", true), of_peer("v1", "10.0.9.2", true);
    CHECK(read_until(pair, [n = 0]() mutable { return ++n > count(2, 5); }));
    {
      const Address without(netdev, old_address, false);
      const uint64_t moved = sent_bytes("v1");
      CHECK(read_until(pair, [&] { return sent_bytes("v1") > moved + (size_t{1} << 20); }));
    }
    CHECK(read_until(pair, [n = 0]() mutable { return ++n > count(2, 5); }));
  }
  // at the end of the scope the address in use went, and the old one is back
  const uint64_t moved = sent_bytes("v1");
  CHECK(read_until(pair, [&] { return sent_bytes("v1") > moved + (size_t{1} << 20); }));
  CHECK(pair.reader->counters().batches_failed == 0);
  CHECK(pair.reader->counters().peers_lost == 0);
}

}  // namespace device_test
