// The tables that int8.cc chooses from; one file each.
#pragma once

#include "ops/int8.h"

namespace mc::ops {

#if defined(__x86_64__)
extern const Int8Kernels kInt8Avx2;
extern const Int8Kernels kInt8Avx512;
#endif

}  // namespace mc::ops
