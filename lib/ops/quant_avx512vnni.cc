// AVX-512 with VNNI. An input's 16 bits are two signed bytes, 256 * high + low, and each of them is multiplied by the
// codes with vpdpbusd, four products a lane: |sum| <= 32 * 255 * 32512 fits 32 bits.
#include "ops/quant_simd.h"
#include "ops/quant_variants.h"
#include "ops/simd_avx512.h"

namespace mc::ops {
namespace {

bool supported() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vnni");
}

struct Vnni : Avx512 {
  using ireg = __m512i;
  using freg = __m512;
  static int word(const std::byte* at) {
    int value;
    __builtin_memcpy(&value, at, sizeof value);
    return value;
  }
  struct Dots {
    ireg high = _mm512_setzero_si512(), low = _mm512_setzero_si512();
    void start(int32_t sum) { low = _mm512_set1_epi32(sum); }
    /// The input's four high bytes come before its four low bytes.
    void add(ireg codes, const std::byte* x) {
      high = _mm512_dpbusd_epi32(high, codes, _mm512_set1_epi32(word(x)));
      low = _mm512_dpbusd_epi32(low, codes, _mm512_set1_epi32(word(x + 4)));
    }
    ireg total() const { return _mm512_add_epi32(_mm512_slli_epi32(high, 8), low); }
  };
  static ireg load(const std::byte* codes) { return _mm512_loadu_si512(codes); }
  static ireg low(ireg codes) { return _mm512_and_si512(codes, _mm512_set1_epi8(15)); }
  static ireg high(ireg codes) { return _mm512_and_si512(_mm512_srli_epi16(codes, 4), _mm512_set1_epi8(15)); }
  template <int kPair>
  static ireg joined(ireg low, ireg pairs) {
    const ireg moved = kPair < 2 ? _mm512_slli_epi16(pairs, kPair == 0 ? 4 : kPair == 1 ? 2 : 0)
                                 : _mm512_srli_epi16(pairs, kPair == 3 ? 2 : 0);
    return _mm512_or_si512(low, _mm512_and_si512(moved, _mm512_set1_epi8(0x30)));
  }
  static freg to_float(ireg v) { return _mm512_cvtepi32_ps(v); }
  static freg load_f16(const std::byte* halves) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(halves)));
  }
  static freg load_u8(const std::byte* bytes) {
    return to_float(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes))));
  }
  static freg load_i8(const std::byte* bytes) {
    return to_float(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes))));
  }
  static constexpr int vectors(int rows) { return rows <= 2 ? 4 : 2; }

  static void quantise_group(const float* x, std::byte* out, QuantInputGroup& group) {
    const __m512 v[2] = {Avx512::load(x), Avx512::load(x + 16)};
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
    const __m512i bits = _mm512_max_epu32(_mm512_and_si512(_mm512_castps_si512(v[0]), magnitude),
                                          _mm512_and_si512(_mm512_castps_si512(v[1]), magnitude));
    // As whole numbers the bits of magnitudes are in the order of the values, with infinity and NaN above all others.
    const uint32_t most = _mm512_reduce_max_epu32(bits);
    const InputScale scale =
        input_scale(most < 0x7f800000 ? _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(static_cast<int>(most))))
                                      : std::numeric_limits<float>::infinity());
    for (int i = 0; i < 2; ++i) {
      // 0 * infinity is no number, so a group that is not finite needs zeros of its own.
      const __m512i codes =
          scale.inverse == 0 ? _mm512_setzero_si512() : _mm512_cvtps_epi32(mul(v[i], set1(scale.inverse)));
      group.half_sum[i] = _mm512_reduce_add_epi32(codes);
      const __m512i high = _mm512_srai_epi32(_mm512_add_epi32(codes, _mm512_set1_epi32(128)), 8);
      const __m512i low = _mm512_sub_epi32(codes, _mm512_slli_epi32(high, 8));
      const __m128i h = _mm512_cvtepi32_epi8(high), l = _mm512_cvtepi32_epi8(low);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(out + 32 * i), _mm_unpacklo_epi32(h, l));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(out + 32 * i + 16), _mm_unpackhi_epi32(h, l));
    }
    group.scale = scale.scale;
    group.sum = scale.scale * static_cast<float>(group.half_sum[0] + group.half_sum[1]);
  }
};

}  // namespace

const QuantKernels kQuantAvx512Vnni = {"avx512vnni", supported, quant_rows<Vnni>, quant_panel<Vnni>};

}  // namespace mc::ops
