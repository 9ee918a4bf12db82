// `mc-bench gpu --experts`: mixtures of experts (gpu/mixture.h) against a reference in double, on a device or under the
// schedules of the emulator, and mutants of their kernels.
#pragma once

#include "base/cli.h"
#include "gpu/gpu.h"
#include "rows.h"

namespace mc::bench {

struct ExpertsOptions {
  uint64_t seed = 0, schedules = 1;
  bool checks = true;  // the emulator's ordering rules
};

/// Runs all cases on `device`, or without one in an emulator, and adds a row for each. MC8004: a result is wrong or a
/// rule is broken.
Result<void> check_experts(gpu::Device* device, const ExpertsOptions& options, Rows& rows);
/// Leaves out each call of the kernels in an emulator, sets each fault, and adds a row for it. Returns the names of
/// those that nothing reported.
Result<std::string> mutate_experts(const ExpertsOptions& options, Rows& rows);
/// The table of the rows of check_experts().
Table experts_table();

}  // namespace mc::bench
