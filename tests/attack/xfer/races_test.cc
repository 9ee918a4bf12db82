// Two engines that dial and forget each other at the same time. An engine handles the events of
// a connection in any order: an event of a peer that was just forgotten breaks no contract.
#include <cstdlib>
#include <set>
#include <thread>

#include "count.h"
#include "unit/xfer/pair.h"

using namespace mc;
using namespace mc::xfer;
using namespace mc::xfer::test;

namespace {

int cycles(int quick) {
  return ::mc::test::count(quick, 10000);
}

/// Connects and disconnects `count` times, at moments that a seeded dice picks: before the connection is up, when it
/// is, and after the other side's own connection came. Forgets what dialled it now and then, too.
void connect_and_forget(Node& self, const std::vector<std::byte>& other, int count, uint64_t seed) {
  Rng rng(seed);
  std::set<PeerId> accepted;
  for (int i = 0; i < count; ++i) {
    auto peer = self->connect(other, in(kLong));
    REQUIRE_OK(peer);
    const uint64_t moment = rng.below(4);
    bool told = false;  // that it is up, or that the other side has left meanwhile
    while (moment > 0 && !told) {
      std::vector<Event> events;
      REQUIRE(self->poll(events, in(kLong)) > 0);
      for (const Event& event : events) {
        if (event.kind != Event::Kind::peer_up && event.kind != Event::Kind::peer_lost) continue;
        told |= event.peer == *peer;
        if (event.peer != *peer) accepted.insert(event.peer);
      }
    }
    if (moment == 2) (void)self->notify(*peer, std::vector<std::byte>(16));
    self->disconnect(*peer);
    if (moment == 3)
      for (const PeerId id : std::exchange(accepted, {})) self->disconnect(id);
  }
}

}  // namespace

TEST_CASE("xfer: engines that connect and disconnect at once go on") {
  for (const std::string transport : {"shm", "tcp", "shm,tcp"}) {
    CAPTURE(transport);
    Node a("a", transport);
    Node b("b", transport);
    const int count = cycles(500);
    std::thread other([&, to = a->describe()] { connect_and_forget(b, to, count, mc::test::seed() + 1); });
    connect_and_forget(a, b->describe(), count, mc::test::seed());
    other.join();
    // Both still connect, and carry what is said. The last goodbyes may come a moment later.
    const std::vector<std::byte> word{std::byte{42}};
    bool heard = false;
    for (const TimePoint limit = in(kLong); !heard && in(Duration{}) < limit;) {
      auto peer = a->connect(b->describe(), in(kLong));
      REQUIRE_OK(peer);
      const Event answer = a.wait([&](const Event& event) {
        return event.peer == *peer && (event.kind == Event::Kind::peer_up || event.kind == Event::Kind::peer_lost);
      });
      if (answer.kind == Event::Kind::peer_up && a->notify(*peer, word) == Code::ok) {
        b.seen.clear();
        while (!heard && b->poll(b.seen, in(200ms)) > 0)
          heard = std::any_of(b.seen.begin(), b.seen.end(), [&](const Event& event) { return event.bytes == word; });
      }
      if (!heard) a->disconnect(*peer);
    }
    CHECK(heard);
  }
}
