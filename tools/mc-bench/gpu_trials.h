// `mc-bench gpu --instructions`: each instruction of lib/gpu/ptx alone, on random words, on a device and in the
// emulator. A wrapper that a chip reads in another way than the emulator shows here, before a kernel uses it.
#pragma once

#include "base/cli.h"
#include "gpu/gpu.h"
#include "rows.h"

namespace mc::bench {

/// Runs all trials on `device` and beside it in an emulator of its own. Without a device a second emulator under other
/// schedules takes its place. Adds a row for each trial. MC8004: the two differ.
Result<void> try_instructions(gpu::Device* device, uint64_t seed, Rows& rows);
/// Leaves out each call of each trial in an emulator, and adds a row for it. The names of those that nothing reported.
Result<std::string> mutate_trials(uint64_t seed, Rows& rows);
/// The table of the rows of try_instructions().
Table trial_table();

}  // namespace mc::bench
