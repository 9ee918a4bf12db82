// Mutants of the attention kernels: one edit of a kernel's PTX each, most of them a missing or misplaced
// synchronisation. The emulator must report every one; `mc-bench gpu --mutants` runs them and fails when one is missed.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "gpu/attention.h"

namespace mc::bench {

struct GpuMutant {
  std::string_view name;
  gpu::AttentionKernel kernel;
  std::string_view entry;  // the kernel's name in the PTX
  std::string_view find;   // a piece of one line of it
  int nth = 1;             // which line that has it, from 1; 0: all of them
  std::string_view with;   // in place of the piece; "" removes the whole line
  std::string_view rules;  // one of these is reported: "race,in-flight"; "result": a wrong number or choice
  std::string_view attention = "full";
  int splits = 1;
  int tokens = 230;  // of the longest sequence: no multiple of a tile
};
std::span<const GpuMutant> gpu_mutants();

/// The PTX text with the edit. Code::not_found when the kernel has no such line, so that a mutant cannot lose its point
/// with a new compiler.
Result<std::string> mutate(const GpuMutant& mutant);

}  // namespace mc::bench
