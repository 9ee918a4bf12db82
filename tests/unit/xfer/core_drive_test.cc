// Callers that poll (Options::spin) stand in for the engine's thread: the bytes, the events and the counts
// are those of engines that do not.
#include <thread>

#include "pair.h"

namespace core_drive_test {

using namespace mc;
using namespace mc::xfer;
using namespace mc::xfer::test;

namespace {

Options spinning(Duration spin) {
  Options options;
  options.spin = spin;
  return options;
}

void wait_idle(Node& node) {
  const auto busy = [&] {
    const Counters counters = node->counters();
    return counters.slices_in_flight > 0 || counters.batches_open > 0;
  };
  std::vector<Event> events;
  for (const TimePoint deadline = in(kLong); busy() && in(Duration{}) < deadline;) (void)node->poll(events, in(1ms));
  CHECK_FALSE(busy());
}

}  // namespace

TEST_CASE("xfer/drive: a caller that polls gets the same bytes, whatever the transport") {
  for (const char* transport : {"shm-engine", "tcp", "tcp-uring"})
    for (const Duration spin : {Duration(20us), Duration(5ms)}) {
      CAPTURE(transport);
      Pair pair(transport, Pair::kDefaultBytes, spinning(spin), spinning(spin));
      for (const size_t bytes : {size_t{64}, size_t{4096}, size_t{1} << 20}) {
        CHECK(pair.reader.run({{pair.read(0, bytes, bytes)}}) == Code::ok);
        CHECK(equal(pair.local.bytes().first(bytes), pair.kv.bytes().subspan(bytes, bytes)));
        CHECK(pair.reader.run({{pair.write(0, bytes, bytes)}}) == Code::ok);
        CHECK(equal(pair.local.bytes().first(bytes), pair.landing.bytes().subspan(bytes, bytes)));
      }
      wait_idle(pair.reader);
      const Counters counters = pair.reader->counters();
      CHECK(counters.urgent_bytes + counters.bulk_bytes == 2 * (64 + 4096 + (size_t{1} << 20)));
    }
}

TEST_CASE("xfer/drive: several threads submit while one polls") {
  constexpr size_t kThreads = 3, kEach = 50, kPiece = 4096;
  for (const char* transport : {"shm-engine", "tcp", "tcp-uring"}) {
    CAPTURE(transport);
    Pair pair(transport, Pair::kDefaultBytes, {}, spinning(200us));
    std::vector<std::thread> threads;
    std::atomic<size_t> refused{0};
    for (size_t t = 0; t < kThreads; ++t)
      threads.emplace_back([&, t] {
        for (size_t i = 0; i < kEach; ++i) {
          const size_t at = (t * kEach + i) * kPiece;
          const Request request = pair.read(at, at, kPiece);
          refused += pair.reader->submit({&request, 1}, in(kLong)).has_value() ? 0 : 1;
        }
      });
    for (size_t done = 0; done < kThreads * kEach; ++done) {
      const Event event = pair.reader.wait(Event::Kind::batch_done);
      REQUIRE(event.code == Code::ok);
      REQUIRE(pair.reader->close(event.batch, in(kLong)).has_value());
    }
    for (auto& thread : threads) thread.join();
    CHECK(refused == 0);
    CHECK(equal(pair.local.bytes().first(kThreads * kEach * kPiece), pair.kv.bytes().first(kThreads * kEach * kPiece)));
    wait_idle(pair.reader);
  }
}

TEST_CASE("xfer/drive: a batch ends though its caller never polls again") {
  for (const char* transport : {"shm-engine", "tcp", "tcp-uring"}) {
    CAPTURE(transport);
    Pair pair(transport, Pair::kDefaultBytes, {}, spinning(1ms));
    CHECK(pair.reader.run({{pair.read(0, 0, 64)}}) == Code::ok);  // polled: the engine's thread naps
    const Request request = pair.read(4096, 4096, 1 << 20);
    auto batch = pair.reader->submit({&request, 1}, in(kLong));
    REQUIRE_OK(batch);
    CHECK(pair.reader->close(*batch, in(kLong)).has_value());
    CHECK(equal(pair.local.bytes().subspan(4096, 1 << 20), pair.kv.bytes().subspan(4096, 1 << 20)));
  }
}

TEST_CASE("xfer/drive: a small request that is wrong, refused or corrupt is told so, whatever the transport") {
  for (const char* transport : {"shm-engine", "tcp"}) {
    CAPTURE(transport);
    Pair pair(transport, Pair::kDefaultBytes, {}, spinning(1ms));
    CHECK(pair.reader.run({{pair.read(0, 64, 64)}}) == Code::ok);
    Request wrong = pair.read(0, 0, 64);
    wrong.crc32c = 1;
    CHECK(pair.reader.run({{wrong}}) == Code::corrupt);
    Request into_blocks = pair.write(0, 0, 64);
    into_blocks.buffer = pair.kv_id;
    CHECK(pair.reader.run({{into_blocks}}) == Code::invalid);
    CHECK(pair.reader.run({{pair.read(0, Pair::kDefaultBytes - 32, 64)}}) == Code::invalid);
    Request nowhere = pair.read(0, 0, 64);
    nowhere.buffer = 999;
    CHECK(pair.reader.run({{nowhere}}) == Code::not_found);
    CHECK(pair.reader.run({{pair.read(0, 0, 0)}}) == Code::ok);
    CHECK(pair.reader.run({{pair.write(64, 128, 64)}}) == Code::ok);
    CHECK(equal(pair.landing.bytes().subspan(128, 64), pair.local.bytes().subspan(64, 64)));
    wait_idle(pair.reader);
  }
}

TEST_CASE("xfer/drive: a deadline passes on time while the caller polls") {
  Pair pair("tcp", Pair::kDefaultBytes, {}, spinning(50ms));
  const Request request = pair.read(0, 0, 4096);
  auto batch = pair.reader->submit({&request, 1}, in(Duration{}));
  REQUIRE_OK(batch);
  const Event event = pair.reader.done(*batch);
  CHECK((event.code == Code::timeout || event.code == Code::ok));
  CHECK(pair.reader->close(*batch, in(kLong)).has_value());
}

}  // namespace core_drive_test
