// The tier on disk in a whole cluster: what memory could not hold is found on disk, also after the node was killed.

#include "schedule.h"
#include "sim/world.h"
#include "test.h"

namespace disk_test {

using namespace mc;
using namespace mc::sim;

namespace {

constexpr uint32_t kBlock = 16;

WorldOptions shape(uint64_t seed) {
  WorldOptions o;
  o.seed = seed;
  o.page_count = 40;  // two prompts
  o.disk_blocks = 600;
  return o;
}

/// Prompts of 16 blocks that share nothing.
std::vector<uint32_t> prompt(uint32_t n) {
  std::vector<uint32_t> ids;
  for (uint32_t i = 0; i < 16 * kBlock + 3; ++i) ids.push_back((n * 31 + i * 7 + i / 9) % 63);
  ids[0] = n % 63, ids[1] = n / 63;
  return ids;
}

struct Run {
  uint64_t disk_tokens = 0, hit_tokens = 0, prompt_tokens = 0;
};

Run serve(World& world, uint32_t first, uint32_t end) {
  std::vector<RequestId> sent;
  for (uint32_t n = first; n < end; ++n) {
    sent.push_back(world.submit(prompt(n), 4, 20s));
    REQUIRE(world.run_until_done(30s));
    world.run_for(50ms);  // the disk writes
  }
  Run run;
  for (const RequestId& req : sent) {
    const Outcome& outcome = world.outcomes().at(req);
    INFO(req << " ended " << outcome.end());
    REQUIRE(outcome.served());
    run.disk_tokens += outcome.summary.report.cached_disk;
    run.hit_tokens += outcome.summary.report.cached_local + outcome.summary.report.cached_remote;
    run.prompt_tokens += outcome.asked.ids.size();
  }
  INFO("seed " << test::seed());
  REQUIRE_MESSAGE(world.violation().empty(), world.violation());
  return run;
}

}  // namespace

TEST_CASE(
    "sim/disk: a working set many times the memory is served from disk, and without a disk it is computed again") {
  WorldOptions options = shape(test::seed());
  World with(options);
  with.run_for(200ms);
  CHECK(serve(with, 0, 12).hit_tokens == 0);
  const Run again = serve(with, 0, 11);
  CHECK(again.hit_tokens > again.prompt_tokens * 8 / 10);
  CHECK(again.disk_tokens > again.hit_tokens / 2);
  options.disk_blocks = 0;
  World without(options);
  without.run_for(200ms);
  serve(without, 0, 12);
  CHECK(serve(without, 0, 11).hit_tokens < again.hit_tokens / 4);
}

TEST_CASE("sim/disk: blocks on disk are found again after the node was killed, and memory alone forgets") {
  World world(shape(test::seed()));
  world.run_for(200ms);
  serve(world, 0, 12);
  const uint64_t on_disk = world.worker("p0")->load().disk_blocks;
  CHECK(on_disk > 100);
  world.crash("p0");
  world.run_for(1s);
  world.restart("p0");
  world.run_for(2s);
  CHECK(world.worker("p0")->load().disk_blocks >= on_disk);
  CHECK(world.worker("p0")->disk().stats().found_blocks >= on_disk);
  const Run again = serve(world, 0, 8);
  CHECK(again.disk_tokens > again.prompt_tokens * 8 / 10);
}

TEST_CASE("sim/disk: a cache node keeps on its disk what other nodes demoted, also over a restart, for every reader") {
  WorldOptions options = shape(test::seed());
  options.disk_blocks = 0;
  options.prefill = 2;
  options.cache = 1;
  options.cache_disk_blocks = 2000;
  World world(options);
  world.run_for(200ms);
  serve(world, 0, 40);
  const uint64_t on_disk = world.worker("c0")->load().disk_blocks;
  CHECK(on_disk > 200);
  world.crash("c0");
  world.run_for(1s);
  world.restart("c0");
  world.run_for(3s);
  CHECK(world.worker("c0")->load().disk_blocks >= on_disk);
  CHECK(serve(world, 0, 20).hit_tokens > 0);
}

TEST_CASE("sim/disk: without checksums a byte that flips on disk changes an answer, and the oracle sees it") {
  uint64_t caught = 0;
  for (uint64_t seed = 0; seed < 5; ++seed) {
    WorldOptions options = shape(test::seed() + seed);
    options.verify_checksums = false;
    options.faults.disk_rot = 0.2;
    World world(options);
    world.run_for(200ms);
    for (uint32_t n = 0; n < 24; ++n) {
      world.submit(prompt(n % 12), 4, 20s);
      world.run_until_done(30s);
      world.run_for(50ms);
    }
    caught += !world.violation().empty();
  }
  CHECK(caught >= 4);
}

TEST_CASE("sim/disk: a byte that flips on disk costs a computation and never an answer") {
  WorldOptions options = shape(test::seed());
  options.faults.disk_rot = 0.05;
  World world(options);
  world.run_for(200ms);
  serve(world, 0, 12);
  serve(world, 0, 12);
  CHECK(world.worker("p0")->disk().stats().checksum_failures > 0);
  CHECK(world.worker("p0")->disk().state() == node::DiskTier::State::on);
}

TEST_CASE("sim/disk: a disk that fails for good costs the tier and no request") {
  World world(shape(test::seed()));
  world.run_for(200ms);
  serve(world, 0, 12);
  Faults broken;
  broken.disk_error = 1;
  world.set_faults(broken);
  serve(world, 0, 12);
  const wire::Load load = world.worker("p0")->load();
  CHECK(load.disk_lost);
  CHECK(load.disk_blocks == 0);
  CHECK(load.last_error.find("goes on without it") != std::string::npos);
}

}  // namespace disk_test
