// Common parts of the fault schedules: their number, the faults between nodes, and what must hold afterwards.
#pragma once

#include <cstdlib>
#include <vector>

#include "base/rng.h"
#include "count.h"
#include "sim/world.h"
#include "test.h"

namespace mc::sim {

/// `quick`, 2,000 in the full tier (over 20,000 in all), or what MC_SIM_SEEDS says.
inline uint64_t seed_count(uint64_t quick) {
  const char* env = std::getenv("MC_SIM_SEEDS");
  return env ? std::strtoull(env, nullptr, 10) : test::count<uint64_t>(quick, 2000);
}

/// Each kind of fault in half of the schedules.
inline void draw_faults(Rng& rng, Faults& faults) {
  faults.lose = rng.chance(0.5) ? 0.02 * rng.uniform() : 0;
  faults.reorder = rng.chance(0.5) ? 0.1 * rng.uniform() : 0;
  faults.corrupt_read = rng.chance(0.5) ? 0.05 * rng.uniform() : 0;
  faults.fail_read = rng.chance(0.5) ? 0.05 * rng.uniform() : 0;
  faults.tell_peers_of_crash = rng.chance(0.5);
  if (rng.chance(0.5)) faults.cut = {{"d0", "p0"}};
  faults.rot = rng.chance(0.5) ? 0.05 * rng.uniform() : 0;
  faults.cut_code = rng.chance(0.5) ? Code::invalid : Code::peer_lost;
  faults.disk_error = rng.chance(0.5) ? 0.02 * rng.uniform() : 0;
  faults.disk_rot = rng.chance(0.5) ? 0.05 * rng.uniform() : 0;
  faults.disk_slow = rng.chance(0.5) ? 0.02 * rng.uniform() : 0;
  faults.disk_full = rng.chance(0.5) ? 0.2 * rng.uniform() : 0;
}

/// Faults end, and every node that has crashed is back.
inline void end_faults(World& world) {
  world.set_faults({});
  for (const auto& name : world.names())
    if (!world.alive(name)) world.restart(name);
}

/// The disturbances between two requests of a schedule.
struct Turmoil {
  Duration deadline_min{};  // of a request; the longest is 3 s
  double disconnect = 0;    // chance that some client leaves
  double restart = 0;       // chance of each crashed node
  Duration pause_max{};
};

/// Anything may fail, nothing may be wrong: 40 requests while clients leave, and nodes crash and come back. `prompt`
/// draws the ids of the next one.
template <class Prompt>
void run_turmoil(World& world, const Turmoil& turmoil, Prompt prompt) {
  Rng& rng = world.rng();
  std::vector<RequestId> sent;
  for (int n = 0; n < 40; ++n) {
    const Duration deadline = Duration(rng.between(turmoil.deadline_min.count(), 3'000'000'000));
    sent.push_back(world.submit(prompt(), 1 + static_cast<uint32_t>(rng.below(60)), deadline));
    if (rng.chance(turmoil.disconnect)) world.disconnect(sent[rng.below(sent.size())]);
    const auto names = world.names();
    const std::string& victim = names[rng.below(names.size())];
    if (rng.chance(0.08) && world.alive(victim)) world.crash(victim);
    for (const auto& name : names)
      if (!world.alive(name) && rng.chance(turmoil.restart)) world.restart(name);
    world.run_for(Duration(rng.between(0, turmoil.pause_max.count())));
    REQUIRE_MESSAGE(world.violation().empty(), world.violation());
  }
}

/// The faults stop, everyone is back: what is asked now must be served.
template <class Prompt>
void require_service(World& world, Prompt prompt) {
  end_faults(world);
  world.run_for(5s);
  REQUIRE_MESSAGE(world.violation().empty(), world.violation());
  std::vector<RequestId> last;
  for (int n = 0; n < 8; ++n) last.push_back(world.submit(prompt(), 20, 20s));
  REQUIRE(world.run_until_done(25s));
  REQUIRE_MESSAGE(world.violation().empty(), world.violation());
  for (const auto& req : last) {
    INFO(req << " ended " << world.outcomes().at(req).end());
    REQUIRE(world.outcomes().at(req).served());
  }
}

/// Past every deadline, grace and lease nothing is left on any node, and the conductor counts nothing on any.
inline void require_quiet(World& world) {
  world.run_for(35s);
  REQUIRE_MESSAGE(world.violation().empty(), world.violation());
  REQUIRE_MESSAGE(world.leftovers().empty(), world.leftovers());
  REQUIRE(world.conductor() != nullptr);
  for (const auto& node : world.conductor()->nodes(world.now())) {
    INFO(node.name);
    REQUIRE(node.requests == 0);
    REQUIRE(node.load.running == 0);
    REQUIRE(node.load.waiting == 0);
  }
}

/// In half of the schedules the nodes have disks, of which some are smaller than memory.
inline void draw_disks(Rng& rng, WorldOptions& options) {
  if (rng.chance(0.5)) return;
  options.disk_blocks = 30 + static_cast<uint32_t>(rng.below(400));
  options.cache_disk_blocks = rng.chance(0.5) ? 30 + static_cast<uint32_t>(rng.below(400)) : 0;
}

/// In half of the schedules any prefill node leads a pipeline of 2 or 3 stages. The number of layers need not divide
/// by the number of stages.
inline void draw_pipelines(Rng& rng, WorldOptions& options) {
  if (rng.chance(0.5)) return;
  options.layers = 3 + static_cast<uint32_t>(rng.below(2));
  for (uint32_t i = 0; i < options.prefill; ++i) options.stages.push_back(1 + static_cast<uint32_t>(rng.below(3)));
}

/// In half of the schedules leases last 20 to 120 ms, and reads over some links take longer than that.
inline void draw_leases(Rng& rng, WorldOptions& options) {
  if (rng.chance(0.5)) return;
  options.lease_time = Duration(rng.between(20'000'000, 120'000'000));
  for (const char* reader : {"p0", "p1", "d0"})
    for (const char* holder : {"p0", "p1", "d0", "c0"})
      if (rng.chance(0.5)) options.faults.slow[{reader, holder}] = 2e4 * rng.uniform();
}

/// In half of the schedules decode nodes read reused blocks from their holders.
inline void draw_holders(Rng& rng, WorldOptions& options) {
  if (rng.chance(0.5)) options.prefix_from = sched::PrefixFrom::holders;
}

}  // namespace mc::sim
