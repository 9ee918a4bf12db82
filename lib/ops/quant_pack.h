// Fills panels of quant.h from weights of any format, one row (output) at a time.
//
//   source                       own form     8 bits                              4 bits
//   Q4_0 Q4_1                    four         exact                               exact
//   Q5_0 Q5_1 Q8_0 IQ4_NL        eight        exact                               quantised anew
//   Q4_K                         four_k       scale and minimum rounded to f16    scale and minimum rounded to f16
//   Q5_K                         five_k       scale and minimum rounded to f16    quantised anew
//   Q6_K                         six_k        quantised anew                      quantised anew
//   Q2_K Q3_K                    eight        quantised anew                      quantised anew
//   floats                       none         quantised anew                      quantised anew
//
// The K forms hold the blocks of their type exactly. Exact: the widened weight has the bits of the definition
// (gguf/types.h), as long as 128 |scale| is at most 65504.
// Rounded: a weight differs by at most (levels |scale| + |minimum|) / 2048, with 15 levels for Q4_K and 31 for Q5_K.
// Quantised anew: by at most half the new scale, which is at most (largest - least) / (255 or 15) of its group of 32
// weights, rounded up to the next f16 twice: by 1.002 times that, plus 2^-24.
// A group that f16 cannot hold (beyond 65504, or not finite) gets the scale NaN, which every output then shows.
#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "gguf/gguf.h"
#include "ops/quant.h"

namespace mc::ops {

/// The largest scale of a row of Q8_0 in place. The minimum of a larger one, -128 times it, would be no number in f16.
inline constexpr float kLineScaleMax = 65504.0f / 128;
/// The form in which a GGUF type is kept by itself; nullopt for plain floats.
std::optional<QuantForm> kept_form(gguf::Type type);
/// The form of rows of several types in one matrix, each of which has a form of its own.
QuantForm common_form(QuantForm left, QuantForm right);
/// Puts a row of blocks of `type` into lane `lane` of a panel whose bytes are zero. A K form takes its own type alone.
void pack_blocks(gguf::Type type, const std::byte* row, size_t k, QuantForm form, size_t lane, std::byte* panel);
/// The same for rows of blocks, into the lanes from `lane` on, many at a time where pack_variants() has the type in its
/// own form: with the same bytes, and the panel need not be zero then.
void pack_rows(gguf::Type type, std::span<const std::byte* const> rows, size_t k, QuantForm form, size_t lane,
               std::byte* panel);
/// The same for a row of floats, in four or eight.
void pack_floats(const float* row, size_t k, QuantForm form, size_t lane, std::byte* panel);
/// One weight of a panel, widened.
float quant_weight(const std::byte* panel, QuantForm form, size_t lane, size_t column);

/// Puts `count` rows of one type into a panel of its own form; `count` is a multiple of the variant's lanes.
using PackRows = void (*)(const std::byte* const* rows, size_t count, size_t k, size_t lane, std::byte* panel);
struct PackKernels {
  const char* name;
  bool (*supported)();
  size_t lanes;
  PackRows (*rows_of)(gguf::Type type);  // null for a type that pack_blocks() alone has
};
/// Every variant of this build, the fastest last. For tests.
std::span<const PackKernels* const> pack_variants();

uint16_t f32_to_f16(float value);  // to nearest even; for tests

}  // namespace mc::ops
