// Loops of independent multiply-adds, one an instruction set, for measuring arithmetic peaks (internal).
#pragma once

#include <cstdint>

namespace mc::attn {

struct Burst {
  const char* name;
  double flop_per_round;
  /// Runs `rounds` rounds. The returned value keeps the compiler from removing the work.
  float (*run)(int64_t rounds);
};

extern const Burst kFmaAvx2;
extern const Burst kFmaAvx512;
extern const Burst kDotAvx512Bf16;

}  // namespace mc::attn
