// kill -9 of a real process in the middle of transfers over rdma, on either side: no batch hangs, the
// kernel gets every verbs object back, and no NIC touches a buffer after its owner was told that it may
// be reused. The child is this program again (unit/xfer/child.h); both share the machine's devices.
#include <algorithm>
#include <cstring>
#include <thread>
#include <vector>

#include "base/hash.h"
#include "machine.h"
#include "unit/xfer/child.h"
#include "unit/xfer/twelve.h"

namespace kill_test {

using namespace mc;
using namespace mc::xfer;
using namespace mc::xfer::test;

namespace {

constexpr size_t kArena = size_t{2} << 20;
constexpr size_t kPiece = size_t{256} << 10;  // of a child that transfers
constexpr int kRounds = 84;                   // of 12 transfers: a thousand
constexpr uint64_t kSeed = 7;

Options quick_to_dial(Options options) {
  options.backoff_min = 1ms;
  options.backoff_max = 10ms;
  return options;
}

uint64_t number_from(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
}

/// By words: every byte equals the one after it.
bool all(std::span<const std::byte> bytes, std::byte value) {
  return bytes.front() == value && equal(bytes.first(bytes.size() - 1), bytes.subspan(1));
}

/// For ever, one after another, until one fails.
void transfer(const std::string& name, Op op, const std::string& buffer) {
  const auto descriptor = unhex(read_line(0));
  Node node(name, "rdma", reader_options());
  auto local = mem::HostBuffer::allocate(kArena);
  fill(local->bytes(), 9);
  REQUIRE_OK(node->register_buffer(local->bytes(), {"local"}));
  auto peer = node->connect(descriptor, in(kLong));
  REQUIRE_OK(peer);
  node.wait(Event::Kind::peer_up);
  say("busy");
  const Request request{.op = op,
                        .peer = *peer,
                        .local = local->bytes().first(kPiece),
                        .buffer = node->descriptor(*peer)->find(buffer)->id};
  while (node.run({{request}}) == Code::ok) {
  }
}

}  // namespace

TEST_CASE("child: holder" * doctest::skip()) {
  Options options = holder_options();
  if (const uint64_t port = number_from("MC_XFER_CHILD_PORT", 0))
    options.rdma_bind = "127.0.0.1:" + std::to_string(port);
  Node node("holder", "rdma", options);
  auto kv = mem::HostBuffer::allocate(kArena);
  fill(kv->bytes(), number_from("MC_XFER_CHILD_SEED", kSeed));
  REQUIRE_OK(node->register_buffer(kv->bytes(), {"kv", AccessClass::blocks}));
  auto landing = mem::HostBuffer::allocate(kArena);
  REQUIRE_OK(node->register_buffer(landing->bytes(), {"landing", AccessClass::landing}));
  say(hex(node->describe()));
  for (std::vector<Event> events;; events.clear()) node->poll(events, in(1s));
}

TEST_CASE("child: reader" * doctest::skip()) {
  transfer("reader", Op::read, "kv");
}

TEST_CASE("child: writer" * doctest::skip()) {
  transfer("writer", Op::write, "landing");
}

TEST_CASE("rdma/xfer: killing the holder in mid-transfer ends every batch, and the NIC touches nothing after") {
  Rng rng(mc::test::seed() + 11);
  auto expected = mem::HostBuffer::allocate(kArena);
  fill(expected->bytes(), kSeed);
  const uint32_t sum = crc32c(expected->bytes());
  Node reader("reader", "rdma", quick_to_dial(reader_options()));
  auto local = mem::HostBuffer::allocate(kArena * 2);
  REQUIRE_OK(reader->register_buffer(local->bytes(), {"local"}));
  const Held before = resources();
  size_t interrupted = 0;  // on a busy machine the transfers of a round may be over before the kill
  for (int round = 0; round < count(3, kRounds); ++round) {
    CAPTURE(round);
    {
      Child holder("child: holder", "rdma");
      auto peer = reader->connect(unhex(holder.hear()), in(kLong));
      REQUIRE_OK(peer);
      reader.wait(Event::Kind::peer_up);
      Twelve twelve(reader, *peer, local->bytes(), round % 3 == 2, sum);
      twelve.finish_some(reader, rng);
      const uint64_t moved = sent_bytes("v1") + sent_bytes("v0");
      REQUIRE(until([&] { return sent_bytes("v1") + sent_bytes("v0") > moved + rng.below(kArena / 4); }));
      holder.kill();
      interrupted += twelve.finish_all(reader);
      // at first the connection is lost, then dialling again proves that the process is
      reader.wait([&](const Event& e) { return e.kind == Event::Kind::peer_lost && e.peer == *peer && e.gone; });
      // the memory is ours: a late byte would show
      std::memset(local->data(), 0x3C, local->size());
      reader->disconnect(*peer);
    }
    CHECK(resources_become(before));
    CHECK(all(local->bytes(), std::byte{0x3C}));
    check_nothing_held(reader);
    reader.seen.clear();
  }
  CHECK(interrupted > 0);
}

TEST_CASE("rdma/xfer: killing the holder ends small reads of a caller that polls, and the NIC touches nothing after") {
  Rng rng(mc::test::seed() + 12);
  Options options = quick_to_dial(reader_options());
  options.spin = 20ms;
  Node reader("reader", "rdma", options);
  auto expected = mem::HostBuffer::allocate(kArena), local = mem::HostBuffer::allocate(kArena);
  fill(expected->bytes(), kSeed);
  REQUIRE_OK(reader->register_buffer(local->bytes(), {"local"}));
  for (int round = 0; round < count(2, 40); ++round) {
    CAPTURE(round);
    Child holder("child: holder", "rdma");
    auto peer = reader->connect(unhex(holder.hear()), in(kLong));
    REQUIRE_OK(peer);
    reader.wait(Event::Kind::peer_up);
    const uint32_t kv = reader->descriptor(*peer)->find("kv")->id;
    std::thread killer;
    size_t right = 0;
    for (Code code = Code::ok; code == Code::ok;) {
      if (right == 20)
        killer = std::thread([&, wait = rng.below(20)] {
          yield(std::chrono::milliseconds(wait));
          holder.kill();
        });
      const uint64_t offset = rng.below(kArena - 64);
      const Request request{.peer = *peer, .local = local->bytes().first(64), .buffer = kv, .offset = offset};
      std::string text;
      code = reader.run({&request, 1}, nullptr, &text);
      if (code == Code::ok && ++right > 0) REQUIRE(equal(request.local, expected->bytes().subspan(offset, 64)));
      if (code != Code::ok) CHECK_MESSAGE(code == Code::peer_lost, text);
    }
    REQUIRE(killer.joinable());
    killer.join();
    std::memset(local->data(), 0x3C, local->size());
    reader->disconnect(*peer);
    yield(50ms);
    CHECK(all(local->bytes(), std::byte{0x3C}));
    check_nothing_held(reader);
    reader.seen.clear();
  }
}

TEST_CASE("rdma/xfer: killing a reader in mid-transfer gives the holder its memory and every queue pair back") {
  Node holder("holder", "rdma", quick_to_dial(holder_options()));
  const Held before = resources();
  for (int round = 0; round < count(1, kRounds); ++round) {
    CAPTURE(round);
    {
      auto kv = mem::HostBuffer::allocate(kArena);
      REQUIRE_OK(kv);
      fill(kv->bytes(), kSeed);
      auto id = holder->register_buffer(kv->bytes(), {"kv", AccessClass::blocks});
      REQUIRE_OK(id);
      Child reader("child: reader", "rdma");
      reader.tell(hex(holder->describe()));
      const Event up = holder.wait(Event::Kind::peer_up);
      CHECK(reader.hear() == "busy");
      const uint64_t moved = sent_bytes("v1");  // by our NIC, in answers to its READs
      REQUIRE(until([&] { return sent_bytes("v1") > moved + 12 * kPiece; }));
      reader.kill();
      const Event lost = holder.wait([](const Event& e) { return e.kind == Event::Kind::peer_lost && e.gone; });
      CHECK(lost.peer == up.peer);
      REQUIRE_OK(holder->unregister(*id, in(kLong)));
      CHECK(holder->notify(up.peer, {}) == Code::peer_lost);
    }
    CHECK(resources_become(before));
    holder.seen.clear();
  }
}

TEST_CASE("rdma/xfer: killing a writer in mid-write frees the landing buffer, and nothing is written after") {
  Node holder("holder", "rdma", quick_to_dial(holder_options()));
  const Held before = resources();
  for (int round = 0; round < count(1, kRounds); ++round) {
    CAPTURE(round);
    {
      auto landing = mem::HostBuffer::allocate(kArena);
      REQUIRE_OK(landing);
      auto id = holder->register_buffer(landing->bytes(), {"landing", AccessClass::landing});
      REQUIRE_OK(id);
      Child writer("child: writer", "rdma");
      writer.tell(hex(holder->describe()));
      const Event up = holder.wait(Event::Kind::peer_up);
      CHECK(writer.hear() == "busy");
      const uint64_t moved = sent_bytes("v0");  // by its NIC
      REQUIRE(until([&] { return sent_bytes("v0") > moved + 12 * kPiece; }));
      CHECK(!all(landing->bytes(), std::byte{0}));
      writer.kill();
      const Event lost = holder.wait([](const Event& e) { return e.kind == Event::Kind::peer_lost && e.gone; });
      CHECK(lost.peer == up.peer);
      REQUIRE_OK(holder->unregister(*id, in(kLong)));
      std::memset(landing->data(), 0x3C, landing->size());
      CHECK(holder->notify(up.peer, {}) == Code::peer_lost);
      writer.input.reset();
      writer.output.reset();
      CHECK(resources_become(before));  // no queue pair is left that could write
      CHECK(all(landing->bytes(), std::byte{0x3C}));
    }
    holder.seen.clear();
  }
}

TEST_CASE("rdma/xfer: a holder killed and started again under its name and address is refused as a stale instance") {
  ::setenv("MC_XFER_CHILD_PORT", "17912", 1);  // below the ports that the kernel gives to connections
  auto expected = mem::HostBuffer::allocate(kArena);
  Node reader("reader", "rdma", quick_to_dial(reader_options()));
  auto local = mem::HostBuffer::allocate(kArena);
  REQUIRE_OK(reader->register_buffer(local->bytes(), {"local"}));
  for (int round = 0; round < count(1, 20); ++round) {
    CAPTURE(round);
    ::setenv("MC_XFER_CHILD_SEED", "7", 1);
    fill(expected->bytes(), 7);
    Child first("child: holder", "rdma");
    const auto old = unhex(first.hear());
    auto peer = reader->connect(old, in(kLong));
    REQUIRE_OK(peer);
    reader.wait(Event::Kind::peer_up);
    Request request{.op = Op::read,
                    .peer = *peer,
                    .local = local->bytes(),
                    .buffer = reader->descriptor(*peer)->find("kv")->id,
                    .crc32c = crc32c(expected->bytes())};
    std::vector<BatchId> batches;
    for (int i = 0; i < 6; ++i) {
      auto batch = reader->submit({&request, 1}, in(kLong));
      REQUIRE_OK(batch);
      batches.push_back(*batch);
    }
    first.kill();
    ::setenv("MC_XFER_CHILD_SEED", "8", 1);
    Child second("child: holder", "rdma");
    const auto fresh = unhex(second.hear());
    for (const BatchId batch : batches) {
      const Event done = reader.done(batch);  // never from the second: its bytes would be corrupt
      CHECK_MESSAGE((done.code == Code::ok || done.code == Code::peer_lost), done.text);
      REQUIRE_OK(reader->close(batch, in(kLong)));
    }
    reader.wait([&](const Event& e) { return e.kind == Event::Kind::peer_lost && e.peer == *peer && e.gone; });
    reader.seen.clear();
    auto again = reader->connect(old, in(kLong));
    REQUIRE_OK(again);
    const Event refused = reader.wait(Event::Kind::peer_lost);
    CHECK_MESSAGE(refused.gone, refused.text);
    auto other = reader->connect(fresh, in(kLong));
    REQUIRE_OK(other);
    reader.wait([&](const Event& e) { return e.kind == Event::Kind::peer_up && e.peer == *other; });
    fill(expected->bytes(), 8);
    request.peer = *other;
    request.crc32c = crc32c(expected->bytes());
    CHECK(reader.run({&request, 1}) == Code::ok);
    reader->disconnect(*other);
    reader.seen.clear();
  }
  ::unsetenv("MC_XFER_CHILD_PORT");
  ::unsetenv("MC_XFER_CHILD_SEED");
}

}  // namespace kill_test
