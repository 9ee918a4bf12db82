// AVX2. Codes become 16 bits wide and are multiplied by 16-bit inputs with vpmaddwd, two products a lane. The bytes of
// a lane are split into its even and its odd ones, so four inputs lie in the order 0, 2, 1, 3.
#include "ops/has_f16c.h"
#include "ops/quant_lines.h"
#include "ops/quant_variants.h"
#include "ops/quant_words_avx2.h"

namespace mc::ops {
namespace {

bool supported() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
}

struct Avx2Quant {
  using ireg = __m256i;
  using freg = __m256;
  static constexpr size_t lanes = 8;
  static int word(const std::byte* at) {
    int value;
    __builtin_memcpy(&value, at, sizeof value);
    return value;
  }
  struct Dots {
    ireg sum = _mm256_setzero_si256();
    void start(int32_t first) { sum = _mm256_set1_epi32(first); }
    void add(ireg codes, const std::byte* x) {
      const ireg even = _mm256_and_si256(codes, _mm256_set1_epi16(255)), odd = _mm256_srli_epi16(codes, 8);
      sum = _mm256_add_epi32(sum, _mm256_madd_epi16(even, _mm256_set1_epi32(word(x))));
      sum = _mm256_add_epi32(sum, _mm256_madd_epi16(odd, _mm256_set1_epi32(word(x + 4))));
    }
    ireg total() const { return sum; }
  };
  static ireg load(const std::byte* codes) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes)); }
  static ireg low(ireg codes) { return _mm256_and_si256(codes, _mm256_set1_epi8(15)); }
  static ireg high(ireg codes) { return _mm256_and_si256(_mm256_srli_epi16(codes, 4), _mm256_set1_epi8(15)); }
  template <int kPair>
  static ireg joined(ireg low, ireg pairs) {
    const ireg moved = kPair < 2 ? _mm256_slli_epi16(pairs, kPair == 0 ? 4 : kPair == 1 ? 2 : 0)
                                 : _mm256_srli_epi16(pairs, kPair == 3 ? 2 : 0);
    return _mm256_or_si256(low, _mm256_and_si256(moved, _mm256_set1_epi8(0x30)));
  }
  static ireg zero_whole() { return _mm256_setzero_si256(); }
  /// sum + a * b
  static ireg add_product(ireg a, ireg b, ireg sum) { return _mm256_add_epi32(sum, _mm256_mullo_epi32(a, b)); }
  static freg to_float(ireg v) { return _mm256_cvtepi32_ps(v); }
  static freg load_f16(const std::byte* halves) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(halves)));
  }
  static ireg load_u8(const std::byte* bytes) {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes)));
  }
  static ireg load_i8(const std::byte* bytes) {
    return _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes)));
  }
  static void store(float* x, freg v) { _mm256_storeu_ps(x, v); }
  static void store_some(float* x, size_t n, freg v) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    _mm256_maskstore_ps(x, _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)), lane), v);
  }
  static freg set1(float v) { return _mm256_set1_ps(v); }
  static freg zero() { return _mm256_setzero_ps(); }
  static freg mul(freg a, freg b) { return _mm256_mul_ps(a, b); }
  static freg fma(freg a, freg b, freg c) { return _mm256_fmadd_ps(a, b, c); }
  static constexpr int vectors(int rows) { return rows == 1 ? 4 : rows == 2 ? 2 : 1; }

  /// The largest magnitude of a group, as the bits of a float.
  static uint32_t largest_bits(const float* x) {
    __m256i most = _mm256_setzero_si256();
    for (size_t i = 0; i < kQuantGroup; i += lanes)
      most = _mm256_max_epu32(
          most, _mm256_and_si256(_mm256_castps_si256(_mm256_loadu_ps(x + i)), _mm256_set1_epi32(0x7fffffff)));
    __m128i half = _mm_max_epu32(_mm256_castsi256_si128(most), _mm256_extracti128_si256(most, 1));
    half = _mm_max_epu32(half, _mm_shuffle_epi32(half, 0x4e));
    half = _mm_max_epu32(half, _mm_shuffle_epi32(half, 0xb1));
    return static_cast<uint32_t>(_mm_cvtsi128_si32(half));
  }

  static void quantise_group(const float* x, InputScale scale, std::byte* out, QuantInputGroup& group) {
    for (size_t i = 0; i < kQuantGroup; i += 16) {
      __m256i codes[2], sum = _mm256_setzero_si256();
      for (size_t j = 0; j < 2; ++j) {
        // 0 * infinity is no number, so a group that is not finite needs zeros of its own.
        codes[j] = scale.inverse == 0 ? _mm256_setzero_si256()
                                      : _mm256_cvtps_epi32(mul(_mm256_loadu_ps(x + i + 8 * j), set1(scale.inverse)));
        sum = _mm256_add_epi32(sum, codes[j]);
        codes[j] = _mm256_shuffle_epi32(codes[j], 0xd8);  // 0, 2, 1, 3 in each half
      }
      // vpackssdw works in halves of 128 bits; the permutation puts the quarters back in order.
      const __m256i packed = _mm256_permute4x64_epi64(_mm256_packs_epi32(codes[0], codes[1]), 0xd8);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i * sizeof(int16_t)), packed);
      __m128i half = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
      half = _mm_add_epi32(half, _mm_shuffle_epi32(half, 0x4e));
      half = _mm_add_epi32(half, _mm_shuffle_epi32(half, 0xb1));
      group.half_sum[i / 16] = _mm_cvtsi128_si32(half);
    }
    group.scale = scale.scale;
    group.sum = scale.scale * static_cast<float>(group.half_sum[0] + group.half_sum[1]);
  }
};

/// Sums of the blocks of eight rows of weights in place, whose words are put side by side: a lane has an output.
template <int kRows>
struct WordSums {
  static constexpr bool is_unrolled = kRows <= 2;
  const std::byte* x;
  size_t x_stride;

  WordSums(const std::byte* inputs, size_t stride) : x(inputs), x_stride(stride) {}
  void multiply(const std::byte* const* lines, size_t at, size_t next, uint16_t* scales, __m256i (&out)[kRows]) const {
    for (size_t i = 0; i < Avx2Quant::lanes; ++i) copy_scale(lines[i] + next, scales + i);
    __m256i codes[2][4];
    line_codes<Avx2Quant, Avx2Words>(lines, at, codes);
    Avx2Quant::Dots dots[kRows];
    for (size_t step = 0; step < 8; ++step)
      for (int r = 0; r < kRows; ++r) dots[r].add(codes[step / 4][step % 4], x + step * kInputStepBytes + r * x_stride);
    for (int r = 0; r < kRows; ++r) out[r] = dots[r].total();
  }
};

}  // namespace

const QuantKernels kQuantAvx2 = {.name = "avx2",
                                 .supported = supported,
                                 .rows_min = 1,
                                 .lines_min = 1,
                                 .lines_max = kQuantRows,
                                 .quantise_row = quant_row<Avx2Quant, row_alone>,
                                 .panel = quant_panel<Avx2Quant>,
                                 .lines = quant_lines<Avx2Quant, WordSums>};

}  // namespace mc::ops
