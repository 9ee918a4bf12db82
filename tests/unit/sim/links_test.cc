#include "sim/links.h"

#include <algorithm>
#include <map>

#include "sim/tiers.h"
#include "test.h"

using namespace mc;
using namespace mc::sim;

namespace {

// Runs transfers to their ends; when each was over.
struct Network {
  Links links{4, 100};
  std::vector<Links::End> events;
  std::map<uint32_t, double> over;
  double now_s = 0;

  void run(double to_s) {
    for (;;) {
      const auto next =
          std::min_element(events.begin(), events.end(), [](const auto& a, const auto& b) { return a.at_s < b.at_s; });
      if (next == events.end() || next->at_s > to_s) break;
      const Links::End end = *next;
      events.erase(next);
      now_s = end.at_s;
      if (links.finish(end, events)) over[end.transfer] = end.at_s;
    }
    now_s = to_s;
  }
  uint32_t start(uint32_t from, uint32_t to, double bytes, double cap = 1e9) {
    return links.start(now_s, from, to, bytes, cap, events);
  }
};

}  // namespace

TEST_CASE("sim/links: transfers that leave one node share its link, others do not") {
  Network n;
  const uint32_t a = n.start(0, 1, 100), b = n.start(0, 2, 100), c = n.start(3, 0, 100);
  CHECK(n.links.leaving(0) == 2);
  CHECK(n.links.leaving_bytes(0, 0.5) == doctest::Approx(150));
  n.run(10);
  CHECK(n.over[a] == doctest::Approx(2));
  CHECK(n.over[b] == doctest::Approx(2));
  CHECK(n.over[c] == doctest::Approx(1));
}

TEST_CASE("sim/links: who is left goes faster, and a stream goes no faster than it is made") {
  Network n;
  const uint32_t a = n.start(0, 1, 50), b = n.start(2, 1, 100);
  n.run(10);
  CHECK(n.over[a] == doctest::Approx(1));
  CHECK(n.over[b] == doctest::Approx(1.5));
  const uint32_t c = n.start(0, 1, 100, 20);
  n.run(20);
  CHECK(n.over[c] == doctest::Approx(15));
}

TEST_CASE("sim/tiers: blocks are readable when settled, move to SSD, and are gone with the node") {
  TieredCaches caches(2, 3, 2, 10);
  std::vector<uint32_t> resident(2), readable(2);
  const std::vector<uint32_t> first = {0, 1, 2}, second = {3, 4};
  caches.use(0, first, 7);
  caches.match(first, resident, readable);
  CHECK(resident == std::vector<uint32_t>{3, 0});
  CHECK(readable == std::vector<uint32_t>{0, 0});
  CHECK(caches.maker(2) == 7);
  caches.settle(0, first);
  caches.match(first, resident, readable);
  CHECK(readable == std::vector<uint32_t>{3, 0});
  caches.use(0, second, 8);  // 2 and 1 were used before 0: they go to SSD
  caches.match(first, resident, readable);
  CHECK(resident[0] == 3);
  CHECK(caches.on_ssd(0, first) == 2);
  CHECK(caches.replicas(0) == 1);
  caches.drop(0);
  caches.match(first, resident, readable);
  CHECK(resident[0] == 0);
}
