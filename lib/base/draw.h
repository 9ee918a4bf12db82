// The arithmetic of a draw from a softmax, in integers. The CPU's sampler and the GPU's kernel compile this one
// definition, so that one seed draws one token on both: sums of integers do not depend on their order, and each double
// operation here is a single IEEE rounding that no compiler can fuse with another. Functions are constexpr, which nvcc
// accepts as device code with --expt-relaxed-constexpr.
#pragma once

#include <cstdint>

namespace mc {

/// The weight of the likeliest token. A token whose probability is below 2^-40 of the likeliest one's is not drawn.
constexpr uint64_t kDrawWeightOne = uint64_t{1} << 40;
constexpr uint64_t kDrawVocabMax = uint64_t{1} << 22;  // the sum of its weights fits in 63 bits

/// log2(e) / temperature, in units of 2^-40; temperature > 0.
constexpr double draw_scale(float temperature) {
  return 1.4426950408889634 * 0x1p40 / static_cast<double>(temperature);
}

/// The high half of a product.
constexpr uint64_t high_product(uint64_t a, uint64_t b) {
  return static_cast<uint64_t>(static_cast<unsigned __int128>(a) * b >> 64);
}

/// exp((logit - top) / temperature) * kDrawWeightOne, rounded down: within 1 of it, and monotone in `logit`. 0 for NaN,
/// kDrawWeightOne for a logit above `top`.
constexpr uint64_t draw_weight(float top, float logit, double scale) {
  const double steps = (static_cast<double>(top) - static_cast<double>(logit)) * scale;  // of a 2^40th octave
  if (!(steps < 0x1p40 * 41)) return 0;
  const auto whole = steps > 0 ? static_cast<uint64_t>(steps) : 0;
  const uint64_t part = whole << 24;  // the fraction, over 2^64
  // 2^-part by Taylor's series. Coefficients are ln(2)^k / k! * 2^63 for k = 14 to 0.
  uint64_t p = 0x98a4b;
  p = 0xc0b0ca - high_product(part, p);
  p = 0xe1deb28 - high_product(part, p);
  p = 0xf465639b - high_product(part, p);
  p = 0xf267a8ac6 - high_product(part, p);
  p = 0xda929e9caf - high_product(part, p);
  p = 0xb160111d2e4 - high_product(part, p);
  p = 0x7ff2ff1622c3 - high_product(part, p);
  p = 0x50c244be1b1e2 - high_product(part, p);
  p = 0x2bb0ffcf14ce62 - high_product(part, p);
  p = 0x13b2ab6fba4e773 - high_product(part, p);
  p = 0x71ac235c1282fe3 - high_product(part, p);
  p = 0x1ebfbdff82c58ea8 - high_product(part, p);
  p = 0x58b90bfbe8e7bcd6 - high_product(part, p);
  p = 0x8000000000000000 - high_product(part, p);
  return p >> (23 + (whole >> 40));
}

/// The token is drawn whose weight, added to those before it, first exceeds this. `uniform` is a multiple of 2^-53 in
/// [0, 1), as philox_uniform() gives it; total > 0.
constexpr uint64_t draw_target(double uniform, uint64_t total) {
  return high_product(static_cast<uint64_t>(uniform * 0x1p53) << 11, total);
}

/// A nucleus ends with the token whose weight, added to those of all likelier ones, first reaches this; top_p < 1.
constexpr uint64_t nucleus_weight(float top_p, uint64_t total) {
  const auto limit = static_cast<uint64_t>(static_cast<double>(top_p) * static_cast<double>(total));
  return limit > 0 ? limit : 1;
}

/// The least weight that min_p keeps; at most that of the likeliest token.
constexpr uint64_t least_weight(float min_p) {
  return min_p < 1 ? static_cast<uint64_t>(static_cast<double>(min_p) * static_cast<double>(kDrawWeightOne))
                   : kDrawWeightOne;
}

}  // namespace mc
