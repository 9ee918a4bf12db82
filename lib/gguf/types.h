// The element types of GGUF tensors. A quantised type cuts a row into blocks of 32 or 256 weights. Every block is a few
// groups of 16 or 32 weights, and a weight of group g is worth
//   scale[g] * code + minimum[g]
// with a whole number as code. unpack() gives these three, in plain double arithmetic. It is the definition of a type:
// everything else (widening to floats, the packed layouts of lib/ops) is derived from it or tested against it.
// Layouts: the block formats of the repository ggml-org/ggml; the goldens come from its Python package.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/dtype.h"

namespace mc::gguf {

/// The numbers in the file.
enum class Type : uint32_t {
  f32 = 0,
  f16 = 1,
  q4_0 = 2,
  q4_1 = 3,
  q5_0 = 6,
  q5_1 = 7,
  q8_0 = 8,
  q2_k = 10,
  q3_k = 11,
  q4_k = 12,
  q5_k = 13,
  q6_k = 14,
  iq4_nl = 20,
  bf16 = 30,
};

inline constexpr size_t kBlockMax = 256;   // weights of the largest block
inline constexpr size_t kGroupsMax = 16;   // groups of the largest block
inline constexpr size_t kGroupWidth = 32;  // a group's weights in most types; 16 in Q2_K, Q3_K, Q6_K

/// One block as whole numbers and the factors of its groups. Group g is codes [g * group, (g + 1) * group).
struct Block {
  size_t group = kGroupWidth;
  std::array<int16_t, kBlockMax> codes;
  std::array<double, kGroupsMax> scale, minimum;
  /// Q4_K, Q5_K and Q6_K alone: scale[g] is d * steps[g], and minimum[g] is -least * least_steps[g] (0 in Q6_K). d and
  /// least are f16.
  double d, least;
  std::array<int16_t, kGroupsMax> steps, least_steps;
};

struct TypeInfo {
  Type type;
  std::string_view name;       // as the format's documentation spells it: "Q4_K"
  size_t weights;              // of a block; 1 for plain floats
  size_t bytes;                // of a block
  std::optional<Dtype> plain;  // plain floats
  /// Reads a block of `bytes` bytes; null for plain floats.
  void (*unpack)(const std::byte* block, Block& out);
};

/// Every type that is read, ascending by number.
std::span<const TypeInfo> types();
const TypeInfo& info(Type type);
/// Null for a number without a row in types().
const TypeInfo* find_type(uint32_t number);
/// The name of any number that the format has given out, also of the types that are not read; otherwise
/// the number.
std::string type_name(uint32_t number);
/// "F32, F16, Q4_0 ...", for messages.
std::string type_names();

/// Bytes of a row; `columns` is a multiple of info(type).weights.
size_t row_bytes(Type type, size_t columns);
/// Widens a row of any type: the value in double, rounded once. out [columns]; `columns` as above.
void widen_row(Type type, const std::byte* row, size_t columns, float* out);

}  // namespace mc::gguf
