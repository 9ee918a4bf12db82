// The rdma transport on real verbs: soft-RoCE devices of scripts/rdma-vm, rxe0-rxe1 and rxe2-rxe3, each
// pair with a subnet of its own. The holder owns rxe1 and rxe3, the reader rxe0 and rxe2.
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <vector>

#include "base/fd.h"
#include "base/hash.h"
#include "base/rng.h"
#include "unit/xfer/pair.h"

using namespace mc;
using namespace mc::xfer;
using namespace mc::xfer::test;

namespace {

Options holder_options(const std::string& devices = "rxe1,rxe3") {
  Options options;
  options.rdma_devices = devices;
  options.rdma_cooldown_min = 100ms;
  options.rdma_cooldown_max = 1s;
  options.rdma_timeout = 16;  // 4 x 268 ms: the machine is emulated and shared
  return options;
}

Options reader_options(const std::string& devices = "rxe0,rxe2") {
  return holder_options(devices);
}

struct RdmaPair : Pair {
  explicit RdmaPair(size_t bytes = kDefaultBytes, const Options& holder = holder_options(),
                    const Options& reader = reader_options())
      : Pair("rdma", bytes, holder, reader) {}
};

/// MC_RDMA_FULL in the environment: as many as the issue asks for.
int rounds(int full, int quick) {
  return std::getenv("MC_RDMA_FULL") != nullptr ? full : quick;
}

void shell(const std::string& command) {
  const int rc = std::system(command.c_str());
  CHECK_MESSAGE(rc == 0, command);
}

void link(const std::string& netdev, bool up) {
  shell("ip link set dev " + netdev + (up ? " up" : " down"));
}

/// A change of the machine that ends with the scope.
struct Restored {
  std::string undo;
  Restored(const std::string& change, std::string back) : undo(std::move(back)) { shell(change); }
  ~Restored() { shell(undo); }
};

uint64_t sent_bytes(const std::string& netdev) {
  std::ifstream file("/sys/class/net/" + netdev + "/statistics/tx_bytes");
  uint64_t bytes = 0;
  file >> bytes;
  return bytes;
}

uint64_t read_bytes(Node& node) {
  uint64_t bytes = 0;
  for (const auto& flow : node->counters().flows) bytes += flow.read_bytes;
  return bytes;
}

/// Looks again until it holds; false after kLong. Yields by waiting for an event that nobody sends.
template <class Holds>
bool until(Holds holds) {
  auto never = EventFd::open();
  REQUIRE_OK(never);
  const TimePoint deadline = in(kLong);
  while (!holds()) {
    if (in(Duration{}) > deadline) return false;
    (void)never->wait(in(1ms));
  }
  return true;
}

/// What this process holds of devices and descriptors.
std::string resources() {
  std::string text;
  FILE* pipe = ::popen("rdma resource show; ls /proc/$PPID/fd | wc -l", "r");
  REQUIRE(pipe != nullptr);
  char line[256];
  while (std::fgets(line, sizeof line, pipe) != nullptr) text += line;
  ::pclose(pipe);
  return text;
}

}  // namespace

TEST_CASE("rdma/xfer: reads and writes of any size and place arrive intact, with their checksum") {
  RdmaPair pair(size_t{8} << 20);
  CHECK(pair.reader->transport(pair.peer) == "rdma");
  Rng rng(::mc::test::seed());
  for (int round = 0; round < 15; ++round) {
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
  for (int round = 0; round < 15; ++round) {
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
  RdmaPair pair(size_t{8} << 20);
  const uint64_t first = sent_bytes("v1"), second = sent_bytes("v3");
  CHECK(pair.reader.run({{pair.read(0, 0, size_t{8} << 20)}}) == Code::ok);
  CHECK(sent_bytes("v1") - first > size_t{1} << 20);
  CHECK(sent_bytes("v3") - second > size_t{1} << 20);
}

TEST_CASE("rdma/xfer: a link that is cut in mid-batch fails no batch and no byte, and comes back into use") {
  constexpr size_t kBytes = size_t{16} << 20;
  RdmaPair pair(kBytes);
  for (int round = 0; round < rounds(100, 4); ++round) {
    const std::string cut = round % 2 == 0 ? "v0" : "v3";
    const std::string sender = round % 2 == 0 ? "v1" : "v3";
    std::fill(pair.local.bytes().begin(), pair.local.bytes().end(), std::byte{0});
    Request request = pair.read(0, 0, kBytes);
    request.crc32c = crc32c(pair.kv.bytes());
    const uint64_t before = read_bytes(pair.reader);
    auto batch = pair.reader->submit({&request, 1}, in(kLong));
    REQUIRE_OK(batch);
    REQUIRE(until([&] { return read_bytes(pair.reader) > before + kBytes / 8; }));
    link(cut, false);
    const Event done = pair.reader.done(*batch);
    CHECK_MESSAGE(done.code == Code::ok, done.text);
    CHECK(equal(pair.local.bytes(), pair.kv.bytes()));
    CHECK(pair.reader->close(*batch, in(kLong)).has_value());
    link(cut, true);
    // the path is dialled again by itself, and carries
    const uint64_t sent = sent_bytes(sender);
    CHECK(until([&] {
      (void)pair.reader.run({{pair.read(0, 0, size_t{2} << 20)}});
      return sent_bytes(sender) > sent + (size_t{1} << 19);
    }));
  }
  CHECK(pair.reader->counters().batches_failed == 0);
  CHECK(pair.reader->counters().peers_lost == 0);
}

TEST_CASE(
    "rdma/xfer: with every path cut the connection is lost in bounded time, and work resumes when a link is back") {
  Options reader = reader_options("rxe0");
  reader.rdma_blackout = 500ms;
  reader.reconnect_timeout = 100ms;
  RdmaPair pair(size_t{4} << 20, holder_options("rxe1"), reader);
  link("v0", false);
  auto batch = pair.reader->submit(std::vector{pair.read(0, 0, size_t{4} << 20)}, in(kLong));
  REQUIRE_OK(batch);
  pair.reader.wait(Event::Kind::peer_lost);
  link("v0", true);
  const Event done = pair.reader.done(*batch);
  CHECK_MESSAGE(done.code == Code::ok, done.text);
  CHECK(equal(pair.local.bytes(), pair.kv.bytes()));
  CHECK(pair.reader->close(*batch, in(kLong)).has_value());
}

TEST_CASE("rdma/xfer: a peer that restarted under its name is refused by its instance") {
  Options options = holder_options();
  options.rdma_bind = "127.0.0.1:47911";
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
  RdmaPair pair(size_t{16} << 20);
  auto other = mem::HostBuffer::allocate(1 << 20);
  REQUIRE_OK(other);
  fill(other->bytes(), 99);
  auto other_id = pair.holder->register_buffer(other->bytes(), {"other", AccessClass::blocks});
  REQUIRE_OK(other_id);
  while (pair.reader->descriptor(pair.peer)->find("other") == nullptr) pair.reader.wait(Event::Kind::peer_changed);
  auto batch = pair.reader->submit(std::vector{pair.read(0, 0, size_t{16} << 20)}, in(kLong));
  REQUIRE_OK(batch);
  REQUIRE(until([&] { return read_bytes(pair.reader) > size_t{1} << 20; }));
  CHECK(pair.holder->unregister(BufferId{pair.kv_id}, in(kLong)).has_value());
  const Event done = pair.reader.done(*batch);
  CHECK_MESSAGE(done.code == Code::not_found, done.text);
  CHECK(pair.reader->close(*batch, in(kLong)).has_value());
  Request request = pair.read(0, 0, 1 << 20);
  request.buffer = static_cast<uint32_t>(*other_id);
  std::string text;
  CHECK_MESSAGE(pair.reader.run({{request}}, nullptr, &text) == Code::ok, text);
  CHECK(equal(request.local, other->bytes()));
  CHECK(pair.reader->counters().peers_lost == 0);
  pair.reader.engine.reset();
  pair.holder.engine.reset();
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
  Request beyond = pair.read(0, Pair::kDefaultBytes - 4096, 8192);
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
    CHECK(std::all_of(rest.begin(), rest.end(), [](std::byte each) { return each == std::byte{0}; }));
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
  say(pair.reader, pair.peer, 2000);
  say(pair.holder, back, 500);
  hear(pair.holder, 2000);
  hear(pair.reader, 500);
}

TEST_CASE("rdma/xfer: ports of different MTU agree on the smaller one") {
  Restored small("ip link set dev v1 mtu 1500", "ip link set dev v1 mtu 4200");
  RdmaPair pair(size_t{4} << 20, holder_options("rxe1"), reader_options("rxe0"));
  CHECK(pair.reader.run({{pair.read(0, 0, size_t{4} << 20)}}) == Code::ok);
  CHECK(equal(pair.local.bytes(), pair.kv.bytes()));
  CHECK(pair.reader.run({{pair.write(0, 0, size_t{4} << 20)}}) == Code::ok);
  CHECK(equal(pair.landing.bytes(), pair.local.bytes()));
}

TEST_CASE("rdma/xfer: extra addresses, of other subnets or gone again, do not mislead") {
  shell("ip addr add 10.77.0.1/24 dev v0");
  Restored more(
      "ip addr add 172.31.0.1/24 dev v0; ip addr add 10.99.0.5/24 dev v1; ip addr add 192.168.50.2/24 dev v1",
      "ip addr del 172.31.0.1/24 dev v0; ip addr del 10.99.0.5/24 dev v1; ip addr del 192.168.50.2/24 dev v1");
  shell("ip addr del 10.77.0.1/24 dev v0");
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
  for (const char* loss : {"0.1%", "1%"}) {
    Restored lossy("tc qdisc add dev v1 root netem limit 4000 loss " + std::string(loss), "tc qdisc del dev v1 root");
    RdmaPair pair(size_t{4} << 20, holder_options("rxe1"), reader_options("rxe0"));
    Request request = pair.read(0, 0, size_t{4} << 20);
    request.crc32c = crc32c(pair.kv.bytes());
    std::string text;
    CHECK_MESSAGE(pair.reader.run({{request}}, nullptr, &text) == Code::ok, text);
    CHECK(equal(pair.local.bytes(), pair.kv.bytes()));
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
  const std::string before = resources();
  const int repeats = rounds(10000, 50);
  for (int i = 0; i < repeats; ++i) once();
  CHECK(resources() == before);
  reader.engine.reset();
  holder.engine.reset();
}
