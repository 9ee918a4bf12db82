// The tables that fp8.cc chooses from; one file each.
#pragma once

#include "ops/fp8.h"

namespace mc::ops {

#if defined(__x86_64__)
extern const Fp8Kernels kFp8Avx2;
extern const Fp8Kernels kFp8Avx512;
#endif

}  // namespace mc::ops
