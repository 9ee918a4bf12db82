// Faults of a fabric, made on the links of scripts/rdma-vm: cut, silent, lossy, with another
// MTU or other addresses; and memory, leases and peers that go away under a reader. No batch may fail
// for a fault that another path survives, and no wrong byte may ever pass for a right one.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>
#include <vector>

#include "base/hash.h"
#include "machine.h"

namespace fault_test {

using namespace mc;
using namespace mc::xfer;
using namespace mc::xfer::test;

namespace {

double ms(Duration d) {
  return std::chrono::duration<double, std::milli>(d).count();
}

uint64_t path_failures(Node& node) {
  return failures(node, "rdma: port down") + failures(node, "rdma: path fault");
}

/// A batch watched until it is done, with a fault in its middle.
struct Watched {
  Event done;
  // From the fault until the path was given up. Zero: the batch was done before, because the reader had no processor
  // while its bytes arrived, and looked at them when all were there. Such a round is made again.
  Duration detected{};
  Duration stall{};  // the longest time without a byte after the fault
};

/// `fault` returns the moment it took effect; it is done once `after` bytes of the batch have arrived.
template <class Fault>
Watched watch(Node& reader, BatchId batch, uint64_t bytes_before, uint64_t after, Fault fault) {
  Watched seen;
  TimePoint cut = kNever, moved{};
  uint64_t last = 0;
  const uint64_t known = path_failures(reader);
  const TimePoint limit = in(kLong);
  for (bool open = true; open && in(Duration{}) < limit;) {
    open = reader->results(batch).empty();
    const TimePoint now = in(Duration{});
    const uint64_t bytes = read_bytes(reader) - bytes_before;
    if (cut != kNever && moved != TimePoint{}) seen.stall = std::max(seen.stall, now - std::max(moved, cut));
    if (bytes != last || moved == TimePoint{}) {
      last = bytes;
      moved = now;
    }
    if (cut == kNever && bytes >= after)
      cut = fault();
    else if (cut != kNever && seen.detected == Duration{} && path_failures(reader) > known)
      seen.detected = now - cut;
    if (open) (void)reader->poll(reader.seen, in(500us));
  }
  seen.done = reader.done(batch);
  CHECK(cut != kNever);  // it was in mid-batch
  return seen;
}

/// The smallest value that at least `share` of the values do not exceed: of two values, the smaller one for 0.5 and the
/// larger one for 0.75.
Duration quantile(std::vector<Duration> values, double share) {
  std::sort(values.begin(), values.end());
  const auto rank = static_cast<size_t>(std::ceil(share * static_cast<double>(values.size())));
  return values[std::max<size_t>(rank, 1) - 1];
}

}  // namespace

TEST_CASE("rdma/xfer: a link that is cut in mid-batch fails no batch and no byte, and comes back into use") {
  const size_t kBytes = count<size_t>(4, 8) << 20;
  Options reader = reader_options();
  reader.slice_bytes_max = reader.slice_bytes_min;  // bytes are seen as slices: a fine clock for the stall
  RdmaPair pair(kBytes, holder_options(), reader);
  const uint32_t sum = crc32c(pair.kv.bytes());
  std::vector<Duration> stalls;
  Duration slowest{};
  const size_t rounds = count(2, 100);
  for (size_t round = 0; stalls.size() < rounds; ++round) {
    CAPTURE(round);
    REQUIRE(round < 3 * rounds);
    const char* cut = round % 2 == 0 ? "v0" : "v3";  // the reader's end, or the holder's
    const std::string sender = round % 2 == 0 ? "v1" : "v3";
    std::fill(pair.local.bytes().begin(), pair.local.bytes().end(), std::byte{0});
    Request request = pair.read(0, 0, kBytes);
    request.crc32c = sum;
    const uint64_t before = read_bytes(pair.reader);
    auto batch = pair.reader->submit({&request, 1}, in(kLong));
    REQUIRE_OK(batch);
    const Watched seen = watch(pair.reader, *batch, before, kBytes / 8, [&] { return set_link(cut, false); });
    CHECK_MESSAGE(seen.done.code == Code::ok, seen.done.text);
    CHECK(equal(pair.local.bytes(), pair.kv.bytes()));
    CHECK(pair.reader->close(*batch, in(kLong)).has_value());
    if (seen.detected > Duration{}) stalls.push_back(seen.stall - std::min(seen.stall, seen.detected));
    slowest = std::max(slowest, seen.detected);
    set_link(cut, true);
    // the path is dialled again by itself, and carries
    CHECK(carries(sender, size_t{1} << 17, [&] { (void)pair.reader.run({{pair.read(0, 0, kBytes)}}); }));
  }
  const Duration median = quantile(stalls, 0.5), slow = quantile(stalls, 0.75), worst = quantile(stalls, 1);
  std::printf("%zu cuts: detected within %.1f ms; stall beyond detection: median %.1f ms, 3/4 within %.1f ms, "
              "worst %.1f ms\n",
              stalls.size(), ms(slowest), ms(median), ms(slow), ms(worst));
  // An engine that waits in the kernel for a dead queue pair stalls for 3 s at every second cut, so half of the stalls
  // would exceed this bound. Of two stalls neither may. Of many the worst quarter may: an emulated machine that shares
  // its host loses seconds now and then (2 s at a load of 10 per core).
  CHECK(slow <= 2500ms);
  // Many cuts have a median that is not an accident of the host.
  if (::mc::test::is_full()) CHECK(median <= 50ms);
  CHECK(pair.reader->counters().batches_failed == 0);
  CHECK(pair.reader->counters().peers_lost == 0);
}

TEST_CASE("rdma/xfer: a path that falls silent is given up after its retries, and the other one finishes the batch") {
  const size_t kBytes = count<size_t>(6, 12) << 20;
  Options reader = reader_options();
  reader.rdma_timeout = 14;
  reader.rdma_retry = 3;
  // no port event tells of it: the NIC has to try 1 + retry times, 4.096 us x 2^timeout each
  const Duration detection = Duration(4096ns) * (1 << reader.rdma_timeout) * (1 + reader.rdma_retry);
  std::vector<Duration> stalls;
  Duration slowest{};
  const size_t rounds = count(1, 20);
  for (size_t round = 0; stalls.size() < rounds; ++round) {
    CAPTURE(round);
    REQUIRE(round < 3 * rounds);
    Netem first("v1", {.mbit_per_s = 80}), second("v3", {.mbit_per_s = 80});  // 0.3 s for 6 MiB
    RdmaPair pair(kBytes, holder_options(), reader);
    Request request = pair.read(0, 0, kBytes);
    request.crc32c = crc32c(pair.kv.bytes());
    auto batch = pair.reader->submit({&request, 1}, in(kLong));
    REQUIRE_OK(batch);
    const Watched seen = watch(pair.reader, *batch, 0, kBytes / 8, [&] {
      set_netem("v1", {.loss = 1, .mbit_per_s = 80});
      return in(Duration{});
    });
    CHECK_MESSAGE(seen.done.code == Code::ok, seen.done.text);
    CHECK(equal(pair.local.bytes(), pair.kv.bytes()));
    CHECK(pair.reader->close(*batch, in(kLong)).has_value());
    CHECK(seen.detected < 15s);  // 1.3 s seen at a load of 10 per core
    if (seen.detected > Duration{}) stalls.push_back(seen.stall - std::min(seen.stall, seen.detected));
    slowest = std::max(slowest, seen.detected);
    CHECK(pair.reader->counters().batches_failed == 0);
    CHECK(pair.reader->counters().peers_lost == 0);
  }
  std::printf("%zu silent paths: detected within %.1f ms (%.1f by option); stall beyond detection: median %.1f ms\n",
              stalls.size(), ms(slowest), ms(detection), ms(quantile(stalls, 0.5)));
  CHECK(quantile(stalls, 0.5) <= 15s);  // 0 where nothing else runs, 1.1 s seen at a load of 25 per core
}

TEST_CASE(
    "rdma/xfer: with every path cut the connection is lost in bounded time, and work resumes when a link is back") {
  Options reader = reader_options("rxe0");
  reader.rdma_blackout = 500ms;
  reader.reconnect_timeout = 100ms;
  RdmaPair pair(size_t{4} << 20, holder_options("rxe1"), reader);
  set_link("v0", false);
  auto batch = pair.reader->submit(std::vector{pair.read(0, 0, size_t{4} << 20)}, in(kLong));
  REQUIRE_OK(batch);
  pair.reader.wait(Event::Kind::peer_lost);
  set_link("v0", true);
  const Event done = pair.reader.done(*batch);
  CHECK_MESSAGE(done.code == Code::ok, done.text);
  CHECK(equal(pair.local.bytes(), pair.kv.bytes()));
  CHECK(pair.reader->close(*batch, in(kLong)).has_value());
}

TEST_CASE("rdma/xfer: a peer that restarted under its name is refused by its instance") {
  Options options = holder_options();
  options.rdma_bind = "127.0.0.1:17911";  // below the ports that the kernel gives to connections
  Node reader("reader", "rdma", reader_options());
  std::vector<std::byte> old;
  {
    Node first("holder", "rdma", options);
    old = first->describe();
    auto peer = reader->connect(old, in(kLong));
    REQUIRE_OK(peer);
    reader.wait(Event::Kind::peer_up);
  }
  CHECK(reader.wait(Event::Kind::peer_lost).gone);
  Node second("holder", "rdma", options);
  auto again = reader->connect(old, in(kLong));
  REQUIRE_OK(again);
  const Event lost = reader.wait(Event::Kind::peer_lost);
  CHECK(lost.gone);
  auto fresh = reader->connect(second->describe(), in(kLong));
  REQUIRE_OK(fresh);
  reader.wait(Event::Kind::peer_up);
}

TEST_CASE("rdma/xfer: a region deregistered under a reader fails its requests cleanly, and only those") {
  const size_t kBytes = count<size_t>(8, 16) << 20;
  RdmaPair pair(kBytes, holder_options("rxe1"), reader_options("rxe0"));
  // Several seconds for all of it: no scheduler of a busy host lets it end before the region is gone.
  std::optional<Netem> slow;
  slow.emplace("v1", NetemPlan{.mbit_per_s = 16});
  auto other = mem::HostBuffer::allocate(1 << 20);
  REQUIRE_OK(other);
  fill(other->bytes(), 99);
  auto other_id = pair.holder->register_buffer(other->bytes(), {"other", AccessClass::blocks});
  REQUIRE_OK(other_id);
  while (pair.reader->descriptor(pair.peer)->find("other") == nullptr) pair.reader.wait(Event::Kind::peer_changed);
  auto batch = pair.reader->submit(std::vector{pair.read(0, 0, kBytes)}, in(kLong));
  REQUIRE_OK(batch);
  REQUIRE(until([&] { return read_bytes(pair.reader) > size_t{1} << 20; }));
  CHECK(pair.holder->unregister(BufferId{pair.kv_id}, in(kLong)).has_value());
  const Event done = pair.reader.done(*batch);
  CHECK_MESSAGE(done.code == Code::not_found, done.text);
  CHECK(pair.reader->close(*batch, in(kLong)).has_value());
  slow.reset();
  Request request = pair.read(0, 0, 1 << 20);
  request.buffer = static_cast<uint32_t>(*other_id);
  std::string text;
  CHECK_MESSAGE(pair.reader.run({{request}}, nullptr, &text) == Code::ok, text);
  CHECK(equal(request.local, other->bytes()));
  CHECK(pair.reader->counters().peers_lost == 0);
  pair.reader.engine.reset();
  pair.holder.engine.reset();
}

TEST_CASE(
    "rdma/xfer: what a holder puts where a lease has ended is not read by a slow reader, and not taken for a block") {
  constexpr size_t kBytes = size_t{4} << 20;
  for (const bool revoked : {true, false}) {
    CAPTURE(revoked);
    RdmaPair pair(kBytes, holder_options("rxe1"), reader_options("rxe0"));
    Request request = pair.read(0, 0, kBytes);
    request.crc32c = crc32c(pair.kv.bytes());
    Netem slow("v1", {.mbit_per_s = 16});  // 2 s for all of it
    auto batch = pair.reader->submit({&request, 1}, in(kLong));
    REQUIRE_OK(batch);
    REQUIRE(until([&] { return read_bytes(pair.reader) > kBytes / 8; }));
    // the lease is over: an honest holder that trusts its peers reuses the page at once, one that does
    // not takes the registration away first, and need not wait for the reader
    const TimePoint over = in(Duration{});
    if (revoked) CHECK(pair.holder->unregister(BufferId{pair.kv_id}, in(kLong)).has_value());
    CHECK(in(Duration{}) - over < 15s);
    std::fill(pair.kv.bytes().begin(), pair.kv.bytes().end(), std::byte{0xEE});
    const Event done = pair.reader.done(*batch);
    CHECK_MESSAGE(done.code == (revoked ? Code::not_found : Code::corrupt), done.text);
    CHECK(pair.reader->close(*batch, in(kLong)).has_value());
    const std::vector<std::byte> next(4096, std::byte{0xEE});
    const auto& local = pair.local.bytes();
    const bool leaked = std::search(local.begin(), local.end(), next.begin(), next.end()) != local.end();
    CHECK(leaked == !revoked);
  }
}

TEST_CASE("rdma/xfer: ports of different MTU agree on the smaller one") {
  constexpr size_t kBytes = size_t{1} << 20;
  for (const std::string netdev : {"v1", "v0"}) {  // the holder's port, the reader's
    CAPTURE(netdev);
    const Restored small([&] { set_mtu(netdev, 1500); }, [&] { set_mtu(netdev, 4200); });
    RdmaPair pair(kBytes, holder_options("rxe1"), reader_options("rxe0"));
    const uint64_t before = sent("v1", "packets");
    CHECK(pair.reader.run({{pair.read(0, 0, kBytes)}}) == Code::ok);
    CHECK(equal(pair.local.bytes(), pair.kv.bytes()));
    CHECK(sent("v1", "packets") - before >= kBytes / 1024);
    CHECK(pair.reader.run({{pair.write(0, 0, kBytes)}}) == Code::ok);
    CHECK(equal(pair.landing.bytes(), pair.local.bytes()));
  }
  RdmaPair pair(kBytes, holder_options("rxe1"), reader_options("rxe0"));
  const uint64_t before = sent("v1", "packets");
  CHECK(pair.reader.run({{pair.read(0, 0, kBytes)}}) == Code::ok);
  CHECK(sent("v1", "packets") - before < kBytes / 2048);
}

TEST_CASE("rdma/xfer: extra addresses, of other subnets or gone again, do not mislead") {
  set_address("v0", "10.77.0.1", true);
  const Address more("v0", "172.31.0.1", true), of_peer("v1", "10.99.0.5", true), last("v1", "192.168.50.2", true);
  set_address("v0", "10.77.0.1", false);
  RdmaPair pair(size_t{1} << 20, holder_options("rxe1"), reader_options("rxe0"));
  CHECK(pair.reader.run({{pair.read(0, 0, size_t{1} << 20)}}) == Code::ok);
  CHECK(equal(pair.local.bytes(), pair.kv.bytes()));
}

TEST_CASE("rdma/xfer: a wrong address chosen by option is reported when dialling, not at the first transfer") {
  Options options = reader_options("rxe0");
  options.rdma_gid_index = 0;  // link-local
  Options other = holder_options("rxe1");
  other.rdma_gid_index = 1;  // IPv4
  Node holder("holder", "rdma", other);
  Node reader("reader", "rdma", options);
  auto peer = reader->connect(holder->describe(), in(3s));
  REQUIRE_OK(peer);
  const Event lost = reader.wait(Event::Kind::peer_lost);
  CHECK_MESSAGE(lost.text.find("addresses that fit") != std::string::npos, lost.text);
}

TEST_CASE("rdma/xfer: a path that drops packets is slow, not wrong") {
  const auto losses = ::mc::test::is_full() ? std::vector{0.001, 0.01} : std::vector{0.01};
  for (const double loss : losses) {
    const Netem lossy("v1", {.loss = loss});
    RdmaPair pair(size_t{4} << 20, holder_options("rxe1"), reader_options("rxe0"));
    Request request = pair.read(0, 0, size_t{4} << 20);
    request.crc32c = crc32c(pair.kv.bytes());
    // 4 MiB are a thousand packets: at 0.1 % one read in three would lose none.
    int reads = 0;
    for (; reads < count(1, 20) || (dropped("v1") == 0 && reads < 100); ++reads) {
      std::string text;
      CHECK_MESSAGE(pair.reader.run({{request}}, nullptr, &text) == Code::ok, text);
      CHECK(equal(pair.local.bytes(), pair.kv.bytes()));
    }
    CHECK(dropped("v1") > 0);
  }
}

TEST_CASE("rdma/xfer: connecting and disconnecting leaves nothing behind") {
  auto memory = mem::HostBuffer::allocate(1 << 20);
  REQUIRE_OK(memory);
  Node holder("holder", "rdma", holder_options());
  Node reader("reader", "rdma", reader_options());
  REQUIRE_OK(holder->register_buffer(memory->bytes(), {"kv", AccessClass::blocks}));
  const auto once = [&] {
    auto peer = reader->connect(holder->describe(), in(kLong));
    REQUIRE_OK(peer);
    reader.wait(Event::Kind::peer_up);
    holder.wait(Event::Kind::peer_up);
    reader->disconnect(*peer);
    holder.wait(Event::Kind::peer_lost);
    reader.seen.clear();
    holder.seen.clear();
  };
  once();
  const Held before = resources_settled();
  const int repeats = count(10, 10000);
  for (int i = 0; i < repeats; ++i) once();
  CHECK(resources_become(before));
  reader.engine.reset();
  holder.engine.reset();
}

}  // namespace fault_test
