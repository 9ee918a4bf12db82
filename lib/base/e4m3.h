// E4M3 numbers of one byte (OCP OFP8: 1 sign, 4 bits of exponent, 3 of mantissa, no infinities, largest 448), and the
// scales under which rows of K and V are stored in it (base/extent.h). GPU kernels compile these functions as device
// code, so they use no standard library.
//
// A scale is a power of two from 2^-116 to 2^119. E4M3 has an exponent of its own, so other factors would give no more
// precision. A power of two makes code * scale exact in bf16 and f32, so attention over E4M3 pages is attention over
// bf16 pages that hold these values. The limits keep each product a normal number of both types.
//
// A value x of a row goes into a page in two steps:
//   1  round x to nearest even under the row's own scale, the smallest that covers the row (e4m3_exponent)
//   2  divide by page scale / row scale, towards zero (e4m3_shift); the scale of a page is the largest of its rows'
// The second step drops bits of small values only, those that become subnormal. Dropping composes: halving twice is
// dividing by four. So a page that grows by a row with a larger scale shifts its codes, and its bytes equal those of a
// page that was written at once. They depend on its rows alone, never on how the rows arrived.
//
// The stored value differs from x by at most |x| / 16 + scale / 512. The scale is at most 1 / 224 of the largest value
// of the page, unless that is below 2^-107. A value beyond 448 * 2^119 becomes that number. NaN and infinities are
// stored as NaN, because a finite value in their place would hide a broken model.
#pragma once

#include <cstdint>

namespace mc {

constexpr int kE4m3ExponentMin = -116, kE4m3ExponentMax = 119;
constexpr uint8_t kE4m3Nan = 0x7f;  // beside the sign

/// 2^exponent, which must be that of a normal number.
constexpr float e4m3_scale(int exponent) {
  return __builtin_bit_cast(float, static_cast<uint32_t>(exponent + 127) << 23);
}

/// The exponent of a stored scale. The bytes of a page may come from outside: others than a scale give some exponent in
/// the limits.
constexpr int e4m3_exponent_of(float scale) {
  const int exponent = static_cast<int>(__builtin_bit_cast(uint32_t, scale) >> 23 & 0xff) - 127;
  return exponent < kE4m3ExponentMin ? kE4m3ExponentMin : exponent > kE4m3ExponentMax ? kE4m3ExponentMax : exponent;
}

/// The exponent of the smallest scale with |largest| <= 448 * scale, within the limits. `largest` is finite.
constexpr int e4m3_exponent(float largest) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, largest) & 0x7fffffffu;
  // 448 is 1.75 * 2^8, so a mantissa beyond 1.75 needs one more.
  const int exponent = static_cast<int>(bits >> 23) - 127 - 8 + ((bits & 0x7fffffu) > 0x600000u ? 1 : 0);
  return exponent < kE4m3ExponentMin ? kE4m3ExponentMin : exponent > kE4m3ExponentMax ? kE4m3ExponentMax : exponent;
}

constexpr bool e4m3_is_finite(float value) {
  return (__builtin_bit_cast(uint32_t, value) & 0x7f800000u) != 0x7f800000u;
}

/// Rounds to nearest even. Values beyond 448 saturate; NaN and infinities give NaN.
constexpr uint8_t f32_to_e4m3(float value) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, value);
  const uint32_t sign = bits >> 24 & 0x80u, magnitude = bits & 0x7fffffffu;
  if (magnitude >= 0x7f800000u) return static_cast<uint8_t>(sign | kE4m3Nan);
  if (magnitude >= 0x43e00000u) return static_cast<uint8_t>(sign | 0x7eu);  // 448
  if (magnitude < 0x3c800000u) {                                            // 2^-6: the steps are 2^-9 wide
    const float shifted = __builtin_bit_cast(float, magnitude) + 16384.0f;  // 2^14, whose steps are 2^-9 wide
    return static_cast<uint8_t>(sign | (__builtin_bit_cast(uint32_t, shifted) - 0x46800000u));
  }
  const uint32_t rounded = magnitude + 0x7ffffu + (magnitude >> 20 & 1u);
  return static_cast<uint8_t>(sign | ((rounded >> 20) - (120u << 3)));
}

/// The code of value / 2^exponent under step 1.
constexpr uint8_t e4m3_code(float value, int exponent) {
  return f32_to_e4m3(value * e4m3_scale(-exponent));
}

/// The code of its value / 2^by, rounded towards zero. The sign and NaN are kept. by >= 0.
constexpr uint8_t e4m3_shift(uint8_t code, int by) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  if ((code & 0x7f) == kE4m3Nan) return code;
  if (exponent > by) return static_cast<uint8_t>(code - (by << 3));
  // In steps of 2^-9 the value is mantissa, or (8 + mantissa) * 2^(exponent - 1).
  const int steps = exponent == 0 ? mantissa : 8 + mantissa, drop = exponent == 0 ? by : by - exponent + 1;
  return static_cast<uint8_t>((code & 0x80) | (drop > 7 ? 0 : steps >> drop));
}

/// NaN for both codes of NaN.
constexpr float e4m3_to_f32(uint8_t code) {
  const uint32_t sign = static_cast<uint32_t>(code & 0x80) << 24, magnitude = code & 0x7fu;
  if (magnitude == kE4m3Nan) return __builtin_bit_cast(float, sign | 0x7fc00000u);
  if (magnitude >= 8) return __builtin_bit_cast(float, sign | ((magnitude << 20) + (120u << 23)));
  const float small = static_cast<float>(magnitude) * 0.001953125f;  // 2^-9
  return sign != 0 ? -small : small;
}

}  // namespace mc
