// Element types of weights, activations and KV, and the conversion that most folders need.
// bf16 is stored as its raw 16 bits: the upper half of an f32.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace mc {

enum class Dtype : uint8_t { f32 = 0, bf16 = 1, f16 = 2, f8_e4m3 = 3 };

constexpr size_t dtype_bytes(Dtype dtype) {
  switch (dtype) {
    case Dtype::f32: return 4;
    case Dtype::bf16:
    case Dtype::f16: return 2;
    case Dtype::f8_e4m3: return 1;
  }
  return 0;
}

constexpr std::string_view to_string(Dtype dtype) {
  switch (dtype) {
    case Dtype::f32: return "f32";
    case Dtype::bf16: return "bf16";
    case Dtype::f16: return "f16";
    case Dtype::f8_e4m3: return "fp8_e4m3";
  }
  return "?";
}

constexpr std::optional<Dtype> dtype_from(std::string_view name) {
  for (Dtype d : {Dtype::f32, Dtype::bf16, Dtype::f16, Dtype::f8_e4m3})
    if (to_string(d) == name) return d;
  return std::nullopt;
}

using bf16_t = uint16_t;

constexpr float bf16_to_f32(bf16_t value) { return std::bit_cast<float>(static_cast<uint32_t>(value) << 16); }

/// Round to nearest even; NaN stays NaN (quiet).
constexpr bf16_t f32_to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<bf16_t>((bits >> 16) | 0x40u);
  return static_cast<bf16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

}  // namespace mc
