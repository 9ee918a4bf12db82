// The rdma transport on real verbs: soft-RoCE devices of scripts/rdma-vm, rxe0-rxe1 and rxe2-rxe3, each
// pair with a subnet of its own. The holder owns rxe1 and rxe3, the reader rxe0 and rxe2.
#include <algorithm>
#include <array>
#include <vector>

#include "base/hash.h"
#include "base/rng.h"
#include "machine.h"

namespace xfer_rdma_test {

using namespace mc;
using namespace mc::xfer;
using namespace mc::xfer::test;

TEST_CASE("rdma/xfer: reads and writes of any size and place arrive intact, with their checksum") {
  RdmaPair pair(size_t{8} << 20);
  CHECK(pair.reader->transport(pair.peer) == "rdma");
  Rng rng(::mc::test::seed());
  for (int round = 0; round < count(2, 50); ++round) {
    std::vector<Request> requests;
    const size_t count = 1 + rng.below(8);
    for (size_t i = 0; i < count; ++i) {
      const size_t limit = rng.chance(0.5) ? 300 : (size_t{8} << 20) / count;
      const size_t bytes = 1 + rng.below(limit);
      const size_t local_at = i * ((size_t{8} << 20) / count);
      const size_t remote_at = rng.below((size_t{8} << 20) - bytes + 1);
      Request request = pair.read(local_at, remote_at, bytes);
      request.crc32c = crc32c(pair.kv.bytes().subspan(remote_at, bytes));
      requests.push_back(request);
    }
    std::vector<RequestResult> results;
    std::string text;
    const Code code = pair.reader.run(requests, &results, &text);
    CHECK_MESSAGE(code == Code::ok, text);
    for (size_t i = 0; i < count; ++i) {
      CHECK(equal(requests[i].local, pair.kv.bytes().subspan(requests[i].offset, requests[i].local.size())));
      CHECK(results[i].crc32c == *requests[i].crc32c);
    }
  }
  for (int round = 0; round < count(2, 50); ++round) {
    const size_t bytes = 1 + rng.below(rng.chance(0.5) ? 300 : size_t{2} << 20);
    const size_t local_at = rng.below((size_t{8} << 20) - bytes + 1);
    const size_t remote_at = rng.below((size_t{8} << 20) - bytes + 1);
    fill(pair.local.bytes().subspan(local_at, bytes), rng.next());
    const Request request = pair.write(local_at, remote_at, bytes);
    CHECK(pair.reader.run({&request, 1}) == Code::ok);
    CHECK(equal(request.local, pair.landing.bytes().subspan(remote_at, bytes)));
  }
}

TEST_CASE("rdma/xfer: both paths carry, and a NIC's counters show it") {
  RdmaPair pair(size_t{4} << 20);
  const auto read = [&] { CHECK(pair.reader.run({{pair.read(0, 0, size_t{4} << 20)}}) == Code::ok); };
  for (const std::string sender : {"v1", "v3"})  // a path may come up after the connection
    CHECK(carries(sender, size_t{1} << 17, read));
  const uint64_t first = sent_bytes("v1"), second = sent_bytes("v3");
  read();
  CHECK(sent_bytes("v1") - first > size_t{1} << 20);
  CHECK(sent_bytes("v3") - second > size_t{1} << 20);
}

TEST_CASE("rdma/xfer: what a peer may not touch it cannot, by class and by name") {
  RdmaPair pair;
  Request into_blocks = pair.write(0, 0, 4096);
  into_blocks.buffer = pair.kv_id;
  CHECK(pair.reader.run({{into_blocks}}) == Code::invalid);
  Request from_landing = pair.read(0, 0, 4096);
  from_landing.buffer = pair.landing_id;
  CHECK(pair.reader.run({{from_landing}}) == Code::invalid);
  InstanceId somebody;
  somebody.bytes.fill(9);
  auto memory = mem::HostBuffer::allocate(4096);
  auto foreign = pair.holder->register_buffer(memory->bytes(), {"foreign", AccessClass::landing, somebody});
  REQUIRE_OK(foreign);
  while (pair.reader->descriptor(pair.peer)->find("foreign") == nullptr) pair.reader.wait(Event::Kind::peer_changed);
  Request request = pair.write(0, 0, 4096);
  request.buffer = static_cast<uint32_t>(*foreign);
  CHECK(pair.reader.run({{request}}) == Code::invalid);
  Request beyond = pair.read(0, RdmaPair::kDefaultBytes - 4096, 8192);
  CHECK(pair.reader.run({{beyond}}) == Code::invalid);
  pair.reader.engine.reset();
  pair.holder.engine.reset();
}

TEST_CASE("rdma/xfer: a deadline is not cancellation: the memory comes back when the NIC has let go") {
  RdmaPair pair(size_t{16} << 20);
  for (int round = 0; round < 2; ++round) {
    auto batch = pair.reader->submit(std::vector{pair.read(0, 0, size_t{16} << 20)}, in(50ms));
    REQUIRE_OK(batch);
    const Event done = pair.reader.done(*batch);
    CHECK(done.code == Code::timeout);
    CHECK(pair.reader->close(*batch, in(kLong)).has_value());
    CHECK(pair.reader->counters().quarantined_bytes == 0);
    std::fill(pair.local.bytes().begin(), pair.local.bytes().end(), std::byte{0});
    std::string text;
    CHECK_MESSAGE(pair.reader.run({{pair.read(0, 0, 65536)}}, nullptr, &text) == Code::ok, text);
    CHECK(equal(pair.local.bytes().first(65536), pair.kv.bytes().first(65536)));
    const auto rest = pair.local.bytes().subspan(65536);
    CHECK(equal(rest, std::vector<std::byte>(rest.size())));
  }
}

TEST_CASE("rdma/xfer: notifies arrive once, in order, both ways") {
  RdmaPair pair;
  const auto say = [](Node& from, PeerId to, uint32_t count) {
    for (uint32_t i = 0; i < count;) {
      std::array<std::byte, 4> bytes;
      std::memcpy(bytes.data(), &i, 4);
      const Code code = from->notify(to, bytes);
      REQUIRE((code == Code::ok || code == Code::busy));
      i += code == Code::ok ? 1 : 0;
    }
  };
  const auto hear = [](Node& at, uint32_t count) {
    for (uint32_t i = 0; i < count; ++i) {
      const Event event = at.wait(Event::Kind::notify);
      uint32_t number;
      std::memcpy(&number, event.bytes.data(), 4);
      REQUIRE(number == i);
    }
  };
  const PeerId back = pair.holder.wait(Event::Kind::peer_up).peer;
  const auto there = count<uint32_t>(500, 2000), here = count<uint32_t>(200, 500);
  say(pair.reader, pair.peer, there);
  say(pair.holder, back, here);
  hear(pair.holder, there);
  hear(pair.reader, here);
}

}  // namespace xfer_rdma_test
