// More peers than the process may have queue pairs for: they take turns, and nobody notices but in time.
// One path of two queue pairs a connection (rxe0-rxe1).
#include <array>
#include <cstring>

#include "count.h"
#include "rdma/netdev.h"
#include "unit/xfer/pair.h"

namespace pool_test {

using namespace mc;
using namespace mc::xfer;
using namespace mc::xfer::test;
using ::mc::test::count;

namespace {

constexpr size_t kBytes = size_t{4} << 20;

Options on(const std::string& device, size_t pairs_max = 1024) {
  Options options;
  options.rdma_devices = device;
  options.rdma_timeout = 18;      // 1 s a packet, seven times: a starved guest must not look like a broken path
  options.stall_timeout = kLong;  // nor a reader that waits for its turn
  options.connect_timeout = kLong;
  options.rdma_pairs_max = pairs_max;
  return options;
}

/// A process with memory to offer and memory to read into.
struct Side {
  mem::HostBuffer offered, own;
  Node node;
  uint32_t id = 0;

  Side(const std::string& name, const Options& options, uint64_t content) : node(name, "rdma", options) {
    auto made = mem::HostBuffer::allocate(kBytes);
    auto local = mem::HostBuffer::allocate(kBytes);
    REQUIRE_OK(made);
    REQUIRE_OK(local);
    offered = std::move(*made);
    own = std::move(*local);
    fill(offered.bytes(), content);
    auto registered = node->register_buffer(offered.bytes(), {"kv", AccessClass::blocks});
    REQUIRE_OK(registered);
    REQUIRE_OK(node->register_buffer(own.bytes(), {"own"}));
    id = static_cast<uint32_t>(*registered);
  }
  ~Side() { node.engine.reset(); }  // before the memory goes
  /// No peer was lost so far; else the check says why one was.
  void check_no_loss() {
    std::string why;
    (void)node->poll(node.seen, TimePoint{});
    for (const Event& event : node.seen)
      if (event.kind == Event::Kind::peer_lost) why += event.text + "; ";
    CHECK_MESSAGE(node->counters().peers_lost == 0, why);
  }
  PeerId dial(Side& other) {
    auto peer = node->connect(other.node->describe(), in(kLong));
    REQUIRE_OK(peer);
    node.wait(Event::Kind::peer_up);
    return *peer;
  }
  Request read(PeerId peer, const Side& from, size_t bytes) {
    return {.op = Op::read, .peer = peer, .local = own.bytes().first(bytes), .buffer = from.id};
  }
  void check_read(PeerId peer, const Side& from, size_t bytes) {
    std::fill(own.bytes().begin(), own.bytes().end(), std::byte{0});
    std::string text;
    CHECK_MESSAGE(node.run({{read(peer, from, bytes)}}, nullptr, &text) == Code::ok, text);
    CHECK(equal(own.bytes().first(bytes), from.offered.bytes().first(bytes)));
  }
  uint64_t pairs() { return node->counters().rdma_pairs; }
};

size_t pairs_of_machine() {
  size_t pairs = 0;
  for (const auto& [device, counts] : ::mc::test::verbs_objects())
    for (const auto& [kind, count] : counts)
      if (kind == "qp") pairs += count - 1;  // without the device's own
  return pairs;
}

void say_and_hear(Node& from, PeerId to, Node& at, uint32_t number) {
  std::array<std::byte, 4> bytes;
  std::memcpy(bytes.data(), &number, 4);
  REQUIRE(from->notify(to, bytes) == Code::ok);
  const Event event = at.wait(Event::Kind::notify);
  CHECK(std::memcmp(event.bytes.data(), &number, 4) == 0);
}

}  // namespace

TEST_CASE("rdma/xfer: three readers of a process with queue pairs for two all get their bytes, by turns") {
  Side holder("holder", on("rxe1", 4), 1);
  Side a("a", on("rxe0"), 2), b("b", on("rxe0"), 3), c("c", on("rxe0"), 4);
  std::array<Side*, 3> readers{&a, &b, &c};
  std::array<PeerId, 3> to{};
  for (size_t i = 0; i < 3; ++i) to[i] = readers[i]->dial(holder);
  for (int round = 0; round < count(2, 3); ++round)
    for (size_t i = 0; i < 3; ++i) {
      readers[i]->check_read(to[i], holder, 4096 << round);
      CHECK(holder.pairs() <= 4);
      CHECK(pairs_of_machine() <= 8 + 2);  // a reader may not have let go of its own yet
      say_and_hear(readers[(i + 1) % 3]->node, to[(i + 1) % 3], holder.node, static_cast<uint32_t>(i));
    }
  CHECK(holder.node->counters().rdma_evictions >= 4);
  CHECK(holder.node->counters().rdma_wakes >= 4);
  for (Side* reader : readers) reader->check_no_loss();
}

TEST_CASE("rdma/xfer: three busy readers of a process with queue pairs for two are all served") {
  Side holder("holder", on("rxe1", 4), 1);
  Side a("a", on("rxe0"), 2), b("b", on("rxe0"), 3), c("c", on("rxe0"), 4);
  std::array<Side*, 3> readers{&a, &b, &c};
  std::array<PeerId, 3> to{};
  std::array<BatchId, 3> batches{};
  for (size_t i = 0; i < 3; ++i) to[i] = readers[i]->dial(holder);
  for (int round = 0; round < count(1, 2); ++round) {
    for (size_t i = 0; i < 3; ++i) {
      auto batch = readers[i]->node->submit(std::vector{readers[i]->read(to[i], holder, kBytes)}, in(kLong));
      REQUIRE_OK(batch);
      batches[i] = *batch;
    }
    for (size_t i = 0; i < 3; ++i) {
      const Event done = readers[i]->node.done(batches[i]);
      CHECK_MESSAGE(done.code == Code::ok, done.text);
      CHECK(equal(readers[i]->own.bytes(), holder.offered.bytes()));
      CHECK(readers[i]->node->close(batches[i], in(kLong)).has_value());
      CHECK(holder.pairs() <= 4);
    }
  }
  holder.check_no_loss();
}

TEST_CASE("rdma/xfer: a reader with queue pairs for one reads from two holders, and is read by both while it rests") {
  Side reader("reader", on("rxe0", 2), 1);
  Side a("a", on("rxe1"), 2), b("b", on("rxe1"), 3);
  const PeerId to_a = reader.dial(a), to_b = reader.dial(b);
  const PeerId from_a = a.node.wait(Event::Kind::peer_up).peer;
  const PeerId from_b = b.node.wait(Event::Kind::peer_up).peer;
  for (int round = 0; round < 3; ++round) {
    reader.check_read(to_a, a, size_t{1} << 18);
    CHECK(reader.pairs() <= 2);
    reader.check_read(to_b, b, size_t{1} << 18);
    CHECK(reader.pairs() <= 2);
    a.check_read(from_a, reader, size_t{1} << 18);  // a listener: it asks the reader for paths
    b.check_read(from_b, reader, size_t{1} << 18);
    say_and_hear(a.node, from_a, reader.node, 7);
    say_and_hear(reader.node, to_a, a.node, 8);
  }
  CHECK(reader.node->counters().rdma_evictions >= 6);
  for (Side* side : {&reader, &a, &b}) {
    side->check_no_loss();
    CHECK(side->node->counters().requests_failed == 0);
  }
}

}  // namespace pool_test
