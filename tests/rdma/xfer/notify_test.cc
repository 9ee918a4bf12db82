// Notifies between peers with paths: SENDs while a path is up, frames on the socket else, and whichever
// it is, each is delivered once and in order.
#include <algorithm>
#include <cstdio>
#include <thread>

#include "machine.h"
#include "xfer/bench.h"

namespace notify_test {

using namespace mc;
using namespace mc::xfer;
using namespace mc::xfer::test;

namespace {

std::vector<std::byte> message(uint32_t number, size_t bytes) {
  std::vector<std::byte> out(std::max(bytes, sizeof number), std::byte{0x5a});
  std::memcpy(out.data(), &number, sizeof number);
  return out;
}

uint32_t number_of(const Event& event) {
  uint32_t number = 0;
  REQUIRE(event.bytes.size() >= sizeof number);
  std::memcpy(&number, event.bytes.data(), sizeof number);
  return number;
}

/// One direction: says numbers as fast as they are taken, and hears them.
struct Line {
  Node& from;
  PeerId to;
  Node& at;
  uint32_t said = 0, heard = 0;

  /// Returns the answer to the last notify.
  Code say_until(uint32_t count, size_t bytes) {
    Code code = Code::ok;
    while (said < count && (code = from->notify(to, message(said, bytes))) == Code::ok) ++said;
    return code;
  }
  void hear_one() {
    const Event event = at.wait(Event::Kind::notify);
    CHECK(number_of(event) == heard);
    ++heard;
  }
};

/// A SEND is counted after it was posted: the peer may have it a moment before the counter does.
bool sends_become(Node& node, uint64_t count) {
  return until([&] { return node->counters().rdma_sends == count; });
}

struct TwoWay : RdmaPair {
  PeerId back{};
  explicit TwoWay(const Options& holder = holder_options(), const Options& reader = reader_options())
      : RdmaPair(size_t{1} << 20, holder, reader) {
    back = this->holder.wait(Event::Kind::peer_up).peer;
  }
};

}  // namespace

TEST_CASE("rdma/xfer: notifies both ways stay in order and complete when the path that carries them is cut") {
  TwoWay pair;
  Line there{pair.reader, pair.peer, pair.holder}, back{pair.holder, pair.back, pair.reader};
  const auto count = ::mc::test::count<uint32_t>(600, 10000);
  for (uint32_t step = 0; step < count; ++step) {
    if (step == count / 4) set_link("v0", false);
    if (step == count / 2) set_link("v2", false);  // now only the socket is left
    if (step == count / 2 + count / 8) {
      set_link("v0", true);
      set_link("v2", true);
    }
    if (step == 3 * count / 4)  // the rest goes over queue pairs again
      CHECK(until([&, was = pair.reader->counters().rdma_sends] {
        there.say_until(there.said + 1, 64);
        return pair.reader->counters().rdma_sends > was;
      }));
    there.say_until(std::max(there.said, step + 1), 64);
    back.say_until(step + 1, 64);
    if (step % 3 == 0) continue;  // some stay under way
    while (there.heard + 2 < there.said) there.hear_one();
    while (back.heard + 2 < back.said) back.hear_one();
  }
  there.say_until(count, 64);
  while (there.heard < there.said) there.hear_one();
  while (back.heard < back.said) back.hear_one();
  CHECK(there.heard >= count);
  CHECK(back.heard == count);
  CHECK(pair.reader->counters().rdma_sends > count / 4);
  CHECK(pair.reader->counters().rdma_sends < there.said);  // some went over the socket
  CHECK(pair.reader->counters().peers_lost == 0);
  CHECK(pair.holder->counters().peers_lost == 0);
}

TEST_CASE("rdma/xfer: a flood of notifies waits for credit, and none is lost while nobody listens") {
  Options holder = holder_options("rxe1");
  holder.events_max = 64;
  TwoWay pair(holder, reader_options("rxe0"));
  Line there{pair.reader, pair.peer, pair.holder};
  for (const TimePoint end = in(500ms); in(Duration{}) < end; yield(10ms))
    REQUIRE(there.say_until(100000, kNotifyBytesMax) == Code::busy);
  CHECK(there.said > 64);
  CHECK(pair.holder->counters().notifies_received < 64 + 64);
  CHECK(there.said < 1024 + 64 + 64);  // what the reader's engine keeps, and what the holder may have received
  while (there.heard < there.said) there.hear_one();
  there.say_until(there.said + 200, 64);
  while (there.heard < there.said) there.hear_one();
  CHECK(sends_become(pair.reader, there.said));
}

TEST_CASE("rdma/xfer: notifies of no byte, of one and of the most there may be arrive as they were sent") {
  TwoWay pair(holder_options("rxe1"), reader_options("rxe0"));
  const auto rounds = ::mc::test::count<uint32_t>(10, 40);
  for (uint32_t i = 0; i < rounds; ++i)
    for (const size_t size : {size_t{0}, size_t{1}, size_t{196}, size_t{197}, kNotifyBytesMax}) {
      std::vector<std::byte> bytes(size, static_cast<std::byte>(i));
      REQUIRE(pair.reader->notify(pair.peer, bytes) == Code::ok);
      CHECK(pair.holder.wait(Event::Kind::notify).bytes == bytes);
    }
  CHECK(pair.reader->notify(pair.peer, std::vector<std::byte>(kNotifyBytesMax + 1)) == Code::invalid);
  CHECK(sends_become(pair.reader, rounds * 5));
}

TEST_CASE("rdma/xfer: a connection that rests says its notifies over the socket, and over its paths when it is awake") {
  Options holder = holder_options("rxe1"), reader = reader_options("rxe0");
  reader.rdma_pairs_max = 2;  // for one connection
  TwoWay pair(holder, reader);
  Line there{pair.reader, pair.peer, pair.holder}, back{pair.holder, pair.back, pair.reader};
  const auto talk = [&](uint32_t count) {
    for (uint32_t i = 0; i < count; ++i) {
      there.say_until(there.said + 1, 64);
      back.say_until(back.said + 1, 64);
    }
    while (there.heard < there.said) there.hear_one();
    while (back.heard < back.said) back.hear_one();
  };
  talk(20);
  CHECK(sends_become(pair.reader, 20));
  CHECK(sends_become(pair.holder, 20));
  Node other("other", "rdma", holder);
  auto second = pair.reader->connect(other->describe(), in(kLong));
  REQUIRE_OK(second);
  pair.reader.wait([&](const Event& event) { return event.kind == Event::Kind::peer_up && event.peer == *second; });
  CHECK(until([&] { return pair.holder->counters().rdma_evictions == 1; }));
  talk(40);  // the first rests now
  CHECK(pair.reader->counters().rdma_sends == 20);
  CHECK(pair.holder->counters().rdma_sends == 20);
  const Request request = pair.read(0, 0, 4096);
  CHECK(pair.reader.run({&request, 1}) == Code::ok);  // wakes it
  talk(20);
  CHECK(pair.reader->counters().rdma_sends > 20);
  CHECK(pair.reader->counters().peers_lost == 0);
}

TEST_CASE("rdma/xfer: what was said just before leaving is heard before the leaving") {
  for (int round = 0; round < count(4, 200); ++round) {
    auto pair = std::make_unique<TwoWay>(holder_options("rxe1"), reader_options("rxe0"));
    for (uint32_t i = 0; i < 12; ++i) REQUIRE(pair->reader->notify(pair->peer, message(i, 4096)) == Code::ok);
    CHECK(until([&] { return pair->reader->counters().notifies_sent == 12; }));
    pair->reader.engine.reset();
    pair->holder.wait(Event::Kind::peer_lost);
    uint32_t heard = 0;
    for (const Event& event : pair->holder.seen)
      if (event.kind == Event::Kind::notify) CHECK(number_of(event) == heard++);
    CHECK(heard == 12);
  }
}

TEST_CASE("rdma/xfer: figures: round trip of a notify over a queue pair and over the socket" * doctest::skip()) {
  Options on = reader_options("rxe0"), off = on;
  off.rdma_sends = false;
  for (int round = 0; round < 7; ++round)
    for (const bool sends : {true, false}) {
      Options holder = holder_options("rxe1");
      holder.rdma_sends = sends;
      TwoWay pair(holder, sends ? on : off);
      std::thread echo([&] { bench_echo(*pair.holder.engine, in(kLong)); });
      auto times = bench_notify(*pair.reader.engine, pair.peer, 64, 2000);
      echo.join();
      REQUIRE_OK(times);
      std::sort(times->begin(), times->end());
      const auto us = [&](double share) {
        return std::chrono::duration<double, std::micro>((*times)[static_cast<size_t>(share * 1999)]).count();
      };
      std::printf("notify 64 B over %s: median %.1f us, p10 %.1f, p99 %.1f\n", sends ? "queue pair" : "socket", us(0.5),
                  us(0.1), us(0.99));
    }
}

}  // namespace notify_test
