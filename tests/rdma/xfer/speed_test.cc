// Figures: those that are skipped are run by hand inside scripts/rdma-vm with -ns -tc='*speed*' beside
// perftest, or by scripts/bench-xfer; the others hold what must not be lost, with generous bounds.
#include <algorithm>
#include <cstdio>
#include <vector>

#include "base/fd.h"
#include "base/hash.h"
#include "machine.h"
#include "unit/xfer/pair.h"
#include "xfer/access.h"
#include "xfer/auth.h"
#include "xfer/poller.h"
#include "xfer/tally.h"
#include "xfer_rdma/transport.h"

namespace speed_test {

using namespace mc;
using namespace mc::xfer;
using namespace mc::xfer::test;

namespace {

double seconds(Duration d) {
  return std::chrono::duration<double>(d).count();
}

/// `count` requests of `bytes`, kept `depth` deep; MB/s.
double rate(Pair& pair, Op op, size_t bytes, size_t depth, Duration length) {
  const TimePoint start = in(Duration{});
  size_t moved = 0, open = 0;
  uint64_t at = 0;
  while (in(Duration{}) - start < length || open > 0) {
    while (open < depth && in(Duration{}) - start < length) {
      const size_t place = at++ % (Pair::kDefaultBytes / bytes) * bytes;
      const Request request = op == Op::read ? pair.read(place, place, bytes) : pair.write(place, place, bytes);
      auto batch = pair.reader->submit({&request, 1}, in(kLong));
      REQUIRE_OK(batch);
      ++open;
    }
    const Event done = pair.reader.wait(Event::Kind::batch_done);
    REQUIRE(done.code == Code::ok);
    REQUIRE(pair.reader->close(done.batch, in(kLong)).has_value());
    --open;
    moved += bytes;
  }
  return static_cast<double>(moved) / seconds(in(Duration{}) - start) / 1e6;
}

/// A transport without an engine, driven by the caller's thread: what the verbs path itself costs.
struct Bare {
  Options options;
  Access access;
  Tally tally;
  Poller poller;
  Services services;
  std::unique_ptr<RdmaTransport> transport;
  Reports out;
  EndpointId endpoint{};
  TimePoint now{};
  explicit Bare(const std::string& name, const std::string& devices) {
    options = on(devices);
    options.name = name;
    options.spin = 1us;
    auto opened = Poller::open();
    REQUIRE_OK(opened);
    poller = std::move(*opened);
    services.options = &options;
    services.instance.bytes.fill(static_cast<uint8_t>(name[0]));
    services.access = &access;
    services.poller = &poller;
    services.tally = &tally;
    services.endpoints_max = 4;
    transport = std::make_unique<RdmaTransport>(services, 1);
    auto uri = transport->listen();
    REQUIRE_OK(uri);
    services.uris = {*uri};
  }
  BufferId add(std::span<std::byte> memory, const Buffer& buffer) {
    auto id = access.add(memory, buffer, -1);
    REQUIRE_OK(id);
    REQUIRE_OK(transport->attach(*id, memory, buffer.access));
    return *id;
  }
  void turn(bool sockets) {
    std::array<Poller::Ready, 16> ready;
    if (sockets) now = in(Duration{});
    if (sockets)
      for (size_t i = 0, count = poller.wait(ready, now, now + 1ms); i < count; ++i)
        transport->ready(ready[i].token, ready[i].events, out);
    (void)transport->tick(now, out);
    for (const EndpointEvent& event : out.events)
      if (event.kind == EndpointEvent::Kind::up) endpoint = event.endpoint;
    out.events.clear();
  }
};

struct BarePair {
  Bare holder{"holder", "rxe1"};
  Bare reader{"reader", "rxe0"};
  mem::HostBuffer there, here;
  uint32_t kv = 0, landing = 0;
  BarePair() {
    auto a = mem::HostBuffer::allocate(8 << 20), b = mem::HostBuffer::allocate(4 << 20);
    REQUIRE_OK(a);
    REQUIRE_OK(b);
    there = std::move(*a);
    here = std::move(*b);
    kv = static_cast<uint32_t>(holder.add(there.bytes().first(4 << 20), {"kv", AccessClass::blocks}));
    landing = static_cast<uint32_t>(holder.add(there.bytes().subspan(4 << 20), {"landing", AccessClass::landing}));
    reader.add(here.bytes(), {"local"});
    (void)reader.transport->connect({holder.services.uris[0], holder.services.instance, random_id(), in(kLong)},
                                    reader.out);
    while (reader.endpoint == EndpointId::none || holder.endpoint == EndpointId::none) {
      holder.turn(true);
      reader.turn(true);
    }
  }
  /// Slices of `bytes`, as many as the lanes take; MB/s.
  double rate(Op op, size_t bytes, size_t depth, Duration length) {
    const TimePoint start = in(Duration{});
    const TimePoint end = start + length;
    uint64_t id = 0, open = 0, moved = 0;
    while (in(Duration{}) < end || open > 0) {
      for (int lane = 0; lane < 2 && open < depth && in(Duration{}) < end; ++lane) {
        std::vector<Slice> slices;
        for (size_t i = 0; i < (depth - open + 1) / 2; ++i) {
          const size_t at = (id + i) % ((4 << 20) / bytes) * bytes;
          slices.push_back({.id = id + i + 1, .op = op, .buffer = op == Op::read ? kv : landing, .offset = at});
          slices.back().local = here.bytes().subspan(at, bytes);
        }
        const size_t taken = reader.transport->post(reader.endpoint, lane, slices, reader.out);
        id += taken;
        open += taken;
      }
      reader.turn(false);
      for (const SliceDone& done : reader.out.done) REQUIRE_MESSAGE(done.code == Code::ok, done.text);
      open -= reader.out.done.size();
      moved += reader.out.done.size() * bytes;
      reader.out.done.clear();
    }
    return static_cast<double>(moved) / seconds(in(Duration{}) - start) / 1e6;
  }
  void latency() {
    std::vector<double> times;
    size_t posted = 0;
    reader.now = in(Duration{});
    for (uint64_t i = 0; i < 1000; ++i) {
      const TimePoint start = reader.now;
      Slice slice{.id = i + 1, .buffer = kv};
      slice.local = here.bytes().first(64);
      posted += reader.transport->post(reader.endpoint, 0, {&slice, 1}, reader.out);
      while (reader.out.done.empty()) reader.turn(false);
      reader.out.done.clear();
      reader.now = in(Duration{});
      times.push_back(seconds(reader.now - start) * 1e6);
    }
    CHECK(posted == 1000);
    std::sort(times.begin(), times.end());
    std::printf("bare read 64 B: p50 %.1f us, best %.1f us\n", times[500], times[0]);
  }
};

}  // namespace

TEST_CASE("rdma/speed: bare transport" * doctest::skip()) {
  BarePair pair;
  for (const size_t bytes : {size_t{65536}, size_t{1} << 20})
    for (const Op op : {Op::read, Op::write})
      std::printf("bare %s %7zu B: %6.1f MB/s\n", op == Op::read ? "read " : "write", bytes,
                  pair.rate(op, bytes, bytes > 65536 ? 16 : 64, 2s));
  pair.latency();
}

TEST_CASE("rdma/speed: 64 B" * doctest::skip()) {
  {
    BarePair bare;
    bare.latency();
  }
  Options reader = on("rxe0");
  reader.spin = 1ms;
  Pair pair("rdma", Pair::kDefaultBytes, on("rxe1"), reader);
  const Request request = pair.read(0, 0, 64);
  std::vector<double> times;
  std::vector<Event> events;
  for (int i = 0; i < 1000; ++i) {
    const TimePoint start = in(Duration{});
    auto batch = pair.reader->submit({&request, 1}, start + kLong);
    REQUIRE_OK(batch);
    events.clear();
    while (pair.reader->poll(events, start + kLong) == 0) continue;
    REQUIRE(pair.reader->close(*batch, start + kLong).has_value());
    times.push_back(seconds(in(Duration{}) - start) * 1e6);
  }
  std::sort(times.begin(), times.end());
  std::printf("engine read 64 B: p50 %.1f us, best %.1f us\n", times[500], times[0]);
}

TEST_CASE("rdma/speed: one path" * doctest::skip()) {
  for (const Duration spin : {Duration(0ns), Duration(50us)}) {
    Options reader = on("rxe0");
    reader.spin = spin;
    Pair pair("rdma", Pair::kDefaultBytes, on("rxe1"), reader);
    for (const size_t bytes : {size_t{65536}, size_t{1} << 20})
      for (const Op op : {Op::read, Op::write})
        std::printf("spin %3.0f us %s %7zu B x16: %6.1f MB/s\n", seconds(spin) * 1e6,
                    op == Op::read ? "read " : "write", bytes, rate(pair, op, bytes, bytes > 65536 ? 4 : 16, 2s));
    std::vector<double> times;
    for (int i = 0; i < 300; ++i) {
      const TimePoint start = in(Duration{});
      CHECK(pair.reader.run({{pair.read(0, 0, 64)}}) == Code::ok);
      times.push_back(seconds(in(Duration{}) - start) * 1e6);
    }
    std::sort(times.begin(), times.end());
    std::printf("spin %3.0f us read 64 B: p50 %.1f us, best %.1f us\n", seconds(spin) * 1e6, times[150], times[0]);
    std::vector<Request> pieces;
    for (size_t i = 0; i < 256; ++i) pieces.push_back(pair.read(i * 4096, (255 - i) * 8192, 4096));
    std::vector<Request> gathered;
    for (size_t i = 0; i < 256; ++i) gathered.push_back(pair.read((255 - i) * 8192, i * 4096, 4096));
    const auto time_of = [&](const std::vector<Request>& requests) {
      const TimePoint start = in(Duration{});
      for (int i = 0; i < 10; ++i) CHECK(pair.reader.run(requests) == Code::ok);
      return seconds(in(Duration{}) - start) / 10;
    };
    const double whole = time_of({pair.read(0, 0, 1 << 20)});
    std::printf("spin %3.0f us 1 MiB: %.1f ms; 256 x 4 KiB scattered there %.2f of that speed, here %.2f\n",
                seconds(spin) * 1e6, whole * 1e3, whole / time_of(pieces), whole / time_of(gathered));
  }
}

namespace {

void limit(const char* netdev, uint32_t mbit) {
  set_netem(netdev, {.mbit_per_s = mbit});
}

/// One READ of everything, its checksum verified; MB/s.
double megabytes(Pair& pair, size_t bytes) {
  const TimePoint start = in(Duration{});
  Request request = pair.read(0, 0, bytes);
  request.crc32c = crc32c(pair.kv.bytes().first(bytes));
  CHECK(pair.reader.run({{request}}) == Code::ok);
  return static_cast<double>(bytes) / seconds(in(Duration{}) - start) / 1e6;
}

}  // namespace

TEST_CASE("rdma/speed: rate-limited paths" * doctest::skip()) {
  constexpr size_t kBytes = size_t{32} << 20;
  limit("v1", 80);
  limit("v3", 80);
  Pair one("rdma", kBytes, on("rxe1"), on("rxe0"));
  Pair two("rdma", kBytes, on("rxe1,rxe3"), on("rxe0,rxe2"));
  for (int round = 0; round < 3; ++round) {
    limit("v3", 80);
    const double single = megabytes(one, kBytes);
    const double both = megabytes(two, kBytes);
    limit("v3", 20);
    const double uneven = megabytes(two, kBytes);
    std::printf(
        "80 Mb/s: one path %.2f MB/s (%.2f of the link), two %.2f (%.2f times), 80 + 20 Mb/s %.2f (%.2f of the sum)\n",
        single, single / 10, both, both / single, uneven, uneven / 12.5);
  }
  end_netem("v1");
  end_netem("v3");
}

namespace {

/// The share of one read's time in which `netdev` sent nothing any more because its part was done.
struct Idle {
  double fast = 0, slow = 0;
};

/// A path that is not up yet carries nothing: reads go on until the slow one has carried data.
void wait_for_the_slow_path(Pair& pair) {
  constexpr uint64_t kCarried = 256 << 10;
  const uint64_t before = sent_bytes("v3");
  const TimePoint deadline = in(kLong);
  while (sent_bytes("v3") < before + kCarried) {
    REQUIRE_MESSAGE(in(Duration{}) < deadline, "the slow path carried nothing");
    (void)rate(pair, Op::read, 1 << 20, 4, 100ms);
  }
}

Idle idle_at_the_end(Pair& pair, size_t bytes) {
  struct Sender {
    std::string netdev;
    uint64_t before = sent_bytes(netdev), seen = before;
    TimePoint last = in(Duration{});
    void look() {
      constexpr uint64_t kPacket = 4096;  // of data; less is an acknowledgement
      const uint64_t now = sent_bytes(netdev);
      if (now < seen + kPacket) return;
      seen = now;
      last = in(Duration{});
    }
  } fast{.netdev = "v1"}, slow{.netdev = "v3"};
  const TimePoint start = in(Duration{});
  Request request = pair.read(0, 0, bytes);
  request.crc32c = crc32c(pair.kv.bytes().first(bytes));
  auto batch = pair.reader->submit({&request, 1}, start + kLong);
  REQUIRE_OK(batch);
  std::vector<Event> events;
  const auto done = [&] {
    return std::find_if(events.begin(), events.end(), [](const Event& e) { return e.kind == Event::Kind::batch_done; });
  };
  while (done() == events.end()) {
    pair.reader->poll(events, in(2ms));
    fast.look();
    slow.look();
  }
  REQUIRE(done()->code == Code::ok);
  REQUIRE(pair.reader->close(*batch, start + kLong).has_value());
  const TimePoint end = in(Duration{});
  for (const Sender* each : {&fast, &slow}) CHECK(each->seen - each->before > bytes / 50);
  std::printf("80 + 20 Mb/s: %.2f MB/s, %.2f of the bytes by the slow path\n",
              static_cast<double>(bytes) / seconds(end - start) / 1e6,
              static_cast<double>(slow.seen - slow.before) / static_cast<double>(bytes));
  return {seconds(end - fast.last) / seconds(end - start), seconds(end - slow.last) / seconds(end - start)};
}

}  // namespace

TEST_CASE("rdma/speed: late binding keeps two uneven paths busy to the end") {
  // 80 and 20 Mb/s. With half of the bytes bound to each path at the start, the fast one is idle for 0.75 of the time.
  // A busy host moves less than the links do, so its speed tells nothing.
  constexpr size_t kBytes = size_t{8} << 20;
  constexpr double kIdleMax = 0.4;
  limit("v1", 80);
  limit("v3", 20);
  Pair two("rdma", kBytes, on("rxe1,rxe3"), on("rxe0,rxe2"));
  wait_for_the_slow_path(two);
  Idle least = idle_at_the_end(two, kBytes);
  if (::mc::test::is_full() || std::max(least.fast, least.slow) >= kIdleMax) {  // a busy host: once more
    const Idle again = idle_at_the_end(two, kBytes);
    least = {std::min(least.fast, again.fast), std::min(least.slow, again.slow)};
  }
  end_netem("v1");
  end_netem("v3");
  std::printf("idle at the end: fast path %.2f, slow path %.2f of the time\n", least.fast, least.slow);
  CHECK(least.fast < kIdleMax);
  CHECK(least.slow < kIdleMax);
}

}  // namespace speed_test
