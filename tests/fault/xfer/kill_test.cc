// kill -9 of a real process in the middle of transfers over tcp and shm, on either side. Over rdma the
// same is done in tests/rdma/xfer.
#include <algorithm>
#include <cstdlib>

#include "base/hash.h"
#include "count.h"
#include "unit/xfer/child.h"
#include "unit/xfer/twelve.h"

using namespace mc;
using namespace mc::xfer;
using namespace mc::xfer::test;

namespace {

constexpr size_t kArena = size_t{32} << 20;
int rounds() {
  return ::mc::test::count(3, 84);  // 84 rounds of 12 transfers: a thousand
}

}  // namespace

TEST_CASE("child: holder" * doctest::skip()) {
  Node node("holder", child_transport());
  auto kv = mem::SharedBuffer::create(kArena);
  fill(kv->bytes(), 7);
  REQUIRE_OK(node->register_buffer(*kv, {"kv", AccessClass::blocks}));
  auto landing = mem::SharedBuffer::create(kArena, {.peers_write = true});
  REQUIRE_OK(node->register_buffer(*landing, {"landing", AccessClass::landing}));
  say(hex(node->describe()));
  for (std::vector<Event> events;; events.clear()) node->poll(events, in(1s));
}

TEST_CASE("child: reader" * doctest::skip()) {
  const auto descriptor = unhex(read_line(0));
  Node node("reader", child_transport());
  auto local = mem::HostBuffer::allocate(kArena);
  REQUIRE_OK(node->register_buffer(local->bytes(), {"local"}));
  auto peer = node->connect(descriptor, in(kLong));
  REQUIRE_OK(peer);
  node.wait(Event::Kind::peer_up);
  say("reading");
  for (;;) {
    const Request request{
        .op = Op::read, .peer = *peer, .local = local->bytes(), .buffer = node->descriptor(*peer)->find("kv")->id};
    if (node.run({{request}}) != Code::ok) return;
  }
}

TEST_CASE("child: writer" * doctest::skip()) {
  const auto descriptor = unhex(read_line(0));
  Node node("writer", child_transport());
  auto local = mem::HostBuffer::allocate(kArena);
  fill(local->bytes(), 9);
  REQUIRE_OK(node->register_buffer(local->bytes(), {"local"}));
  auto peer = node->connect(descriptor, in(kLong));
  REQUIRE_OK(peer);
  node.wait(Event::Kind::peer_up);
  say("writing");
  for (;;) {
    const Request request{.op = Op::write,
                          .peer = *peer,
                          .local = local->bytes(),
                          .buffer = node->descriptor(*peer)->find("landing")->id};
    if (node.run({{request}}) != Code::ok) return;
  }
}

TEST_CASE("xfer: killing the holder in mid-transfer ends every batch at once and leaves nothing") {
  Rng rng(mc::test::seed() + 11);
  auto expected = mem::HostBuffer::allocate(kArena);
  fill(expected->bytes(), 7);
  const uint32_t sum = crc32c(expected->bytes());
  for (const std::string transport : {"tcp", "tcp-uring", "shm", "auto"}) {
    CAPTURE(transport);
    Node reader("reader", transport, {.backoff_min = 1ms, .backoff_max = 10ms});
    auto local = mem::HostBuffer::allocate(kArena * 2);
    REQUIRE_OK(reader->register_buffer(local->bytes(), {"local"}));
    size_t descriptors = 0;
    for (int round = 0; round < rounds(); ++round) {
      CAPTURE(round);
      Child holder("child: holder", transport);
      auto peer = reader->connect(unhex(holder.hear()), in(kLong));
      REQUIRE_OK(peer);
      reader.wait(Event::Kind::peer_up);
      Twelve twelve(reader, *peer, local->bytes(), round % 3 == 2, sum);
      twelve.finish_some(reader, rng);
      holder.kill();
      (void)twelve.finish_all(reader);  // shm reads need no living peer: its pages are mapped here
      // at first the connection is lost, then dialling again proves that the process is
      reader.wait([&](const Event& e) { return e.kind == Event::Kind::peer_lost && e.peer == *peer && e.gone; });
      // the memory is ours: a late byte would show
      std::memset(local->data(), 0x3C, local->size());
      reader->disconnect(*peer);
      const auto again = reader->submit(
          {{{.op = Op::read, .peer = *peer, .local = local->bytes().first(1), .buffer = twelve.kv}}}, in(kLong));
      CHECK(reader.done(*again).code == Code::not_found);  // the engine has come past the disconnect
      REQUIRE_OK(reader->close(*again, in(kLong)));
      CHECK(
          std::all_of(local->bytes().begin(), local->bytes().end(), [](std::byte b) { return b == std::byte{0x3C}; }));
      check_nothing_held(reader);
      holder.input.reset();
      holder.output.reset();
      if (round == 0) descriptors = open_descriptors();
      CHECK(open_descriptors() == descriptors);
    }
  }
}

TEST_CASE("xfer: killing a reader in mid-transfer frees the holder's memory and descriptors") {
  for (const std::string transport : {"tcp", "tcp-uring", "shm"}) {
    CAPTURE(transport);
    Node holder("holder", transport);
    size_t descriptors = 0;
    for (int round = 0; round < rounds(); ++round) {
      CAPTURE(round);
      auto kv = mem::SharedBuffer::create(kArena);
      REQUIRE_OK(kv);
      fill(kv->bytes(), 7);
      auto id = holder->register_buffer(*kv, {"kv", AccessClass::blocks});
      REQUIRE_OK(id);
      Child reader("child: reader", transport);
      reader.tell(hex(holder->describe()));
      const Event up = holder.wait(Event::Kind::peer_up);
      CHECK(reader.hear() == "reading");
      // let it be busy: tcp counts what is served
      if (transport == "tcp") {
        const TimePoint limit = in(kLong);
        while (holder->counters().requests_served < 10 && SystemClock::instance().now() < limit) {
          std::vector<Event> events;
          holder->poll(events, in(1ms));
        }
      }
      reader.kill();
      const Event lost = holder.wait([](const Event& e) { return e.kind == Event::Kind::peer_lost && e.gone; });
      CHECK(lost.peer == up.peer);
      REQUIRE_OK(holder->unregister(*id, in(kLong)));
      CHECK(holder->notify(up.peer, {}) == Code::peer_lost);
      reader.input.reset();
      reader.output.reset();
      if (round == 0) descriptors = open_descriptors();
      CHECK(open_descriptors() == descriptors);
    }
  }
}

TEST_CASE("xfer: killing a writer in mid-write frees the landing buffer, and nothing is written after") {
  for (const std::string transport : {"tcp", "tcp-uring", "shm"}) {
    CAPTURE(transport);
    Node holder("holder", transport);
    size_t descriptors = 0;
    for (int round = 0; round < rounds(); ++round) {
      CAPTURE(round);
      auto landing = mem::SharedBuffer::create(kArena, {.peers_write = true});
      REQUIRE_OK(landing);
      auto id = holder->register_buffer(*landing, {"landing", AccessClass::landing});
      REQUIRE_OK(id);
      uint64_t landed = 0;
      for (const auto& flow : holder->counters().flows) landed += flow.landed_bytes;
      Child writer("child: writer", transport);
      writer.tell(hex(holder->describe()));
      const Event up = holder.wait(Event::Kind::peer_up);
      CHECK(writer.hear() == "writing");
      // in the middle: tcp counts what has landed, shm writers are seen in the memory alone
      const volatile std::byte& first = landing->data()[0];
      const auto landing_now = [&] {
        for (const auto& flow : holder->counters().flows)
          if (flow.transport == "tcp" && flow.landed_bytes > landed) return true;
        return transport == "shm" && first != std::byte{0};
      };
      const TimePoint limit = in(kLong);
      while (!landing_now() && SystemClock::instance().now() < limit) {
        std::vector<Event> events;
        holder->poll(events, in(1ms));
      }
      writer.kill();
      const Event lost = holder.wait([](const Event& e) { return e.kind == Event::Kind::peer_lost && e.gone; });
      CHECK(lost.peer == up.peer);
      REQUIRE_OK(holder->unregister(*id, in(kLong)));
      std::memset(landing->data(), 0x3C, landing->size());
      CHECK(holder->notify(up.peer, {}) == Code::peer_lost);
      CHECK(std::all_of(landing->data(), landing->data() + landing->size(),
                        [](std::byte b) { return b == std::byte{0x3C}; }));
      writer.input.reset();
      writer.output.reset();
      if (round == 0) descriptors = open_descriptors();
      CHECK(open_descriptors() == descriptors);
    }
  }
}

TEST_CASE("xfer/shm: small reads of a killed holder are served from its mapped pages or fail as lost") {
  for (int round = 0; round < rounds(); ++round) {
    CAPTURE(round);
    Node reader("reader", "shm", {.backoff_min = 1ms, .backoff_max = 10ms});
    auto local = mem::HostBuffer::allocate(size_t{1} << 20);
    REQUIRE_OK(reader->register_buffer(local->bytes(), {"local"}));
    Child holder("child: holder", "shm");
    auto peer = reader->connect(unhex(holder.hear()), in(kLong));
    REQUIRE_OK(peer);
    reader.wait(Event::Kind::peer_up);
    const uint32_t kv = reader->descriptor(*peer)->find("kv")->id;
    auto expected = mem::HostBuffer::allocate(65536);
    fill(expected->bytes(), 7);
    Request request{.op = Op::read, .peer = *peer, .local = local->bytes().first(65536), .buffer = kv};
    request.crc32c = crc32c(expected->bytes());
    bool killed = false;
    for (int i = 0; i < 100000; ++i) {
      if (i == 50) {
        holder.kill();
        killed = true;
      }
      const Code code = reader.run({{request}});
      if (code == Code::ok) continue;
      CHECK(code == Code::peer_lost);
      CHECK(killed);
      break;
    }
    reader.wait([&](const Event& e) { return e.kind == Event::Kind::peer_lost && e.gone; });
    CHECK(reader.run({{request}}) == Code::peer_lost);
    const Counters counters = reader->counters();
    CHECK(counters.batches_open == 0);
    CHECK(counters.batches_submitted == counters.batches_done);
    CHECK(counters.checksum_failures == 0);
  }
}
