// Both sides dial at once, and a path that is paced.
#include "machine.h"

namespace twins_test {

using namespace mc;
using namespace mc::xfer;
using namespace mc::xfer::test;

TEST_CASE("rdma/xfer: when both sides dial at once one connection is left, and serves both") {
  for (int round = 0; round < count(3, 100); ++round) {
    auto memory = mem::HostBuffer::allocate(size_t{1} << 20);
    auto own = mem::HostBuffer::allocate(size_t{1} << 20);
    REQUIRE_OK(memory);
    REQUIRE_OK(own);
    fill(memory->bytes(), 5);
    Node a("a", "rdma", reader_options("rxe0")), b("b", "rdma", holder_options("rxe1"));
    auto id = b->register_buffer(memory->bytes(), {"kv", AccessClass::blocks});
    REQUIRE_OK(id);
    REQUIRE_OK(a->register_buffer(own->bytes(), {"own"}));
    auto to_b = a->connect(b->describe(), in(kLong));
    auto to_a = b->connect(a->describe(), in(kLong));
    REQUIRE_OK(to_b);
    REQUIRE_OK(to_a);
    a.wait(Event::Kind::peer_up);
    b.wait(Event::Kind::peer_up);
    CHECK(until([&] { return a->counters().rdma_pairs == 2 && b->counters().rdma_pairs == 2; }));
    const Request request{.op = Op::read, .peer = *to_b, .local = own->bytes(), .buffer = static_cast<uint32_t>(*id)};
    CHECK(a.run({&request, 1}) == Code::ok);
    CHECK(equal(own->bytes(), memory->bytes()));
    std::array<std::byte, 1> word{std::byte{1}};
    CHECK(b->notify(*to_a, word) == Code::ok);
    a.wait(Event::Kind::notify);
    CHECK(a->counters().peers_lost == 0);
    CHECK(b->counters().peers_lost == 0);
    CHECK(a->counters().rdma_pairs == 2);
    CHECK(b->counters().rdma_pairs == 2);
    a.engine.reset();
    b.engine.reset();
  }
}

TEST_CASE("rdma/xfer: a path with a pace moves its bytes at that pace, and no slower for having waited") {
  Options reader = reader_options("rxe0");
  reader.rdma_pace = uint64_t{8} << 20;
  RdmaPair pair(size_t{4} << 20, holder_options("rxe1"), reader);
  const TimePoint start = in(Duration{});
  CHECK(pair.reader.run({{pair.read(0, 0, size_t{4} << 20)}}) == Code::ok);
  const Duration took = in(Duration{}) - start;
  CHECK(equal(pair.local.bytes(), pair.kv.bytes()));
  CHECK(took > 400ms);  // 4 MiB, less one slice at the start
}

}  // namespace twins_test
