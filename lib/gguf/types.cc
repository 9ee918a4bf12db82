// The definitions of the block types. Bit positions are written out as they lie in the file. Loops over bytes have
// constant bounds and read from copies, which nothing else can alias, so that compilers make vector instructions of
// them: every weight passes here when a model is loaded.
#include "gguf/types.h"

#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/assert.h"

namespace mc::gguf {
namespace {

uint8_t byte_at(const std::byte* block, size_t offset) {
  return static_cast<uint8_t>(block[offset]);
}

uint16_t word_at(const std::byte* block, size_t offset) {
  return static_cast<uint16_t>(byte_at(block, offset) | byte_at(block, offset + 1) << 8);
}

double half(uint16_t bits) {
  const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
  const double sign = bits >> 15 ? -1 : 1;
  if (exponent == 31) return mantissa ? std::numeric_limits<double>::quiet_NaN() : sign * HUGE_VAL;
  if (exponent == 0) return sign * mantissa * 0x1p-24;
  return sign * (1024 + mantissa) * 0x1p-25 * (1u << exponent);
}

/// A copy of the next bytes of a block, for loops.
template <size_t kCount>
std::array<uint8_t, kCount> copy_of(const std::byte* bytes) {
  std::array<uint8_t, kCount> copy;
  std::memcpy(copy.data(), bytes, kCount);
  return copy;
}

double half_at(const std::byte* block, size_t offset) {
  return half(word_at(block, offset));
}

/// 32 codes in 16 bytes: the low halves are weights 0 to 15, the high halves 16 to 31.
void read_nibbles(const std::byte* bytes, int16_t* out) {
  const auto pairs = copy_of<16>(bytes);
  for (size_t i = 0; i < 16; ++i) out[i] = pairs[i] & 15;
  for (size_t i = 0; i < 16; ++i) out[16 + i] = pairs[i] >> 4;
}

/// Blocks of one group of 32: the factors, then the codes. `high` is the offset of a 32-bit word with a fifth bit for
/// each code, or 0.
void unpack_32(const std::byte* block, size_t high, size_t codes, int zero, Block& out) {
  out.group = 32;
  read_nibbles(block + codes, out.codes.data());
  for (size_t i = 0; i < 32 && high > 0; ++i)
    out.codes[i] = static_cast<int16_t>(out.codes[i] | (byte_at(block, high + i / 8) >> (i % 8) & 1) << 4);
  for (size_t i = 0; i < 32; ++i) out.codes[i] = static_cast<int16_t>(out.codes[i] - zero);
  out.scale[0] = half_at(block, 0);
  out.minimum[0] = 0;
}

void unpack_q4_0(const std::byte* block, Block& out) {
  unpack_32(block, 0, 2, 8, out);
}

void unpack_q4_1(const std::byte* block, Block& out) {
  unpack_32(block, 0, 4, 0, out);
  out.minimum[0] = half_at(block, 2);
}

void unpack_q5_0(const std::byte* block, Block& out) {
  unpack_32(block, 2, 6, 16, out);
}

void unpack_q5_1(const std::byte* block, Block& out) {
  unpack_32(block, 4, 8, 0, out);
  out.minimum[0] = half_at(block, 2);
}

void unpack_q8_0(const std::byte* block, Block& out) {
  out.group = 32;
  const auto codes = copy_of<32>(block + 2);
  for (size_t i = 0; i < 32; ++i) out.codes[i] = static_cast<int8_t>(codes[i]);
  out.scale[0] = half_at(block, 0);
  out.minimum[0] = 0;
}

void unpack_iq4_nl(const std::byte* block, Block& out) {
  constexpr int8_t kValues[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
  out.group = 32;
  read_nibbles(block + 2, out.codes.data());
  for (size_t i = 0; i < 32; ++i) out.codes[i] = kValues[out.codes[i]];
  out.scale[0] = half_at(block, 0);
  out.minimum[0] = 0;
}

/// Two bits of weight `i` of 256: a half of 128 weights has 32 bytes, whose bit pairs are four runs of 32 weights.
int pair_of_bits(const std::byte* bytes, size_t i) {
  return byte_at(bytes, i / 128 * 32 + i % 32) >> (i % 128 / 32 * 2) & 3;
}

/// scales[16] (scale in the low, minimum in the high nibble), codes[64], d, dmin
void unpack_q2_k(const std::byte* block, Block& out) {
  const double d = half_at(block, 80), least = half_at(block, 82);
  out.group = 16;
  for (size_t i = 0; i < 256; ++i) out.codes[i] = static_cast<int16_t>(pair_of_bits(block + 16, i));
  for (size_t g = 0; g < 16; ++g) {
    out.scale[g] = d * (byte_at(block, g) & 15);
    out.minimum[g] = -least * (byte_at(block, g) >> 4);
  }
}

/// high bits[32], low bits[64], scales[12], d. A clear high bit subtracts 4. Scales have 6 bits, less 32: the low four
/// in nibbles of the first 8 bytes, the high two in bit pairs of the last 4.
void unpack_q3_k(const std::byte* block, Block& out) {
  const double d = half_at(block, 108);
  out.group = 16;
  for (size_t i = 0; i < 256; ++i) {
    const int high = byte_at(block, i % 32) >> (i / 32) & 1;
    out.codes[i] = static_cast<int16_t>(pair_of_bits(block + 32, i) - (high ? 0 : 4));
  }
  for (size_t g = 0; g < 16; ++g) {
    const int low = byte_at(block, 96 + g % 8) >> (g < 8 ? 0 : 4) & 15;
    const int high = byte_at(block, 104 + g % 4) >> (g / 4 * 2) & 3;
    out.scale[g] = d * ((low | high << 4) - 32);
    out.minimum[g] = 0;
  }
}

/// The factors of Q4_K and Q5_K: d, dmin, then 8 scales and 8 minima of 6 bits in 12 bytes. The first four of each are
/// in the low bits of bytes 0 to 7; the top two bits of these bytes are the top bits of the other four, whose low
/// nibbles fill bytes 8 to 11.
void unpack_k_factors(const std::byte* block, Block& out) {
  const std::byte* packed = block + 4;
  out.d = half_at(block, 0);
  out.least = half_at(block, 2);
  out.group = 32;
  for (size_t g = 0; g < 8; ++g) {
    int scale, minimum;
    if (g < 4) {
      scale = byte_at(packed, g) & 63;
      minimum = byte_at(packed, g + 4) & 63;
    } else {
      scale = (byte_at(packed, g + 4) & 15) | byte_at(packed, g - 4) >> 6 << 4;
      minimum = byte_at(packed, g + 4) >> 4 | byte_at(packed, g) >> 6 << 4;
    }
    out.steps[g] = static_cast<int16_t>(scale);
    out.least_steps[g] = static_cast<int16_t>(minimum);
    out.scale[g] = out.d * scale;
    out.minimum[g] = -out.least * minimum;
  }
}

/// 256 codes in 128 bytes: each 32 bytes hold 64 weights, the first 32 in the low halves.
void read_k_nibbles(const std::byte* bytes, int16_t* out) {
  for (size_t run = 0; run < 4; ++run, bytes += 32, out += 64) {
    const auto pairs = copy_of<32>(bytes);
    for (size_t i = 0; i < 32; ++i) out[i] = pairs[i] & 15;
    for (size_t i = 0; i < 32; ++i) out[32 + i] = pairs[i] >> 4;
  }
}

void unpack_q4_k(const std::byte* block, Block& out) {
  unpack_k_factors(block, out);
  read_k_nibbles(block + 16, out.codes.data());
}

/// factors, fifth bits[32] (bit g of byte l belongs to weight 32 g + l), nibbles[128]
void unpack_q5_k(const std::byte* block, Block& out) {
  unpack_k_factors(block, out);
  read_k_nibbles(block + 48, out.codes.data());
  const auto fifth = copy_of<32>(block + 16);
  for (size_t g = 0; g < 8; ++g)
    for (size_t i = 0; i < 32; ++i) out.codes[32 * g + i] += static_cast<int16_t>((fifth[i] >> g & 1) << 4);
}

/// low nibbles[128], high pairs[64], scales[16] (signed), d. A half of 128 weights has 64 bytes of nibbles, whose low
/// halves are its weights 0 to 63, and 32 bytes of bit pairs, which are four runs of 32 weights.
void unpack_q6_k(const std::byte* block, Block& out) {
  out.d = half_at(block, 208);
  out.least = 0;
  out.group = 16;
  for (size_t half = 0; half < 2; ++half) {
    const auto low = copy_of<64>(block + 64 * half);
    const auto high = copy_of<32>(block + 128 + 32 * half);
    int16_t* codes = out.codes.data() + 128 * half;
    for (size_t i = 0; i < 64; ++i) codes[i] = low[i] & 15;
    for (size_t i = 0; i < 64; ++i) codes[64 + i] = low[i] >> 4;
    for (size_t run = 0; run < 4; ++run, codes += 32)
      for (size_t i = 0; i < 32; ++i) codes[i] += static_cast<int16_t>((high[i] >> (2 * run) & 3) * 16 - 32);
  }
  for (size_t g = 0; g < 16; ++g) {
    out.steps[g] = static_cast<int8_t>(byte_at(block, 192 + g));
    out.least_steps[g] = 0;
    out.scale[g] = out.d * out.steps[g];
    out.minimum[g] = 0;
  }
}

constexpr TypeInfo kTypes[] = {
    {Type::f32, "F32", 1, 4, Dtype::f32, nullptr},       {Type::f16, "F16", 1, 2, Dtype::f16, nullptr},
    {Type::q4_0, "Q4_0", 32, 18, {}, unpack_q4_0},       {Type::q4_1, "Q4_1", 32, 20, {}, unpack_q4_1},
    {Type::q5_0, "Q5_0", 32, 22, {}, unpack_q5_0},       {Type::q5_1, "Q5_1", 32, 24, {}, unpack_q5_1},
    {Type::q8_0, "Q8_0", 32, 34, {}, unpack_q8_0},       {Type::q2_k, "Q2_K", 256, 84, {}, unpack_q2_k},
    {Type::q3_k, "Q3_K", 256, 110, {}, unpack_q3_k},     {Type::q4_k, "Q4_K", 256, 144, {}, unpack_q4_k},
    {Type::q5_k, "Q5_K", 256, 176, {}, unpack_q5_k},     {Type::q6_k, "Q6_K", 256, 210, {}, unpack_q6_k},
    {Type::iq4_nl, "IQ4_NL", 32, 18, {}, unpack_iq4_nl}, {Type::bf16, "BF16", 1, 2, Dtype::bf16, nullptr},
};

/// Numbers of types that are not read here, so that a message can name them.
constexpr struct {
  uint32_t number;
  std::string_view name;
} kOtherTypes[] = {
    {9, "Q8_1"},   {15, "Q8_K"},  {16, "IQ2_XXS"}, {17, "IQ2_XS"}, {18, "IQ3_XXS"}, {19, "IQ1_S"},
    {21, "IQ3_S"}, {22, "IQ2_S"}, {23, "IQ4_XS"},  {24, "I8"},     {25, "I16"},     {26, "I32"},
    {27, "I64"},   {28, "F64"},   {29, "IQ1_M"},   {34, "TQ1_0"},  {35, "TQ2_0"},   {39, "MXFP4"},
};

}  // namespace

std::span<const TypeInfo> types() {
  return kTypes;
}

const TypeInfo* find_type(uint32_t number) {
  for (const TypeInfo& row : kTypes)
    if (static_cast<uint32_t>(row.type) == number) return &row;
  return nullptr;
}

const TypeInfo& info(Type type) {
  const TypeInfo* row = find_type(static_cast<uint32_t>(type));
  MC_ASSERT(row != nullptr);
  return *row;
}

std::string type_name(uint32_t number) {
  if (const TypeInfo* row = find_type(number)) return std::string(row->name);
  for (const auto& [other, name] : kOtherTypes)
    if (other == number) return std::string(name);
  return std::to_string(number);
}

std::string type_names() {
  std::string names;
  for (const TypeInfo& row : kTypes) names += (names.empty() ? "" : ", ") + std::string(row.name);
  return names;
}

size_t row_bytes(Type type, size_t columns) {
  const TypeInfo& row = info(type);
  MC_ASSERT_EQ(columns % row.weights, 0u);
  return columns / row.weights * row.bytes;
}

void widen_row(Type type, const std::byte* row, size_t columns, float* out) {
  const TypeInfo& format = info(type);
  MC_ASSERT_EQ(columns % format.weights, 0u);
  if (format.plain == Dtype::f32) {
    std::memcpy(out, row, columns * sizeof(float));
  } else if (format.plain == Dtype::f16) {
    for (size_t i = 0; i < columns; ++i) out[i] = static_cast<float>(half_at(row, 2 * i));
  } else if (format.plain == Dtype::bf16) {
    for (size_t i = 0; i < columns; ++i) out[i] = bf16_to_f32(word_at(row, 2 * i));
  } else {
    Block block;
    for (size_t first = 0; first < columns; first += format.weights, row += format.bytes) {
      format.unpack(row, block);
      MC_ASSERT_EQ(format.weights % block.group, 0u);
      for (size_t i = 0; i < format.weights; ++i)
        out[first + i] =
            static_cast<float>(block.scale[i / block.group] * block.codes[i] + block.minimum[i / block.group]);
    }
  }
}

}  // namespace mc::gguf
