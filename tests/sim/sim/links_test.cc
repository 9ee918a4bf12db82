// Links whose rate changes: the conductor learns it from the reads that nodes report, sends requests elsewhere, and
// comes back when the link has recovered.

#include "long_profile.h"
#include "sim/world.h"
#include "test.h"

namespace links_test {

using namespace mc;
using namespace mc::sim;

namespace {

// A prefix takes 8.2 s to compute and 0.2 s on a link, the rest of a prompt 0.15 s to compute.
constexpr uint32_t kPrefix = 8192;

/// Prefill nodes p0 and p1 lack every prefix. p2 computes them for d0 and dies.
struct Bench {
  Result<sched::Profile> profile = long_profile("4e10");
  World world;
  uint32_t prefixes = 0;

  Bench() : world(options()) { world.run_for(1s); }
  WorldOptions options() {
    REQUIRE_OK(profile);
    WorldOptions o;
    o.seed = test::seed();
    o.prefill = 3, o.decode = 2, o.layers = 4, o.block_tokens = 512;
    o.page_count = 200, o.decode_pages = 400;
    o.chunk_tokens = 2048, o.context_tokens = 32768;
    o.profile = &*profile;
    return o;
  }
  /// The prefill node of a prompt whose prefix only d0 has, and its TTFT. p1 has a queue of a second.
  std::pair<std::string, double> route() {
    const std::vector<uint32_t> prefix(kPrefix, ++prefixes);
    served(world, ask(world, prefix, "p2", "d0"));
    world.crash("p2");
    world.run_for(4s);
    ask(world, std::vector<uint32_t>(1000, 10'000 + prefixes), "p1", "d1");
    const Outcome& o = served(world, ask(world, prefix, "", "d1"));
    CHECK(o.summary.report.cached_remote == kPrefix);
    CHECK(o.summary.report.reads.size() == 1);
    world.restart("p2");
    world.run_for(1s);
    return {o.summary.prefill, to_seconds(o.first_token - o.submitted)};
  }
  void slow_down(double factor) {
    Faults faults;
    if (factor > 1) faults.slow[{"p0", "d0"}] = factor;
    world.set_faults(faults);
  }
  /// How many times slower than usual the conductor takes the link from d0 to p0 to be; 0 = it knows nothing of it.
  double slowness() {
    for (const auto& t : world.conductor()->flights().links(world.now()))
      if (t.from == "d0" && t.to == "p0") return t.slowness();
    return 0;
  }
};

}  // namespace

TEST_CASE("sim/links: requests leave a node whose link has turned out slow, and come back after it has recovered") {
  Bench b;
  CHECK(b.slowness() == 0);
  CHECK(b.route().first == "p0");
  CHECK(b.slowness() == doctest::Approx(1).epsilon(0.05));
  b.slow_down(20);
  for (int i = 0; i < 2; ++i) {  // one slow read might be an outlier
    const auto [node, ttft_s] = b.route();
    CHECK(node == "p0");
    CHECK(ttft_s > 4);
  }
  CHECK(b.slowness() > 10);
  const auto [other, other_s] = b.route();
  CHECK(other == "p1");
  CHECK(other_s < 1.5);

  b.slow_down(1);
  CHECK(b.route().first == "p1");  // nothing has told the conductor
  b.world.run_for(2 * sched::TransferCosts::kHalfLife);
  const auto [again, again_s] = b.route();
  CHECK(again == "p0");
  CHECK(again_s < 0.5);
  CHECK(b.slowness() == doctest::Approx(1).epsilon(0.05));
  CHECK(b.route().first == "p0");
}

TEST_CASE("sim/links: a link that stays slow is tried again and avoided again") {
  Bench b;
  b.slow_down(20);
  for (int i = 0; i < 2; ++i) CHECK(b.route().first == "p0");
  CHECK(b.route().first == "p1");
  b.world.run_for(2 * sched::TransferCosts::kHalfLife);
  CHECK(b.route().first == "p0");
  CHECK(b.slowness() > 10);  // the new read agrees with the old ones
  CHECK(b.route().first == "p1");
}

}  // namespace links_test
