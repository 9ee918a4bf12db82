// Random values for the properties of matrix products: activations with zeros and outliers, and the unit of their
// bounds.
#pragma once

#include <vector>

#include "base/rng.h"

namespace mc::ops {

inline constexpr double kUlp = 5.9604644775390625e-8;  // 2^-24

inline std::vector<float> values(Rng& rng, size_t n) {
  std::vector<float> v(n);
  for (float& x : v) x = rng.chance(0.05) ? 0.0f : static_cast<float>(rng.normal() * (rng.chance(0.02) ? 30 : 1));
  return v;
}

}  // namespace mc::ops
