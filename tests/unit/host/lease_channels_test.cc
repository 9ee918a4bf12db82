// Lease messages between two data planes of this process over real transports. The machines are this test.
#include "host/lease_channels.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "base/fd.h"
#include "instances.h"
#include "test.h"

namespace lease_channels_test {

using namespace mc;
using namespace mc::host;

namespace {

const std::string kSecret(32, 's');

TimePoint clock_now() {
  return SystemClock::instance().now();
}

struct Side {
  mem::SharedBuffer pool;
  std::unique_ptr<DataPlane> plane;
  std::unique_ptr<LeaseChannels> leases;
  InstanceId instance;
  std::vector<node::Send> by_control;   // the channels' own: repeated messages
  std::vector<wire::Message> received;  // of the machine
  std::vector<node::LookedUp> answers;  // to its lookups

  Side(uint8_t id, const std::string& transport, LeaseBy by) : instance(test::instance_of_run(id)) {
    auto made = mem::SharedBuffer::create(1 << 20);
    REQUIRE_OK(made);
    pool = std::move(*made);
    xfer::Options options{.name = name(), .instance = instance, .transport = transport, .secret = kSecret};
    options.tcp_streams = 1;
    auto opened = DataPlane::open(options, pool);
    REQUIRE_OK(opened);
    plane = std::move(*opened);
    leases = std::make_unique<LeaseChannels>(*plane, by, [this](const node::Send& s) { by_control.push_back(s); });
  }
  std::string name() const { return "n" + std::to_string(instance.bytes[0]); }
  wire::Peer peer() const {
    wire::Peer out;
    out.name = name(), out.instance = instance, out.data = plane->describe();
    return out;
  }
  void know(const Side& other) {
    plane->set_peers({other.peer()});
    leases->on_peers();
  }
  void turn() {
    while (plane->next()) {
    }
    while (auto event = leases->next()) {
      if (const auto* answer = std::get_if<node::LookedUp>(&*event)) {
        answers.push_back(*answer);
        continue;
      }
      received.push_back(std::get<node::Received>(*event).message);
      // The next call would look at the clock, and a request that was not answered at once goes by control.
      if (std::holds_alternative<wire::LeaseRequest>(received.back())) return;
    }
  }
  /// True: by channel.
  bool send(const Side& to, wire::Message message) {
    return leases->send({to.name(), to.instance, std::move(message)});
  }
};

struct Pair {
  Side holder, reader;
  uint64_t lease = 0;

  Pair(const std::string& transport, LeaseBy holder_by, LeaseBy reader_by)
      : holder(1, transport, holder_by), reader(2, transport, reader_by) {
    holder.know(reader);
    reader.know(holder);
    turn_until([&] { return !reader.plane->transport(holder.instance).empty(); });
    turn_until([&] { return !holder.plane->transport(reader.instance).empty(); });
  }
  wire::LeaseRequest request() {
    wire::LeaseRequest out;
    out.lease = ++lease, out.hashes.resize(3);
    return out;
  }
  /// A grant of three blocks of this many layers.
  static wire::LeaseGrant grant(uint64_t number, size_t layers) {
    wire::LeaseGrant out;
    out.lease = number, out.ttl_ms = 1000;
    out.blocks.resize(3);
    for (auto& block : out.blocks) block.layer_crcs.assign(layers, 0x12345678);
    return out;
  }
  void turn() {
    holder.turn();
    reader.turn();
  }
  template <class Done>
  void turn_until(Done done) {
    const TimePoint end = clock_now() + 20s;
    for (;;) {
      turn();
      if (done()) return;
      REQUIRE(clock_now() < end);
      // Both sleep as the control loop does, so a wake-up that is missing shows as a call that takes its whole time.
      const TimePoint due = std::min({holder.leases->due(), reader.leases->due(), clock_now() + 200ms});
      const Duration rest = std::max<Duration>(due - clock_now(), 0ns);
      pollfd fds[] = {{holder.plane->event_fd(), POLLIN, 0}, {reader.plane->event_fd(), POLLIN, 0}};
      const timespec timeout{rest / 1s, (rest % 1s).count()};
      REQUIRE(::ppoll(fds, 2, &timeout, nullptr) >= 0);
    }
  }
  bool is_open() const { return reader.leases->channels().to_holders == 1; }
  void open() {
    CHECK_FALSE(reader.send(holder, request()));  // nobody waits for the channel
    turn_until([&] { return is_open() && holder.leases->channels().from_readers == 1; });
  }
};

template <class T>
const T* last(const Side& side) {
  return side.received.empty() ? nullptr : std::get_if<T>(&side.received.back());
}

}  // namespace

TEST_CASE("host/lease_channels: leases are requested, granted and released over each transport") {
  for (const std::string transport : {"shm", "tcp"}) {
    CAPTURE(transport);
    Pair p(transport, LeaseBy::automatic, LeaseBy::channel);
    p.open();
    for (int round = 0; round < 50; ++round) {
      const wire::LeaseRequest asked = p.request();
      REQUIRE(p.reader.send(p.holder, asked));
      p.turn_until([&] { return last<wire::LeaseRequest>(p.holder) != nullptr; });
      CHECK(*last<wire::LeaseRequest>(p.holder) == asked);
      const wire::LeaseGrant grant = Pair::grant(asked.lease, round % 2 == 0 ? 1 : 1000);
      REQUIRE(p.holder.send(p.reader, grant));
      p.turn_until([&] { return !p.reader.received.empty(); });
      CHECK(*last<wire::LeaseGrant>(p.reader) == grant);
      REQUIRE(p.reader.send(p.holder, wire::LeaseRelease{asked.lease}));
      p.turn_until([&] { return last<wire::LeaseRelease>(p.holder) != nullptr; });
      p.turn_until([&] { return p.reader.leases->carrier().idle(); });
      p.reader.received.clear(), p.holder.received.clear();
    }
    CHECK(p.reader.by_control.empty());
    CHECK(p.holder.leases->carrier().stats().served == 50);
    CHECK(p.reader.leases->carrier().stats().repeated == 0);
  }
}

TEST_CASE("host/lease_channels: lookups are answered from the holder's table, and its machine sees none of them") {
  std::vector<uint64_t> memory(kv::BlockTable::bytes_for(2000) / 8);
  kv::BlockTable table(std::as_writable_bytes(std::span(memory)), 1);
  std::vector<BlockHash> hashes(wire::kLookupBlocksMax);
  for (size_t i = 0; i < hashes.size(); ++i) {
    const std::array<uint64_t, 2> words{i * 0x9E3779B97F4A7C15 + 1, ~i};
    std::memcpy(hashes[i].bytes.data(), words.data(), sizeof words);
    if (i % 3 != 0) table.apply({.tier = i % 3 == 1 ? kv::Tier::host : kv::Tier::disk, .hash = hashes[i]});
  }
  for (const std::string transport : {"shm", "tcp"}) {
    CAPTURE(transport);
    Pair p(transport, LeaseBy::channel, LeaseBy::channel);
    p.holder.leases->carrier().answer_from(table);
    p.reader.leases->look_up({1, p.holder.name(), p.holder.instance, hashes});  // it opens the channel
    p.turn_until([&] { return p.is_open() && !p.reader.answers.empty(); });
    CHECK(p.reader.answers[0].code == Code::busy);
    p.reader.answers.clear();
    for (uint64_t round = 2; round < 30; ++round) {
      const size_t count = round % 2 == 0 ? hashes.size() : 1 + round % 7;
      p.reader.leases->look_up({round, p.holder.name(), p.holder.instance, {hashes.begin(), hashes.begin() + count}});
      p.turn_until([&] { return !p.reader.answers.empty(); });
      const node::LookedUp answer = p.reader.answers.back();
      CHECK(answer.lookup == round);
      REQUIRE(answer.code == Code::ok);
      REQUIRE(answer.held.size() == count);
      for (size_t i = 0; i < count; ++i) REQUIRE(answer.held[i] == static_cast<wire::HeldIn>(i % 3));
      p.reader.answers.clear();
    }
    CHECK(p.holder.received.empty());
    CHECK(p.holder.leases->carrier().stats().lookups_served == 28);
  }
}

TEST_CASE(
    "host/lease_channels: the table of a holder on this host is read in place, and the holder runs no code for it") {
  Pair p("shm", LeaseBy::channel, LeaseBy::channel);
  auto memory = mem::SharedBuffer::create(kv::BlockTable::bytes_for(100));
  REQUIRE_OK(memory);
  kv::BlockTable table(memory->bytes(), kv::table_epoch(p.holder.instance));
  xfer::Engine& engine = p.holder.plane->engine();
  const auto buffer =
      engine.register_buffer(*memory, {.name = std::string(kBlockTableBuffer), .access = xfer::AccessClass::blocks});
  REQUIRE_OK(buffer);
  xfer::Engine& reading = p.reader.plane->engine();
  const xfer::PeerId peer = p.reader.plane->peer_of(p.holder.instance);
  p.turn_until([&] { return reading.descriptor(peer)->find(kBlockTableBuffer) != nullptr; });
  std::vector<BlockHash> hashes(2);
  hashes[0].bytes[3] = 1, hashes[1].bytes[3] = 2;
  const auto look = [&] {
    p.reader.answers.clear();
    p.reader.leases->look_up({5, p.holder.name(), p.holder.instance, hashes});
    p.reader.turn();
    REQUIRE(p.reader.answers.size() == 1);
    CHECK(p.reader.answers[0].lookup == 5);
    CHECK(p.reader.answers[0].code == Code::ok);
    return p.reader.answers[0].held;
  };
  using Held = std::vector<wire::HeldIn>;
  CHECK(look() == Held{wire::HeldIn::none, wire::HeldIn::none});
  table.apply({.tier = kv::Tier::host, .hash = hashes[1]});
  CHECK(look() == Held{wire::HeldIn::none, wire::HeldIn::memory});
  table.apply({.tier = kv::Tier::disk, .hash = hashes[0]});
  CHECK(look() == Held{wire::HeldIn::disk, wire::HeldIn::memory});
  CHECK(p.reader.leases->tables_read() == 3);
  CHECK(p.reader.leases->carrier().stats().lookups_asked == 0);
  CHECK_FALSE(p.is_open());

  // Garbage in the table is no block, and costs a bounded time.
  std::ranges::fill(memory->bytes(), std::byte{0xff});
  CHECK(look() == Held{wire::HeldIn::none, wire::HeldIn::none});

  // A reader that is told of another peer list has no table of the holder any more.
  p.reader.plane->set_peers({});
  p.reader.leases->on_peers();
  p.reader.answers.clear();
  p.reader.leases->look_up({6, p.holder.name(), p.holder.instance, hashes});
  p.reader.turn();
  REQUIRE(p.reader.answers.size() == 1);
  CHECK(p.reader.answers[0].code == Code::busy);
  REQUIRE_OK(engine.unregister(*buffer, clock_now() + 10s));
}

TEST_CASE("host/lease_channels: a lookup whose holder is lost ends once, as a failure") {
  Pair p("shm", LeaseBy::channel, LeaseBy::channel);
  p.open();
  p.reader.leases->look_up({1, p.holder.name(), p.holder.instance, std::vector<BlockHash>(3)});
  p.reader.plane->set_peers({});
  p.reader.leases->on_peers();
  p.reader.turn();
  REQUIRE(p.reader.answers.size() == 1);
  CHECK(p.reader.answers[0].code == Code::peer_lost);
  CHECK(p.reader.leases->carrier().idle());
}

TEST_CASE("host/lease_channels: a grant too long for a slot goes by control, and the channel works on") {
  Pair p("shm", LeaseBy::automatic, LeaseBy::automatic);
  p.open();
  for (const size_t layers : {4000, 1}) {
    const wire::LeaseRequest asked = p.request();
    REQUIRE(p.reader.send(p.holder, asked));
    p.turn_until([&] { return last<wire::LeaseRequest>(p.holder) != nullptr; });
    CHECK(p.holder.send(p.reader, Pair::grant(asked.lease, layers)) == (layers == 1));
    p.turn_until([&] { return p.reader.leases->carrier().idle(); });
    p.holder.received.clear();
  }
  CHECK(p.holder.leases->carrier().stats().late == 1);
  wire::LeaseRequest longer = p.request();
  longer.hashes.resize(2000);
  CHECK_FALSE(p.reader.send(p.holder, longer));
  CHECK(p.is_open());
}

TEST_CASE("host/lease_channels: the mode decides which transports have channels") {
  struct Case {
    std::string transport;
    LeaseBy holder, reader;
  };
  for (const Case& none : {Case{"tcp", LeaseBy::channel, LeaseBy::automatic},   // its reads are not one-sided
                           Case{"shm", LeaseBy::channel, LeaseBy::control},     // nothing is asked
                           Case{"shm", LeaseBy::control, LeaseBy::channel}}) {  // the holder refuses
    CAPTURE(none.transport);
    Pair p(none.transport, none.holder, none.reader);
    const TimePoint end = clock_now() + 300ms;
    CHECK_FALSE(p.reader.send(p.holder, p.request()));
    p.turn_until([&] { return clock_now() > end; });
    CHECK_FALSE(p.is_open());
    CHECK_FALSE(p.reader.send(p.holder, p.request()));
    CHECK(p.holder.received.empty());
    CHECK(p.reader.leases->carrier().stats().by_control == 2);
  }
}

TEST_CASE("host/lease_channels: a reader that the holder's list lacks gets no channel") {
  Pair p("shm", LeaseBy::channel, LeaseBy::channel);
  p.holder.plane->set_peers({});
  p.holder.leases->on_peers();
  (void)p.reader.send(p.holder, p.request());
  const TimePoint end = clock_now() + 300ms;
  p.turn_until([&] { return clock_now() > end; });
  CHECK_FALSE(p.is_open());
  CHECK(p.holder.leases->channels().from_readers == 0);
  CHECK(p.holder.received.empty());
}

TEST_CASE(
    "host/lease_channels: a reader that asks for channels without end has one, and another that is being closed") {
  Pair p("shm", LeaseBy::channel, LeaseBy::channel);
  p.open();
  xfer::Engine& engine = p.reader.plane->engine();
  const xfer::PeerId holder = p.reader.plane->peer_of(p.holder.instance);
  const auto buffers = [&] { return engine.descriptor(holder)->buffers.size(); };
  CHECK(buffers() == 3);  // KV, and the two of the channel
  size_t most = 0;
  wire::RfpOpen asked{.geometry = wire::kLeaseGeometry, .pushed = 9};
  const TimePoint end = clock_now() + 1500ms;  // the holder accepts one more in this time
  while (clock_now() < end) {
    ++asked.epoch;
    asked.geometry.slots = asked.epoch % 2 == 0 ? wire::kLeaseGeometry.slots : 64;  // or of 3 MiB
    (void)engine.notify(holder, wire::encode(asked));
    (void)wait_fd(p.holder.plane->event_fd(), POLLIN, clock_now() + 5ms);
    p.turn();
    most = std::max(most, buffers());
    CHECK(p.holder.leases->channels().from_readers <= 1);
  }
  CHECK(most <= 5);
  p.turn_until([&] { return buffers() == 3; });
}

TEST_CASE("host/lease_channels: the requests that a lost holder had are repeated by control, once each") {
  for (const bool arrived : {false, true}) {
    CAPTURE(arrived);
    Pair p("shm", LeaseBy::channel, LeaseBy::channel);
    p.open();
    REQUIRE(p.reader.send(p.holder, p.request()));
    REQUIRE(p.reader.send(p.holder, p.request()));
    p.reader.by_control.clear();
    if (arrived) p.turn_until([&] { return p.holder.received.size() == 2; });
    p.holder.leases.reset();
    p.holder.plane.reset();
    const TimePoint end = clock_now() + 20s;
    while (p.reader.by_control.size() < 2 && clock_now() < end) {
      REQUIRE_OK(wait_fd(p.reader.plane->event_fd(), POLLIN, clock_now() + 50ms));
      p.reader.turn();
    }
    REQUIRE(p.reader.by_control.size() == 2);
    for (size_t i = 0; i < 2; ++i) CHECK(std::get<wire::LeaseRequest>(p.reader.by_control[i].message).lease == 2 + i);
    CHECK_FALSE(p.is_open());
    CHECK(p.reader.leases->carrier().idle());
    CHECK_FALSE(p.reader.send(p.holder, p.request()));
  }
}

TEST_CASE("host/lease_channels: a holder that stands still costs a call its time, and then the way is control") {
  Pair p("shm", LeaseBy::channel, LeaseBy::channel);
  p.open();
  const TimePoint began = clock_now();
  REQUIRE(p.reader.send(p.holder, p.request()));
  while (p.reader.by_control.empty()) {  // the holder's loop makes no turn
    REQUIRE(clock_now() - began < 20s);
    (void)wait_fd(p.reader.plane->event_fd(), POLLIN, clock_now() + 50ms);
    p.reader.turn();
  }
  CHECK(clock_now() - began >= 2s);
  CHECK_FALSE(p.is_open());
  // The holder goes on: it serves the late request, and its answer reaches nobody.
  p.turn_until([&] { return last<wire::LeaseRequest>(p.holder) != nullptr; });
  (void)p.holder.send(p.reader, Pair::grant(2, 1));
  for (int i = 0; i < 10; ++i) p.turn();
  CHECK(p.reader.received.empty());
  CHECK(p.holder.leases->carrier().idle());
}

}  // namespace lease_channels_test
