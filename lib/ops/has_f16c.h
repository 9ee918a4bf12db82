// Whether the CPU has the conversions of f16 that the kernels for AVX2 need.
#pragma once

#include <cpuid.h>

namespace mc::ops {

/// By cpuid, because __builtin_cpu_supports of clang 14 does not know the name.
inline bool has_f16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}

}  // namespace mc::ops
