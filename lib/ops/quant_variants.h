// The tables that quant.cc chooses from, one file each, and the rule for input scales that all of them follow.
#pragma once

#include <limits>

#include "ops/quant.h"
#include "ops/quant_pack.h"

namespace mc::ops {

#if defined(__x86_64__)
extern const QuantKernels kQuantAvx2;
extern const QuantKernels kQuantAvx512Vnni;
extern const QuantKernels kQuantAvx512VnniTiles;
extern const PackKernels kPackAvx2;
extern const PackKernels kPackAvx512;
#endif

struct InputScale {
  float scale, inverse;
};
/// For the largest magnitude of the inputs that share a scale; infinity stands for a value that is not finite.
inline InputScale input_scale(float largest, QuantForm form) {
  if (!(largest < std::numeric_limits<float>::infinity())) return {std::numeric_limits<float>::quiet_NaN(), 0};
  const float scale = largest / static_cast<float>(quant_input_max(form));
  if (scale < std::numeric_limits<float>::min())
    return {0, 0};  // its reciprocal may overflow; the inputs are nearly zero
  return {scale, 1 / scale};
}

}  // namespace mc::ops
