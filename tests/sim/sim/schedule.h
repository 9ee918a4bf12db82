// Common parts of the fault schedules: their number, and the faults between nodes.
#pragma once

#include <cstdlib>

#include "base/rng.h"
#include "count.h"
#include "sim/world.h"

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

/// In half of the schedules decode nodes read reused blocks from their holders.
inline void draw_holders(Rng& rng, WorldOptions& options) {
  if (rng.chance(0.5)) options.prefix_from = sched::PrefixFrom::holders;
}

}  // namespace mc::sim
