// Trials of single instructions (trial_sm80.cu, trial_sm90a.cu): random words go in, and what the instruction makes of
// them comes out. `mc-bench gpu --instructions` runs them on a chip and in the emulator and compares the two. No
// program that serves launches them.
#pragma once

#include <cstdint>

namespace mc::gpu {

constexpr int kTrialThreads = 128;
constexpr int kTrialIn = 32, kTrialOut = 64;  // words of a thread at most
constexpr uint32_t kTrialTile = 16384;        // bytes of shared memory for data; mbarriers lie behind them
constexpr uint32_t kTrialShared = kTrialTile + 64;
constexpr uint32_t kTrialGroups = 3;           // warpgroups of trial_registers
constexpr uint32_t kTrialKept = 180;           // numbers that its threads keep
constexpr uint32_t kTrialGrid[3] = {2, 3, 4};  // of trial_place
constexpr int kTrialOutRows = 60;              // of 128 bytes: the tensor that a trial writes

/// Word i of thread t is at [i * kTrialThreads + t]; a second CTA's output lies kTrialOut words of a CTA behind. The
/// trials that copy boxes take two tensors of rows of 128 bytes with them: `in` as rows of bf16, and kTrialOutRows of
/// `out`, of bf16 or f32.
struct TrialArgs {
  const uint32_t* in = nullptr;  // [kTrialIn, kTrialThreads]
  uint32_t* out = nullptr;       // zeros
  int32_t column = 0, row = 0;   // of the box
};

}  // namespace mc::gpu
