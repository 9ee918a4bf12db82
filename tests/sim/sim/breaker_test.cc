// A pair of nodes whose transfers fail while both work with others, in seeded clusters: it costs the requests that find
// out, and each probe, one retry; nobody else anything; and it serves again once it works.

#include "schedule.h"
#include "sim/world.h"
#include "test.h"

using namespace mc;
using namespace mc::sim;

namespace {

WorldOptions shape(uint64_t seed) {
  Rng rng(seed);
  WorldOptions o;
  o.seed = seed;
  o.prefill = 1 + static_cast<uint32_t>(rng.below(3));
  o.decode = 1 + static_cast<uint32_t>(rng.below(3));
  if (o.prefill * o.decode == 1) o.decode = 2;
  o.page_count = 200;
  o.events_per_check = 4;
  using Hold = node::ConductorOptions::Hold;
  o.hold = rng.chance(0.5) ? Hold::off : Hold::on;
  o.faults.cut = {{"d0", "p0"}};
  o.faults.cut_code = rng.chance(0.5) ? Code::invalid : Code::peer_lost;
  return o;
}

node::Submit draw(World& world) {
  node::Submit s;
  for (uint64_t n = 1 + world.rng().below(200); n > 0; --n) s.ids.push_back(1 + world.rng().below(62));
  s.stopping.max_tokens = 3 + static_cast<uint32_t>(world.rng().below(10));
  s.deadline = 20s;
  return s;
}

bool answered(const Outcome& o) {
  return o.served();
}

}  // namespace

TEST_CASE("sim: a pair that fails all its transfers costs three requests and its probes a retry, and comes back") {
  uint64_t probes = 0;
  for (uint64_t i = 0; i < seed_count(12); ++i) {
    const WorldOptions options = shape(40000 + test::seed() + i);
    const auto reason = options.faults.cut_code == Code::invalid ? node::Reason::kv_transfer : node::Reason::peer_lost;
    World world(options);
    world.run_for(100ms);
    INFO("seed " << 40000 + test::seed() + i);
    for (int n = 0; n < 150; ++n) {  // one at a time, over some 15 s
      const RequestId req = world.submit(draw(world));
      REQUIRE(world.run_until_done(20s));
      const Outcome& o = world.outcomes().at(req);
      INFO(req << " ended " << o.end() << " in " << to_string(o.stage));
      CHECK(answered(o));
      CHECK(o.failed.size() <= 1);
      for (const auto& f : o.failed) CHECK((f.prefill == "p0" && f.decode == "d0" && f.reason == reason));
      world.run_for(Duration(world.rng().between(0, 200'000'000)));
    }
    size_t failures = 0;
    for (const auto& [req, o] : world.outcomes()) failures += o.failed.size();
    const uint64_t opened = world.conductor()->flights().stats().set_aside;
    CHECK(failures == (opened == 0 ? failures : 2 + opened));  // three open it, then each probe opens it again
    CHECK(failures <= 10);
    probes += opened > 1 ? opened - 1 : 0;

    world.set_faults({});
    world.run_for(80s);  // beyond any back-off
    node::Submit s = draw(world);
    s.pin_prefill = "p0", s.pin_decode = "d0";
    s.stopping.stop_ids = {}, s.stopping.max_tokens = 8;
    const RequestId last = world.submit(std::move(s));
    REQUIRE(world.run_until_done(20s));
    CHECK(answered(world.outcomes().at(last)));
    CHECK(world.outcomes().at(last).attempts == 1);
    REQUIRE_MESSAGE(world.violation().empty(), world.violation());
  }
  CHECK(probes > 0);
}

TEST_CASE("sim: a crowd on a cluster with a broken pair loses no request, and the pair is in use again when mended") {
  for (uint64_t i = 0; i < seed_count(12); ++i) {
    World world(shape(50000 + test::seed() + i));
    world.run_for(100ms);
    INFO("seed " << 50000 + test::seed() + i);
    for (int n = 0; n < 60; ++n) {
      world.submit(draw(world));
      world.run_for(Duration(world.rng().between(0, 10'000'000)));
    }
    REQUIRE(world.run_until_done(20s));
    for (const auto& [req, o] : world.outcomes()) {
      INFO(req << " ended " << o.end() << " in " << o.stage << " after " << o.attempts);
      CHECK(answered(o));
    }
    world.set_faults({});
    world.run_for(80s);
    for (int n = 0; n < 200 && !world.conductor()->breakers().empty(); ++n) {
      world.submit(draw(world));
      world.run_for(Duration(world.rng().between(0, 2'000'000)));
    }
    REQUIRE(world.run_until_done(20s));
    CHECK(world.conductor()->breakers().empty());
    REQUIRE_MESSAGE(world.violation().empty(), world.violation());
    world.run_for(35s);
    REQUIRE_MESSAGE(world.leftovers().empty(), world.leftovers());
  }
}
