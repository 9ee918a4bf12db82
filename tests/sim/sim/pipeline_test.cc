// Pipelines of prefill nodes (Mooncake 6.1) in seeded clusters: chunks in flight in all stages at once, and stages that
// die under them. What a stage's death costs is the requests that its own pipeline had under way, each of which is
// tried again; other nodes, and the processes of the stages beside it, do not notice.

#include <set>

#include "node/stage.h"
#include "schedule.h"
#include "test.h"

namespace pipeline_test {

using namespace mc;
using namespace mc::sim;

namespace {

WorldOptions shape(uint64_t seed) {
  Rng rng(seed * 6271 + 3);
  WorldOptions o;
  o.seed = seed;
  o.prefill = 2, o.decode = 1 + static_cast<uint32_t>(rng.below(2));
  o.layers = 3 + static_cast<uint32_t>(rng.below(2));
  o.stages = {2 + static_cast<uint32_t>(rng.below(2)), 1 + static_cast<uint32_t>(rng.below(3))};
  o.page_count = 200;
  o.chunk_tokens = 16u << rng.below(3);
  draw_holders(rng, o);
  return o;
}

RequestId ask(World& world, const char* pin, Duration deadline = 20s) {
  node::Submit s;
  for (uint64_t n = 1 + world.rng().below(300); n > 0; --n) s.ids.push_back(1 + world.rng().below(62));
  s.stopping.max_tokens = 1 + static_cast<uint32_t>(world.rng().below(20));
  s.deadline = deadline, s.pin_prefill = pin;
  return world.submit(std::move(s));
}

bool answered(const Outcome& o) {
  return o.served();
}

}  // namespace

TEST_CASE("sim: a stage that dies costs its own pipeline's requests a retry, and no other node's request anything") {
  uint64_t retried = 0;
  for (uint64_t i = 0; i < seed_count(20); ++i) {
    WorldOptions options = shape(20000 + test::seed() + i);
    options.faults.tell_peers_of_crash = i % 2 == 0;
    World world(options);
    world.run_for(100ms);
    INFO("seed " << options.seed << ", " << options.stages[0] << " stages");
    std::vector<RequestId> here, there;
    for (uint64_t n = 2 + world.rng().below(8); n > 0; --n) {
      here.push_back(ask(world, "p0"));
      there.push_back(ask(world, "p1"));
      world.run_for(Duration(world.rng().between(0, 3'000'000)));
    }
    std::map<std::string, const node::Worker*> others;
    const std::string victim =
        node::stage_name("p0", 1 + static_cast<uint32_t>(world.rng().below(options.stages[0] - 1)));
    world.crash(victim);
    for (const auto& name : world.names())
      if (world.worker(name)) others[name] = world.worker(name);
    world.run_for(Duration(world.rng().between(0, 1'500'000'000)));
    world.restart(victim);
    REQUIRE(world.run_until_done(20s));
    REQUIRE_MESSAGE(world.violation().empty(), world.violation());
    for (const auto& req : there) {
      const Outcome& o = world.outcomes().at(req);
      INFO(req << " of the other node ended " << o.end() << " after " << o.attempts << " attempts");
      CHECK((answered(o) && o.attempts == 1));
    }
    for (const auto& req : here) {
      const Outcome& o = world.outcomes().at(req);
      INFO(req << " of the pipeline ended " << o.end() << " in " << o.stage);
      CHECK(answered(o));
      retried += o.attempts > 1;
    }
    for (const auto& [name, worker] : others) {
      INFO(name);
      CHECK((world.worker(name) == worker && worker->registration().is_member()));
    }
    const RequestId after = ask(world, "p0");  // the whole pipeline serves again
    REQUIRE(world.run_until_done(20s));
    CHECK(answered(world.outcomes().at(after)));
    CHECK(world.outcomes().at(after).attempts == 1);
    world.run_for(35s);
    REQUIRE_MESSAGE(world.leftovers().empty(), world.leftovers());
  }
  CHECK(retried > 0);
}

TEST_CASE("sim: a pipeline has several chunks in flight, and gives back all slots whatever its clients and stages do") {
  uint64_t overlapped = 0;
  for (uint64_t i = 0; i < seed_count(12); ++i) {
    WorldOptions options = shape(40000 + test::seed() + i);
    options.prefill = 1, options.stages.resize(1);
    World world(options);
    world.run_for(100ms);
    INFO("seed " << options.seed);
    const std::string last = node::stage_name("p0", options.stages[0] - 1);
    for (int round = 0; round < 6; ++round) {
      std::vector<RequestId> sent;
      for (int n = 0; n < 5; ++n) sent.push_back(ask(world, "", 1s));
      world.run_for(Duration(world.rng().between(0, 15'000'000)));
      overlapped += world.worker("p0")->load().running > 0 && world.worker(last)->load().running > 0;
      Faults faults;
      if (world.rng().chance(0.5)) faults.lose = 0.1;
      if (world.rng().chance(0.5)) faults.corrupt_read = faults.fail_read = 0.1;
      world.set_faults(faults);
      world.disconnect(sent[world.rng().below(sent.size())]);
      if (world.rng().chance(0.3)) world.crash(last), world.restart(last);
      world.run_for(1200ms);  // past every deadline: a slot whose news was lost is free again
      REQUIRE_MESSAGE(world.violation().empty(), world.violation());
    }
    world.set_faults({});
    world.run_for(2s);
    const RequestId after = ask(world, "");
    REQUIRE(world.run_until_done(5s));
    CHECK(answered(world.outcomes().at(after)));
    world.run_for(35s);
    REQUIRE_MESSAGE(world.leftovers().empty(), world.leftovers());
  }
  CHECK(overlapped > 0);
}

TEST_CASE("sim: a prompt's blocks go between pipelines of other cuts, whole nodes and cache nodes, both ways") {
  uint64_t fetched = 0, fetched_whole = 0, from_prefill = 0, from_cache = 0;
  for (uint64_t i = 0; i < seed_count(12); ++i) {
    WorldOptions options = shape(80000 + test::seed() + i);
    options.cache = 1, options.page_count = 64;
    options.sched.fetch_rule = sched::FetchRule::threshold, options.sched.threshold = 1;
    World world(options);
    world.run_for(100ms);
    INFO("seed " << options.seed << ", " << options.stages[0] << " and " << options.stages[1] << " stages");
    const auto serve = [&](const std::vector<uint32_t>& ids, const NodeId& pin) {
      node::Submit s;
      s.ids = ids, s.deadline = 20s, s.pin_prefill = pin;
      s.stopping.max_tokens = 1;  // no decode node gets the blocks
      const RequestId req = world.submit(std::move(s));
      REQUIRE(world.run_until_done(20s));
      const Outcome& o = world.outcomes().at(req);
      CHECK(o.served());
      fetched += o.summary.report.cached_remote;
      if (options.stages[1] == 1 && pin == "p1") fetched_whole += o.summary.report.cached_remote;
      for (const auto& [node, tokens] : o.summary.report.sources) {
        CHECK((node == "c0" || (node != pin && node.starts_with('p'))));
        (node == "c0" ? from_cache : from_prefill) += std::stoull(tokens);
      }
    };
    std::vector<std::vector<uint32_t>> prompts(12);
    for (size_t n = 0; n < prompts.size(); ++n) {
      for (uint64_t k = 40 + world.rng().below(250); k > 0; --k)
        prompts[n].push_back(1 + static_cast<uint32_t>(world.rng().below(62)));
      const NodeId first = n % 2 == 0 ? "p0" : "p1";
      serve(prompts[n], first);  // where it is computed, where it is fetched, and again
      serve(prompts[n], first == "p0" ? "p1" : "p0");
      serve(prompts[n], first);
    }
    world.run_for(1s);
    for (const auto& ids : prompts) serve(ids, "p0");  // memory holds the last ones, the cache node earlier ones
    world.run_for(35s);
    REQUIRE_MESSAGE(world.violation().empty(), world.violation());
    REQUIRE_MESSAGE(world.leftovers().empty(), world.leftovers());
  }
  CHECK(fetched == from_prefill + from_cache);
  CHECK(from_prefill > 0);
  CHECK(from_cache > 0);
  CHECK(fetched_whole > 0);
}

TEST_CASE("sim: a pipeline that lost a member reads that member's part again from a cache node, and loses no more") {
  uint64_t again = 0, whole = 0;
  for (uint64_t i = 0; i < seed_count(12); ++i) {
    WorldOptions options = shape(90000 + test::seed() + i);
    options.prefill = 1, options.stages.resize(1), options.cache = 1, options.page_count = 64;
    options.sched.fetch_rule = sched::FetchRule::threshold, options.sched.threshold = 1;
    World world(options);
    world.run_for(100ms);
    INFO("seed " << options.seed << ", " << options.stages[0] << " stages");
    std::vector<std::vector<uint32_t>> prompts;
    const auto ask_all = [&] {
      for (const auto& ids : prompts) {
        node::Submit s;
        s.ids = ids, s.stopping.max_tokens = 1, s.deadline = 20s;
        const RequestId req = world.submit(std::move(s));
        REQUIRE(world.run_until_done(20s));
        CHECK(world.outcomes().at(req).served());
        again += world.outcomes().at(req).summary.report.cached_remote;
      }
    };
    for (int n = 0; n < 4; ++n) {  // more than 85 % of the pages, so that blocks are offered to the cache node
      auto& ids = prompts.emplace_back();
      for (int k = 0; k < 15 * 16; ++k) ids.push_back(1 + static_cast<uint32_t>(world.rng().below(62)));
    }
    ask_all();
    world.run_for(1s);
    again = 0;
    const std::string victim =
        node::stage_name("p0", 1 + static_cast<uint32_t>(world.rng().below(options.stages[0] - 1)));
    world.crash(victim);
    world.run_for(1s);
    world.restart(victim);
    world.run_for(1s);
    ask_all();
    whole += again;
    world.run_for(35s);
    REQUIRE_MESSAGE(world.violation().empty(), world.violation());
    REQUIRE_MESSAGE(world.leftovers().empty(), world.leftovers());
  }
  CHECK(whole > 0);
}

TEST_CASE("sim: without checksums, activations that arrive wrong are noticed in the answer") {
  int caught = 0;
  for (uint64_t i = 0; i < 10; ++i) {
    WorldOptions options = shape(60000 + i);
    options.decode = 1, options.prefill = 1, options.stages = {3};
    options.verify_checksums = false;
    options.faults.corrupt_read = 0.2;
    World world(options);
    world.run_for(100ms);
    for (int n = 0; n < 20; ++n) {  // one token: no KV leaves the pipeline, all reads are of activations
      node::Submit s;
      for (uint64_t k = 1 + world.rng().below(300); k > 0; --k) s.ids.push_back(1 + world.rng().below(62));
      s.stopping.max_tokens = 1, s.deadline = 10s;
      world.submit(std::move(s));
      world.run_for(20ms);
    }
    world.run_until_done(10s);
    caught += world.violation().find("wrong token") != std::string::npos;
  }
  CHECK(caught == 10);
}

}  // namespace pipeline_test
