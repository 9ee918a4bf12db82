// The tables that dispatch.cc chooses from; one file each.
#pragma once

#include "ops/ops.h"

namespace mc::ops {

extern const Kernels kRef;
#if defined(__x86_64__)
extern const Kernels kAvx2;
extern const Kernels kAvx512;
extern const Kernels kAvx512Bf16;
#endif

}  // namespace mc::ops
