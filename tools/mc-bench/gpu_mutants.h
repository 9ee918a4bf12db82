// Mutants of the attention kernels: one deliberate error each, most of them a missing or misplaced synchronisation. The
// emulator must report every one; `mc-bench gpu --mutants` runs them and fails when one is missed.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "gpu/attention.h"
#include "gpu/kernels/kernels.h"
#include "gpu_findings.h"

namespace mc::bench {

/// The run that shows a mutant.
struct GpuRun {
  std::string_view attention = "full";
  int splits = 1;
  int tokens = 230;           // of the longest sequence: no multiple of a tile
  Dtype dtype = Dtype::bf16;  // of K and V
};
/// Lists of more than 64 rows, and blocks of more key tiles than a kernel has stages.
constexpr GpuRun kLargeBlocks{.attention = "moba:block=320,top_k=2", .tokens = 950};
/// More key tiles than a kernel has stages.
constexpr GpuRun kRing{.tokens = 460};

/// A list of several passes of both warpgroups over a block of four tiles, some of which raise no maximum.
constexpr GpuRun kLongList{.attention = "moba:block=256,top_k=3", .tokens = 1100};

struct GpuMutant {
  std::string_view name;
  gpu::AttentionKernel kernel;
  std::string_view entry;  // the kernel's name
  // The call that is changed: the nth one, by line, of an instruction in a function of the kernel's source. Without an
  // instruction it is a fault of the kernel's logic.
  gpu::emu::Instruction instruction = gpu::emu::Instruction::none;
  std::string_view function;
  int nth = 1;
  gpu::emu::Mutation::Edit edit = gpu::emu::Mutation::Edit::skip;
  uint32_t argument = 0;
  gpu::Fault fault = gpu::Fault::none;
  // One of these is reported.
  Findings rules;
  GpuRun run;
};
std::span<const GpuMutant> gpu_mutants();

/// A kernel of which each synchronisation is left out in turn, and the run that passes all of them.
struct GpuSweep {
  gpu::AttentionKernel kernel;
  std::string_view entry;  // the kernel's name
  GpuRun run;
};
std::span<const GpuSweep> gpu_sweeps();

/// The mutation of a mutant among the places that a sound run of its kernel passed. Code::not_found when there is no
/// such place, so that a mutant cannot lose its point when the kernel changes.
Result<gpu::emu::Mutation> mutate(const GpuMutant& mutant, const std::vector<gpu::emu::Site>& sites);

/// Whether an instruction does nothing but order others: no call of one may be left out unnoticed.
bool is_synchronisation(gpu::emu::Instruction instruction);

}  // namespace mc::bench
