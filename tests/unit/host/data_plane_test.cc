// Two data planes of one process over real sockets: what the machines ask for is what the engine is told.
#include "host/data_plane.h"

#include <poll.h>

#include "base/fd.h"
#include "base/hash.h"
#include "host/loop.h"
#include "instances.h"
#include "test.h"

using namespace mc;
using namespace mc::host;

namespace {

constexpr size_t kPool = size_t{64} << 20;
constexpr uint32_t kPage = uint32_t{1} << 20;

struct Plane {
  mem::SharedBuffer pool;
  std::unique_ptr<DataPlane> plane;
  InstanceId instance;
  explicit Plane(uint8_t id, const std::string& transport = "tcp") : instance(test::instance_of_run(id)) {
    auto made = mem::SharedBuffer::create(kPool);
    REQUIRE_OK(made);
    pool = std::move(*made);
    xfer::Options options{.name = "n" + std::to_string(id), .instance = instance, .transport = transport};
    options.tcp_streams = 1;
    options.insecure = true;
    auto opened = DataPlane::open(options, pool);
    REQUIRE_OK(opened);
    plane = std::move(*opened);
  }
  wire::Peer peer() const {
    wire::Peer out;
    out.name = "n" + std::to_string(instance.bytes[0]);
    out.instance = instance;
    out.data = plane->describe();
    return out;
  }
  node::ReadDone next_done() {
    const TimePoint end = SystemClock::instance().now() + 20s;
    for (;;) {
      while (auto event = plane->next())
        if (const auto* done = std::get_if<node::ReadDone>(&*event)) return *done;
      REQUIRE_OK(wait_fd(plane->event_fd(), POLLIN, end));
    }
  }
};

/// The next news of a link, within 20 s.
node::DataLink next_link(Plane& at) {
  const TimePoint end = SystemClock::instance().now() + 20s;
  for (;;) {
    while (auto event = at.plane->next())
      if (const auto* link = std::get_if<node::DataLink>(&*event)) return *link;
    REQUIRE(SystemClock::instance().now() < end);
    (void)wait_fd(at.plane->event_fd(), POLLIN, SystemClock::instance().now() + 50ms);
  }
}

/// A machine that wants nothing: the tasks of the test ask for what happens.
struct Silent final : node::Machine {
  void handle(const node::Event& /*event*/, TimePoint /*now*/, node::Actions& /*out*/) override {}
  TimePoint next_wakeup() const override { return kNever; }
  void check() const override {}
  bool idle() const override { return true; }
};

}  // namespace

TEST_CASE("host/data_plane: an urgent read overtakes the one that was asked for before, and both bytes are right") {
  Plane holder(1), reader(2);
  for (size_t i = 0; i < kPool; i += 4096) holder.pool.bytes()[i] = static_cast<std::byte>(i >> 12);
  holder.plane->set_peers({reader.peer()});
  reader.plane->set_peers({holder.peer()});
  const auto read_of = [&](uint64_t id, uint32_t first, uint32_t pages, bool urgent) {
    node::Read read;
    read.read = id;
    read.peer = "n1";
    read.instance = holder.instance;
    read.budget = 20s;
    read.urgent = urgent;
    for (uint32_t page = first; page < first + pages; ++page)
      read.slices.push_back({page, 0, uint64_t{page} * kPage, kPage,
                             crc32c(std::as_const(holder.pool).bytes().subspan(size_t{page} * kPage, kPage))});
    return read;
  };
  const auto place = [](uint32_t /*pool*/, uint32_t page) { return uint64_t{page} * kPage; };
  // A machine that takes the processor away between the two calls lets the first read end before the second is asked
  // for. Only rounds whose calls lay close together say which read overtook.
  uint64_t rounds = 0, close_rounds = 0;
  while (close_rounds < 2) {
    REQUIRE(++rounds <= 100);
    const node::Read bulk = read_of(10 * rounds + 1, 1, 63, false), urgent = read_of(10 * rounds + 2, 0, 1, true);
    const TimePoint asked = SystemClock::instance().now();
    reader.plane->read(bulk, place);
    reader.plane->read(urgent, place);
    const bool close = SystemClock::instance().now() - asked < 1ms;
    const node::ReadDone first = reader.next_done(), second = reader.next_done();
    CHECK(first.code == Code::ok);
    CHECK(second.code == Code::ok);
    if (!close) continue;
    ++close_rounds;
    CHECK(first.read == urgent.read);
  }
  CHECK(std::equal(reader.pool.bytes().begin(), reader.pool.bytes().end(), holder.pool.bytes().begin()));
  const xfer::Counters counters = reader.plane->counters();
  CHECK(counters.urgent_bytes == rounds * kPage);
  CHECK(counters.bulk_bytes == rounds * 63 * uint64_t{kPage});
  CHECK(reader.plane->peers_by_transport() == std::map<std::string, size_t>{{"tcp", 1}});
}

/// One round of the test below. False if the connection was up before the caller's frame was gone, which a machine that
/// takes the processor away in between can bring about: such a round says nothing about a read that waits.
static bool reads_after_its_callers_frame() {
  Plane holder(1), reader(2);
  std::ranges::fill(holder.pool.bytes().subspan(3 * kPage, kPage), std::byte{7});
  Silent machine;
  ctl::HubOptions hub;
  hub.name = "n2", hub.instance = reader.instance, hub.insecure = true;
  auto links = Links::open(std::move(hub), std::nullopt);
  REQUIRE_OK(links);
  Loop::Parts parts;
  parts.machine = &machine, parts.links = links->get(), parts.data = reader.plane.get();
  parts.place = [](uint32_t pool, uint32_t page) { return (uint64_t{pool} + page) * kPage; };
  auto loop = Loop::open(std::move(parts));
  REQUIRE_OK(loop);

  reader.plane->set_peers({holder.peer()});
  (*loop)->apply([&](TimePoint, node::Actions& out) {
    node::Read read{.read = 9, .peer = "n1", .instance = holder.instance, .pool = 2, .budget = 20s};
    read.slices.push_back({5, 0, uint64_t{3} * kPage, kPage,
                           crc32c(std::as_const(holder.pool).bytes().subspan(size_t{3} * kPage, kPage))});
    out.push_back(std::move(read));
  });
  (*loop)->apply([](TimePoint, node::Actions&) {
    volatile unsigned char frame[4096];  // over the frame of the first task
    for (volatile unsigned char& byte : frame) byte = 0xff;
  });
  const auto early = reader.plane->next();
  const auto* early_done = early ? std::get_if<node::ReadDone>(&*early) : nullptr;
  if (early && !early_done) return false;  // another event: the connection is there
  holder.plane->set_peers({reader.peer()});
  const node::ReadDone done = early_done ? *early_done : reader.next_done();
  CHECK(done.code == Code::ok);
  CHECK(
      std::ranges::equal(reader.pool.bytes().subspan(7 * kPage, kPage), holder.pool.bytes().subspan(3 * kPage, kPage)));
  return !early;
}

TEST_CASE("host/data_plane: a read that waits for its connection finds its page when the caller's frame is gone") {
  int rounds = 1;
  while (!reads_after_its_callers_frame()) REQUIRE(++rounds <= 100);
}

TEST_CASE("host/data_plane: two nodes without a common transport both learn that they have none") {
  Plane a(1, "tcp"), b(2, "shm");
  a.plane->set_peers({b.peer()});
  b.plane->set_peers({a.peer()});
  for (auto [at, other] : {std::pair{&a, "n2"}, std::pair{&b, "n1"}}) {
    const node::DataLink link = next_link(*at);
    CHECK(link.node == other);
    CHECK(link.refusal.find("MC2110 transport-unusable: no transport reaches it: ") == 0);
  }
}
