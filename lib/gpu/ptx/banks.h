// Statements of accesses to shared memory about the banks in which their lanes meet. The emulator checks them.
#pragma once

#include <cstdint>

namespace mc::gpu {

constexpr uint32_t kUnnumbered = 255;

/// On a chip the statement has no effect.
struct Banks {
  /// Lanes of a warp that may name different words of one bank, 1 to 32. It is above 1 where the input decides the
  /// words.
  uint32_t lanes = 1;
  /// The copy of an unrolled loop that the access belongs to, below kUnnumbered. On a chip each copy is an instruction
  /// of its own. The emulator sees one line of the source, and cannot tell without this number which calls of lanes
  /// that skip copies are one access. An access with a number is counted also where some lanes never make it.
  uint32_t copy = kUnnumbered;
};

}  // namespace mc::gpu
