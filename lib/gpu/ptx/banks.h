// Statements of accesses to shared memory about the banks in which their lanes meet. The emulator checks them.
#pragma once

#include <cstdint>

namespace mc::gpu {

/// On a chip the statement has no effect.
struct Banks {
  /// Lanes of a warp that may name different words of one bank. It is above 1 where the input decides the words.
  uint32_t lanes = 1;
  /// The copy of an unrolled loop that the access belongs to, below 256. On a chip each copy is an instruction of its
  /// own. The emulator sees one line of the source, and cannot tell without this number which calls of lanes that skip
  /// copies are one access.
  uint32_t copy = 0;
};

}  // namespace mc::gpu
