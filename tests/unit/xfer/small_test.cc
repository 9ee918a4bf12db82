// Small batches (small_path.h): over a transport whose completions the test holds back, and beside engines that use the
// ordinary way.
#include <atomic>
#include <mutex>
#include <set>
#include <thread>

#include "base/hash.h"
#include "instructions.h"
#include "pair.h"
#include "xfer/events.h"
#include "xfer/slice_table.h"
#include "xfer/small_table.h"
#include "xfer/tally.h"
#include "xfer/transport.h"
#include "xfer/word_mutex.h"

namespace small_test {

using namespace mc;
using namespace mc::xfer;
using namespace mc::xfer::test;

namespace {

constexpr size_t kRemoteBytes = size_t{1} << 20;
constexpr uint32_t kBlocks = 1, kLanding = 2;

/// The switches of HeldTransport, and its counts.
struct Controls {
  std::atomic<bool> hold{false};                  // completions are held back
  std::atomic<bool> refuse{false};                // nothing is posted
  std::atomic<bool> room{false};                  // lanes that were full are reported to have room
  std::atomic<bool> quick{false};                 // end_alone() completes the slice itself, like that of rdma
  std::atomic<bool> fail{false};                  // the next completion is an error
  std::atomic<bool> lose{false};                  // the connection is lost at the next look
  std::atomic<int> alone{0}, others{0}, kept{0};  // calls of post_alone(), post() and keep_alone()
  std::vector<std::byte> remote = std::vector<std::byte>(kRemoteBytes);
  InstanceId instance{};
};
Controls* controls = nullptr;

/// A transport to a process that does not exist: bytes are copied between local memory and Controls::remote. Like rdma,
/// it reports completions in look().
class HeldTransport final : public Transport {
 public:
  explicit HeldTransport(Services& services) : services_(services) {}
  Result<std::string> listen() override { return std::string("held://here"); }
  EndpointId connect(const Dial&, Reports& out) override {
    endpoint_ = services_.next_endpoint();
    out.events.push_back({.kind = EndpointEvent::Kind::up,
                          .endpoint = endpoint_,
                          .proven = true,
                          .instance = controls->instance,
                          .text = "there",
                          .descriptor = std::make_shared<const Descriptor>(descriptor())});
    return endpoint_;
  }
  int lanes(EndpointId) const override { return 2; }
  size_t post(EndpointId, int, std::span<const Slice> slices, Reports&) override {
    ++controls->others;
    return take(slices);
  }
  bool post_alone(EndpointId, int, const Slice& slice, Reports&) override {
    ++controls->alone;
    return take({&slice, 1}) == 1;
  }
  bool end_alone(uint64_t slice, uint32_t& crc, TimePoint& next, Reports& out) override {
    if (!controls->quick || posted_.size() != 1) return Transport::end_alone(slice, crc, next, out);
    next = kNever;
    std::memcpy(posted_[0].local.data(), controls->remote.data() + posted_[0].offset, posted_[0].local.size());
    posted_.clear();
    return true;
  }
  void keep_alone() override { ++controls->kept; }
  bool cancel(EndpointId, int, uint64_t) override { return false; }
  Code notify(EndpointId, std::span<const std::byte>, Reports&) override { return Code::ok; }
  void publish(Reports&) override {}
  void close(EndpointId endpoint, Code code, std::string_view why, Reports& out) override {
    if (endpoint != endpoint_) return;
    posted_.clear();  // contract of `lost`
    endpoint_ = EndpointId::none;
    out.events.push_back(
        {.kind = EndpointEvent::Kind::lost, .endpoint = endpoint, .code = code, .text = std::string(why)});
  }
  void shutdown() override { posted_.clear(); }
  void ready(uint64_t, uint32_t, Reports&) override {}
  TimePoint tick(TimePoint now, Reports& out) override {
    (void)look(out);
    if (controls->room.exchange(false)) out.room = true;
    return now + 1ms;
  }
  TimePoint look(Reports& out) override {
    if (controls->lose.exchange(false)) close(endpoint_, Code::io, "the test cut it", out);
    if (controls->hold) return kNever;
    for (const Slice& slice : std::exchange(posted_, {})) out.done.push_back(complete(slice));
    return kNever;
  }
  void pause_notifies(bool) override {}

  static Descriptor descriptor() {
    Descriptor descriptor;
    descriptor.name = "there";
    descriptor.instance = controls->instance;
    descriptor.version = 1;
    descriptor.uris = {"held://there"};
    for (const auto& [id, access] : {std::pair{kBlocks, AccessClass::blocks}, {kLanding, AccessClass::landing}}) {
      BufferInfo buffer;
      buffer.id = id;
      buffer.access = access;
      buffer.length = kRemoteBytes;
      buffer.name = id == kBlocks ? "blocks" : "landing";
      descriptor.buffers.push_back(buffer);
    }
    return descriptor;
  }

 private:
  size_t take(std::span<const Slice> slices) {
    if (controls->refuse) return 0;
    posted_.insert(posted_.end(), slices.begin(), slices.end());
    return slices.size();
  }
  static SliceDone complete(const Slice& slice) {
    if (controls->fail.exchange(false)) return {.slice = slice.id, .code = Code::io, .text = "the test failed it"};
    std::byte* remote = controls->remote.data() + slice.offset;
    if (slice.op == Op::read)
      std::memcpy(slice.local.data(), remote, slice.local.size());
    else
      std::memcpy(remote, slice.local.data(), slice.local.size());
    return {.slice = slice.id, .crc32c = slice.checksum ? crc32c(slice.local) : 0};
  }

  Services& services_;
  EndpointId endpoint_ = EndpointId::none;
  std::vector<Slice> posted_;
};

const TransportEntry kHeld = {
    .scheme = "held",
    .summary = "completions that the test holds back",
    .dials_hosts = false,
    .maps_memory = false,
    .check = [](const Options&) -> Result<void> { return {}; },
    .probe = [](const Options&) -> Reach {
      return {true, "", "always"};
    },
    .reach = [](const Descriptor&, const Descriptor& remote) -> Reach {
      return {true, remote.uris[0], "always"};
    },
    .covers = [](const BufferInfo&) { return true; },
    .make = [](Services& services, uint8_t) -> std::unique_ptr<Transport> {
      return std::make_unique<HeldTransport>(services);
    },
};
const TransportEntry* const kHeldTable[] = {&kHeld};

/// An engine over HeldTransport, connected, with registered memory.
struct Held {
  Controls state;
  mem::HostBuffer local;
  std::unique_ptr<Engine> engine;
  PeerId peer{};
  BufferId buffer{};
  std::vector<Event> seen;

  explicit Held(Options options = {}) {
    controls = &state;
    state.instance.bytes.fill(9);
    fill(state.remote, 5);
    options.transport = "held";
    if (options.spin == Duration{}) options.spin = 50ms;
    options.insecure = true;
    auto opened = Engine::open(options, kHeldTable);
    REQUIRE_OK(opened);
    engine = std::move(*opened);
    auto memory = mem::HostBuffer::allocate(kRemoteBytes);
    REQUIRE_OK(memory);
    local = std::move(*memory);
    auto registered = engine->register_buffer(local.bytes(), {"local"});
    REQUIRE_OK(registered);
    buffer = *registered;
    auto connected = engine->connect(wire::encode(HeldTransport::descriptor()), in(kLong));
    REQUIRE_OK(connected);
    peer = *connected;
    (void)wait(Event::Kind::peer_up);
    (void)read(0);  // from now on the caller drives, and the engine's thread naps
    state.alone = state.others = state.kept = 0;
  }
  ~Held() {
    state.hold = false;
    engine.reset();
    controls = nullptr;
  }
  template <class Match>
  Event wait(Match match) {
    const TimePoint deadline = in(kLong);
    for (;;) {
      for (size_t i = 0; i < seen.size(); ++i) {
        if (!match(seen[i])) continue;
        Event event = std::move(seen[i]);
        seen.erase(seen.begin() + static_cast<long>(i));
        return event;
      }
      REQUIRE(engine->poll(seen, deadline) > 0);
    }
  }
  Event wait(Event::Kind kind) {
    return wait([&](const Event& event) { return event.kind == kind; });
  }
  Event done(BatchId batch) {
    return wait([&](const Event& event) { return event.kind == Event::Kind::batch_done && event.batch == batch; });
  }
  Request request(size_t at, size_t bytes = 64, Op op = Op::read) {
    return {.op = op,
            .peer = peer,
            .local = local.bytes().subspan(at, bytes),
            .buffer = op == Op::read ? kBlocks : kLanding,
            .offset = at};
  }
  BatchId submit(const Request& request, TimePoint deadline = in(kLong), uint64_t cookie = 0) {
    auto batch = engine->submit({&request, 1}, deadline, cookie);
    REQUIRE_OK(batch);
    return *batch;
  }
  Code read(size_t at) {
    const BatchId batch = submit(request(at));
    const Code code = done(batch).code;
    REQUIRE(engine->close(batch, in(kLong)).has_value());
    return code;
  }
  bool arrived(size_t at, size_t bytes = 64) {
    return equal(local.bytes().subspan(at, bytes), std::span(state.remote).subspan(at, bytes));
  }
  void check_idle() {
    const Counters counters = engine->counters();
    CHECK(counters.batches_open == 0);
    CHECK(counters.slices_in_flight == 0);
    CHECK(counters.quarantined_bytes == 0);
    CHECK(counters.batches_submitted == counters.batches_done);
    CHECK(engine->unregister(buffer, in(kLong)).has_value());  // nothing is pinned
  }
};

}  // namespace

TEST_CASE("xfer/small: a read that is done at the first look uses no queue and no table of slices") {
  Held held;
  const uint64_t before = held.engine->counters().slices_posted;
  for (size_t i = 0; i < 100; ++i) {
    const BatchId batch = held.submit(held.request(i * 64), in(kLong), i);
    const Event event = held.done(batch);
    CHECK(event.code == Code::ok);
    CHECK(event.cookie == i);
    CHECK_FALSE(event.quarantined);
    REQUIRE(held.engine->results(batch).size() == 1);
    CHECK(held.engine->results(batch)[0].bytes == 64);
    CHECK(held.arrived(i * 64));
    CHECK(held.engine->close(batch).has_value());
    CHECK(held.engine->close(batch).error().code == Code::not_found);
    CHECK(held.engine->results(batch).empty());
  }
  CHECK(held.state.alone > 90);  // the engine's thread may have had the turn
  CHECK(held.engine->counters().slices_posted == before + 100);
  held.check_idle();
}

TEST_CASE("xfer/small: a read that flies ends in poll(), and close() tells that it runs until then") {
  Held held;
  held.state.hold = true;
  const BatchId batch = held.submit(held.request(128));
  CHECK(held.engine->results(batch).empty());
  CHECK(held.engine->close(batch).error().code == Code::busy);
  CHECK(held.engine->close(batch, in(10ms)).error().code == Code::timeout);
  CHECK(held.engine->unregister(held.buffer, in(10ms)).error().code == Code::timeout);
  held.state.hold = false;
  CHECK(held.done(batch).code == Code::ok);
  CHECK(held.arrived(128));
  CHECK(held.engine->close(batch, in(kLong)).has_value());
  CHECK(held.engine->unregister(held.buffer, in(kLong)).has_value());
}

TEST_CASE("xfer/small: a read that flies ends though its caller never polls again") {
  Held held;
  held.state.hold = true;
  const BatchId batch = held.submit(held.request(0));
  held.state.hold = false;
  CHECK(held.engine->close(batch, in(kLong)).has_value());
  CHECK(held.arrived(0));
}

TEST_CASE("xfer/small: a read that flies past its deadline is reported, and its memory comes back later") {
  Held held;
  held.state.hold = true;
  const TimePoint deadline = in(20ms);
  const BatchId batch = held.submit(held.request(0), deadline);
  const Event event = held.done(batch);
  CHECK(in(Duration{}) >= deadline);
  CHECK(event.code == Code::timeout);
  CHECK(event.quarantined);
  held.state.hold = false;
  CHECK(held.wait(Event::Kind::batch_released).batch == batch);
  CHECK(held.engine->close(batch, in(kLong)).has_value());
  held.check_idle();
}

TEST_CASE("xfer/small: a read that flies can be cancelled") {
  Held held;
  held.state.hold = true;
  const BatchId batch = held.submit(held.request(0));
  held.engine->cancel(batch);
  CHECK(held.done(batch).code == Code::cancelled);
  held.state.hold = false;
  CHECK(held.engine->close(batch, in(kLong)).has_value());
  CHECK(held.read(64) == Code::ok);
  held.check_idle();
}

TEST_CASE("xfer/small: reads that follow one that flies end with it") {
  Held held;
  held.state.hold = true;
  std::vector<BatchId> batches;
  for (size_t i = 0; i < 20; ++i) batches.push_back(held.submit(held.request(i * 64), in(kLong), i));
  held.state.hold = false;
  for (size_t i = 0; i < batches.size(); ++i) {
    const Event event = held.done(batches[i]);
    CHECK(event.code == Code::ok);
    CHECK(event.cookie == i);
    CHECK(held.arrived(i * 64));
    CHECK(held.engine->close(batches[i], in(kLong)).has_value());
  }
  held.check_idle();
}

TEST_CASE("xfer/small: an error of the device is tried again, as for any slice") {
  Held held;
  for (const bool flies : {false, true}) {
    CAPTURE(flies);
    held.state.hold = flies;
    held.state.fail = true;
    const BatchId batch = held.submit(held.request(0));
    held.state.hold = false;
    CHECK(held.done(batch).code == Code::ok);
    CHECK(held.engine->close(batch, in(kLong)).has_value());
  }
  CHECK(held.engine->counters().slices_retried == 2);
  held.check_idle();
}

TEST_CASE("xfer/small: a read whose connection is lost is repeated on the next one") {
  Held held;
  for (int round = 0; round < 5; ++round) {
    CAPTURE(round);
    held.state.hold = true;
    const BatchId batch = held.submit(held.request(64));
    held.state.lose = true;
    held.wait(Event::Kind::peer_lost);
    held.state.hold = false;
    CHECK(held.done(batch).code == Code::ok);
    CHECK(held.engine->close(batch, in(kLong)).has_value());
    CHECK(held.read(128) == Code::ok);
  }
  CHECK(held.engine->counters().peers_lost == 5);
  held.check_idle();
}

TEST_CASE("xfer/small: disconnecting ends a read that flies") {
  Held held;
  held.state.hold = true;
  const BatchId batch = held.submit(held.request(0));
  held.engine->disconnect(held.peer);
  CHECK(held.done(batch).code == Code::cancelled);
  CHECK(held.engine->close(batch, in(kLong)).has_value());
  const BatchId late = held.submit(held.request(0));
  CHECK(held.done(late).code == Code::not_found);
  CHECK(held.engine->close(late, in(kLong)).has_value());
  held.check_idle();
}

TEST_CASE("xfer/small: a read that no lane takes waits like any other") {
  Held held;
  held.state.refuse = true;
  const BatchId batch = held.submit(held.request(0));
  CHECK(held.engine->results(batch).empty());
  held.state.refuse = false;
  held.state.room = true;
  CHECK(held.done(batch).code == Code::ok);
  CHECK(held.arrived(0));
  CHECK(held.state.others > 0);
  CHECK(held.engine->close(batch, in(kLong)).has_value());
  held.check_idle();
}

TEST_CASE("xfer/small: batches that stay open count, and each keeps its result") {
  Options options;
  options.batches_max = 2 * SmallTable::kSlots;
  Held held(options);
  std::vector<BatchId> batches;
  for (size_t i = 0; i < options.batches_max; ++i) {  // half of them find no slot
    batches.push_back(held.submit(held.request(i * 64, 1 + i)));
    CHECK(held.done(batches.back()).code == Code::ok);
  }
  const Request one_more = held.request(0);
  CHECK(held.engine->submit({&one_more, 1}, in(kLong)).error().code == Code::busy);
  CHECK(held.engine->counters().batches_open == options.batches_max);
  for (size_t i = 0; i < batches.size(); ++i) {
    REQUIRE(held.engine->results(batches[i]).size() == 1);
    CHECK(held.engine->results(batches[i])[0].bytes == 1 + i);
    CHECK(held.engine->close(batches[i]).has_value());
  }
  CHECK(std::set(batches.begin(), batches.end()).size() == batches.size());
  held.check_idle();
}

TEST_CASE("xfer/small: an engine ends while a read flies") {
  Held held;
  held.state.hold = true;
  (void)held.submit(held.request(0));
  held.engine.reset();
}

TEST_CASE("xfer/small: memory that was registered again is found under its new buffer") {
  Held held;
  for (int round = 0; round < 20; ++round) {
    CHECK(held.read(64) == Code::ok);
    REQUIRE(held.engine->unregister(held.buffer, in(kLong)).has_value());
    const Request request = held.request(64);
    CHECK(held.engine->submit({&request, 1}, in(kLong)).error().code == Code::invalid);
    auto again = held.engine->register_buffer(held.local.bytes(), {"local"});
    REQUIRE_OK(again);
    held.buffer = *again;
  }
  held.check_idle();
}

TEST_CASE("xfer/small: a read over a transport that copies its bytes takes at most 1,300 instructions") {
  constexpr uint64_t kMost = 1300;
  if (const std::string why = ::mc::test::why_no_instruction_count(); !why.empty()) {
    MESSAGE("skipped: " << why);
    return;
  }
  Held held;
  held.state.quick = true;
  std::vector<Event> events;
  events.reserve(64);
  ::mc::test::InstructionCounter counter;
  uint64_t least = UINT64_MAX;
  for (size_t i = 0; i < 40; ++i) {
    const Request request = held.request(i * 64);
    const TimePoint deadline = in(kLong);
    events.clear();
    bool closed = false;
    const uint64_t all = counter
                             .count([&] {
                               const BatchId batch = *held.engine->submit({&request, 1}, deadline);
                               while (held.engine->poll(events, deadline) == 0) continue;
                               closed = held.engine->close(batch).has_value();
                             })
                             .total();
    REQUIRE(closed);
    least = std::min(least, all);
  }
  std::printf("a read over a transport that copies 64 bytes: %lu instructions\n", least);
  CHECK(least <= kMost);
}

// ---- beside the ordinary way ----

TEST_CASE("xfer/small: requests around the limit of small ones have the results of the ordinary way") {
  constexpr size_t kLimit = 4096;
  for (const char* transport : {"shm-engine", "tcp"}) {
    CAPTURE(transport);
    Options small, ordinary;
    small.slice_bytes_min = ordinary.slice_bytes_min = kLimit;
    small.spin = 5ms;
    Pair a(transport, Pair::kDefaultBytes, {}, small), b(transport, Pair::kDefaultBytes, {}, ordinary);
    Rng rng(::mc::test::seed());
    for (int round = 0; round < 200; ++round) {
      const size_t bytes = rng.chance(0.5) ? kLimit - 2 + rng.below(5) : rng.below(2 * kLimit);
      const size_t local_at = rng.below(Pair::kDefaultBytes - bytes + 1);
      const size_t remote_at = rng.below(Pair::kDefaultBytes + (rng.chance(0.1) ? 2 * kLimit : 0) - bytes + 1);
      const bool read = rng.chance(0.6), elsewhere = rng.chance(0.1), nowhere = rng.chance(0.05);
      const uint32_t crc = rng.chance(0.5) || remote_at + bytes > Pair::kDefaultBytes
                               ? 1
                               : crc32c(a.kv.bytes().subspan(remote_at, bytes));
      const bool checked = rng.chance(0.3);
      Code codes[2];
      std::string texts[2];
      std::vector<RequestResult> results[2];
      Pair* pairs[] = {&a, &b};
      for (size_t i = 0; i < 2; ++i) {
        Request request =
            read ? pairs[i]->read(local_at, remote_at, bytes) : pairs[i]->write(local_at, remote_at, bytes);
        if (elsewhere) request.buffer = read ? pairs[i]->landing_id : pairs[i]->kv_id;
        if (nowhere) request.buffer = 999;
        if (checked) request.crc32c = crc;
        codes[i] = pairs[i]->reader.run({&request, 1}, &results[i], &texts[i]);
      }
      CAPTURE(bytes);
      CAPTURE(texts[1]);
      REQUIRE(codes[0] == codes[1]);
      REQUIRE(texts[0] == texts[1]);
      REQUIRE(results[0].size() == 1);
      REQUIRE(results[1].size() == 1);
      REQUIRE(results[0][0].code == results[1][0].code);
      REQUIRE(results[0][0].bytes == results[1][0].bytes);
      REQUIRE(results[0][0].crc32c == results[1][0].crc32c);
      if (codes[0] != Code::ok) continue;
      REQUIRE(equal(a.local.bytes().subspan(local_at, bytes), b.local.bytes().subspan(local_at, bytes)));
    }
    CHECK(equal(a.landing.bytes(), b.landing.bytes()));
    const Counters left = a.reader->counters(), right = b.reader->counters();
    CHECK(left.bulk_bytes == right.bulk_bytes);
    CHECK(left.batches_done == right.batches_done);
    CHECK(left.batches_failed == right.batches_failed);
    CHECK(left.requests_failed == right.requests_failed);
    CHECK(left.checksum_failures == right.checksum_failures);
    CHECK(left.batches_open == 0);
  }
}

// ---- the parts ----

TEST_CASE("xfer/small_table: a result is there from the end of its batch until the batch is closed") {
  SmallTable table;
  const BatchId first = table.open(), second = table.open();
  REQUIRE(first != second);
  CHECK(SmallTable::is_small(first));
  CHECK(table.results(first).empty());
  CHECK_FALSE(table.close(first));  // it flies
  table.finish(first, {.bytes = 7});
  table.finish(second, {.bytes = 8});
  REQUIRE(table.results(first).size() == 1);
  CHECK(table.results(first)[0].bytes == 7);
  CHECK(table.close(first));
  CHECK_FALSE(table.close(first));
  CHECK(table.results(first).empty());
  CHECK(table.results(second)[0].bytes == 8);
  CHECK_FALSE(table.close(BatchId{static_cast<uint64_t>(second) + SmallTable::kSlots}));  // the slot's next batch
  CHECK(table.close(second));
}

TEST_CASE("xfer/small_table: a slot is not taken before its batch is closed") {
  SmallTable table;
  std::vector<BatchId> open;
  for (size_t i = 0; i < SmallTable::kSlots; ++i) {
    open.push_back(table.open());
    table.finish(open.back(), {.bytes = i});
  }
  CHECK(table.open() == BatchId::none);
  for (size_t i = 0; i < open.size(); ++i) CHECK(table.results(open[i])[0].bytes == i);
  for (const BatchId id : open) CHECK(table.close(id));
  const BatchId fresh = table.open();
  REQUIRE(fresh != BatchId::none);
  CHECK(std::find(open.begin(), open.end(), fresh) == open.end());
}

TEST_CASE("xfer/slices: a number that was lent finds a slice only after its batch joined the table") {
  Tally tally;
  SliceTable slices(tally);
  std::vector<std::byte> memory(64);
  OpenBatch batch;
  batch.requests.push_back({.local = memory});
  batch.states.emplace_back();
  uint32_t index = 0;
  const uint64_t first = slices.lend(), second = slices.lend();
  CHECK(first != second);
  CHECK(slices.count() == 0);
  CHECK(slices.find(second, index) == nullptr);
  slices.adopt(batch, second, EndpointId{3}, 1);
  CHECK(slices.count() == 1);
  CHECK(slices.find(first, index) == nullptr);
  const SliceRecord* found = slices.find(second, index);
  REQUIRE(found != nullptr);
  CHECK(found->bytes == 64);
  CHECK(found->attempts == 1);
  CHECK(found->endpoint == EndpointId{3});
  const uint64_t third = slices.lend();
  CHECK(slices.find(third, index) == nullptr);
  REQUIRE(slices.find(second, index) != nullptr);
  slices.release(index);
  CHECK(slices.count() == 0);
  CHECK(batch.slices == 0);
}

TEST_CASE("xfer/events: the end of a small batch keeps its place among the other events") {
  Rng rng(::mc::test::seed());
  EventQueue events(1000);
  REQUIRE(events.open());
  std::vector<Event> out;
  uint64_t pushed = 0;
  bool made_room = false;
  for (int round = 0; round < 500; ++round) {
    if (rng.chance(0.6)) {
      if (rng.chance(0.5))
        events.push_done(BatchId{1}, ++pushed);
      else
        events.push({.kind = Event::Kind::notify, .cookie = ++pushed});
    } else {
      (void)events.poll(out, TimePoint{}, 1 + rng.below(4), made_room);
    }
    CHECK(events.size_hint() == pushed - out.size());
  }
  while (events.poll(out, TimePoint{}, 64, made_room) > 0) continue;
  REQUIRE(out.size() == pushed);
  for (size_t i = 0; i < out.size(); ++i) {
    CHECK(out[i].cookie == i + 1);
    CHECK((out[i].kind == Event::Kind::batch_done || out[i].kind == Event::Kind::notify));
    CHECK((out[i].batch == BatchId{1}) == (out[i].kind == Event::Kind::batch_done));
  }
}

TEST_CASE("xfer/word_mutex: one thread at a time holds it, and those that sleep get their turn") {
  constexpr int kThreads = 4, kTurns = 20'000;
  WordMutex mutex;
  uint64_t count = 0;  // not atomic: the mutex protects it
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < kTurns; ++i) {
        std::unique_lock lock(mutex, std::defer_lock);
        if (i % 3 != 0 || !lock.try_lock()) lock.lock();
        ++count;
        if (i % 1000 == 0) std::this_thread::yield();  // others meet the lock
      }
    });
  for (auto& thread : threads) thread.join();
  CHECK(count == uint64_t{kThreads} * kTurns);
  REQUIRE(mutex.try_lock());
  CHECK_FALSE(mutex.try_lock());
  mutex.unlock();
  CHECK(mutex.try_lock());
  mutex.unlock();
}

}  // namespace small_test
