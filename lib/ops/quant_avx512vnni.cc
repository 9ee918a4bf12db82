// AVX-512 with VNNI, in two variants that give the same bits.
// Few rows: an input's 16 bits are two signed bytes, 256 * high + low, and each of them is multiplied by the codes with
// vpdpbusd, four products a lane: |sum| <= 32 * 255 * 32512 fits 32 bits.
// Many rows: codes of eight groups become 16 bits wide once for all rows, and vpdpwssd multiplies them by whole inputs,
// two products a lane. A sum then has one register in place of two, so twelve sums fit beside their totals.
#include <algorithm>

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
    const ireg moved = kPair < 2 ? _mm512_slli_epi16(pairs, kPair == 0   ? 4
                                                            : kPair == 1 ? 2
                                                                         : 0)
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

  /// The codes of 16 inputs at a time; their sums and their scale.
  template <class Store>
  static void quantise(const float* x, QuantInputGroup& group, const Store& store) {
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
      store(i, codes);
    }
    group.scale = scale.scale;
    group.sum = scale.scale * static_cast<float>(group.half_sum[0] + group.half_sum[1]);
  }
  static void quantise_group(const float* x, std::byte* out, QuantInputGroup& group) {
    quantise(x, group, [&](int i, __m512i codes) {
      const __m512i high = _mm512_srai_epi32(_mm512_add_epi32(codes, _mm512_set1_epi32(128)), 8);
      const __m512i low = _mm512_sub_epi32(codes, _mm512_slli_epi32(high, 8));
      const __m128i h = _mm512_cvtepi32_epi8(high), l = _mm512_cvtepi32_epi8(low);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(out + 32 * i), _mm_unpacklo_epi32(h, l));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(out + 32 * i + 16), _mm_unpackhi_epi32(h, l));
    });
  }
};

// ---- many rows ----

constexpr size_t kTileGroups = 8;  // a block of the K forms; its wide codes are 32 KiB
constexpr int kStripRows = 6, kStripVectors = 2;
constexpr size_t kStripColumns = kStripVectors * Vnni::lanes, kStrips = kPanelColumns / kStripColumns;
constexpr size_t kPairBytes = kStripColumns * 2 * sizeof(int16_t);  // two inputs of each output

/// Inputs of 16 bits, four of them in the order 0, 2, 1, 3: codes split into the even and the odd bytes of a lane.
struct Wide {
  static void quantise_group(const float* x, std::byte* out, QuantInputGroup& group) {
    Vnni::quantise(x, group, [&](int i, __m512i codes) {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + 32 * i),
                          _mm512_cvtepi32_epi16(_mm512_shuffle_epi32(codes, _MM_PERM_DBCA)));
    });
  }
};

/// At most eight groups of a panel, wide. The codes of a strip of outputs lie together: they stay in the first cache
/// while rows go by.
struct QuantTile {
  alignas(64) std::byte codes[kStrips][kTileGroups][kQuantGroup / 2][kPairBytes];  // a pair: [32 outputs][2 inputs]
  alignas(64) float scale[kTileGroups][2][kPanelColumns];                          // of each half of a group in six_k
  alignas(64) float minimum[kTileGroups][kPanelColumns];  // not in six_k, whose codes are signed here
};

/// The codes of step `step`, four inputs each of 16 outputs from `column` on, with their bytes apart.
template <QuantForm kForm>
__m512i step_codes(const std::byte* group, size_t step, size_t column) {
  constexpr size_t kLineBytes = kPanelColumns * 4;
  const std::byte* at = group + column * 4;
  if constexpr (quant_code_bits(kForm) == 8) return Vnni::load(at + step * kLineBytes);
  const __m512i line = Vnni::load(at + step / 2 * kLineBytes);
  const __m512i low = step % 2 == 0 ? Vnni::low(line) : Vnni::high(line);
  if constexpr (quant_code_bits(kForm) == 4) return low;
  const __m512i tops = Vnni::load(at + (4 + step / 4) * kLineBytes);
  switch (step % 4) {
    case 0: return Vnni::joined<0>(low, tops);
    case 1: return Vnni::joined<1>(low, tops);
    case 2: return Vnni::joined<2>(low, tops);
    default: return Vnni::joined<3>(low, tops);
  }
}

/// The codes as whole numbers of 16 bits: the bytes 0 and 2 of each lane, then the bytes 1 and 3.
template <QuantForm kForm>
void widen_group(const std::byte* group, const std::byte* head, QuantTile& tile, size_t at) {
  const __m512i base = _mm512_set1_epi16(kForm == QuantForm::six_k ? 32 : 0);
  for (size_t step = 0; step < kQuantGroup / 4; ++step)
    for (size_t column = 0; column < kPanelColumns; column += Vnni::lanes) {
      const __m512i codes = step_codes<kForm>(group, step, column);
      std::byte* out = tile.codes[column / kStripColumns][at][2 * step] + column % kStripColumns * 4;
      _mm512_store_si512(out, _mm512_sub_epi16(_mm512_and_si512(codes, _mm512_set1_epi16(255)), base));
      _mm512_store_si512(out + kPairBytes, _mm512_sub_epi16(_mm512_srli_epi16(codes, 8), base));
    }
  for (size_t column = 0; column < kPanelColumns; column += Vnni::lanes) {
    if constexpr (kForm == QuantForm::six_k) {
      for (size_t half = 0; half < 2; ++half) {
        const std::byte* steps = group + quant_code_bytes(kForm) + half * kPanelColumns + column;
        Vnni::store(tile.scale[at][half] + column,
                    Vnni::mul(Vnni::load_f16(head + column * sizeof(uint16_t)), Vnni::load_i8(steps)));
      }
    } else {
      Vnni::freg scale, minimum;
      load_factors<Vnni, kForm>(group, head, column, scale, minimum);
      Vnni::store(tile.scale[at][0] + column, scale);
      Vnni::store(tile.minimum[at] + column, minimum);
    }
  }
}

/// Adds pairs [first, last) of a group to the sums.
template <int kRows>
inline void add_pairs(__m512i (&sums)[kRows][kStripVectors], const std::byte (*codes)[kPairBytes], size_t first,
                      size_t last, const std::byte* x, size_t x_stride) {
#pragma GCC unroll 16  // in a loop, GCC 12 copies every sum in each round
  for (size_t pair = first; pair < last; ++pair) {
    __m512i now[kStripVectors];
    for (int v = 0; v < kStripVectors; ++v) now[v] = Vnni::load(codes[pair] + v * Vnni::lanes * 4);
    for (int r = 0; r < kRows; ++r) {
      const __m512i inputs = _mm512_set1_epi32(Vnni::word(x + r * x_stride + pair * 2 * sizeof(int16_t)));
      for (int v = 0; v < kStripVectors; ++v) sums[r][v] = _mm512_dpwssd_epi32(sums[r][v], now[v], inputs);
    }
  }
}

/// Adds the groups of a tile to outputs [column, column + 32) of some rows, in the order of quant_strip().
template <QuantForm kForm, int kRows>
void tile_strip(const QuantTile& tile, size_t groups, size_t column, const std::byte* x, const QuantInputGroup* inputs,
                size_t x_stride, __m512 (&total)[kRows][kStripVectors]) {
  const auto input = [&](int row, size_t g) {
    return reinterpret_cast<const QuantInputGroup*>(reinterpret_cast<const std::byte*>(inputs) + row * x_stride) + g;
  };
  for (size_t g = 0; g < groups; ++g, x += kQuantGroup * sizeof(int16_t)) {
    constexpr size_t kHalves = kForm == QuantForm::six_k ? 2 : 1, kPairs = kQuantGroup / 2 / kHalves;
    for (size_t half = 0; half < kHalves; ++half) {
      __m512i sums[kRows][kStripVectors];
      for (int r = 0; r < kRows; ++r)
        for (int v = 0; v < kStripVectors; ++v) sums[r][v] = _mm512_setzero_si512();
      add_pairs<kRows>(sums, tile.codes[column / kStripColumns][g], half * kPairs, (half + 1) * kPairs, x, x_stride);
      for (int v = 0; v < kStripVectors; ++v) {
        const size_t at = column + v * Vnni::lanes;
        const __m512 scale = Avx512::load(tile.scale[g][half] + at);
        for (int r = 0; r < kRows; ++r)
          total[r][v] =
              Vnni::fma(Vnni::to_float(sums[r][v]), Vnni::mul(scale, Vnni::set1(input(r, g)->scale)), total[r][v]);
      }
    }
    if constexpr (kForm != QuantForm::six_k)
      for (int v = 0; v < kStripVectors; ++v) {
        const __m512 minimum = Avx512::load(tile.minimum[g] + column + v * Vnni::lanes);
        for (int r = 0; r < kRows; ++r) total[r][v] = Vnni::fma(minimum, Vnni::set1(input(r, g)->sum), total[r][v]);
      }
  }
}

/// One tile for kRows rows and the outputs from `column` on; y holds the totals of the tiles before it.
template <QuantForm kForm, int kRows>
void tile_rows(const QuantTile& tile, size_t groups, bool first, size_t column, const std::byte* x,
               const QuantInputGroup* inputs, size_t x_stride, float* y, size_t y_stride, size_t columns) {
  const auto left = [&](int v) {
    const size_t at = column + v * Vnni::lanes;
    return at >= columns ? 0 : std::min(columns - at, Vnni::lanes);
  };
  __m512 total[kRows][kStripVectors];
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < kStripVectors; ++v)
      total[r][v] = first ? Vnni::zero() : Vnni::load_some(y + r * y_stride + column + v * Vnni::lanes, left(v));
  tile_strip<kForm, kRows>(tile, groups, column, x, inputs, x_stride, total);
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < kStripVectors; ++v)
      Vnni::store_some(y + r * y_stride + column + v * Vnni::lanes, left(v), total[r][v]);
}

template <QuantForm kForm>
void tile_panel(const std::byte* x, size_t x_stride, size_t rows, const std::byte* panel, size_t k, float* y,
                size_t y_stride, size_t columns) {
  constexpr decltype(&tile_rows<kForm, 1>) kRows[kStripRows] = {tile_rows<kForm, 1>, tile_rows<kForm, 2>,
                                                                tile_rows<kForm, 3>, tile_rows<kForm, 4>,
                                                                tile_rows<kForm, 5>, tile_rows<kForm, 6>};
  const size_t groups = quant_groups(k), strips = (rows + kStripRows - 1) / kStripRows;
  const std::byte* x_groups = x + groups * kQuantGroup * sizeof(int16_t);
  constexpr size_t kTileBytes = kTileGroups * quant_group_bytes(kForm) + quant_head_bytes(kForm);
  const size_t ahead_bytes = kTileBytes / (strips * kStrips) + 64;
  QuantTile tile;
  for (size_t first = 0; first < groups; first += kTileGroups) {
    const size_t count = std::min(kTileGroups, groups - first);
    const std::byte* head = panel + first / quant_block_groups(kForm) * quant_block_bytes(kForm);
    for (size_t g = 0; g < count; ++g) widen_group<kForm>(panel + quant_group_offset(kForm, first + g), head, tile, g);
    // The next tile comes into the second cache meanwhile; behind a panel lies the next one.
    const std::byte* ahead = panel + quant_group_offset(kForm, first + kTileGroups);
    for (size_t column = 0; column < columns; column += kStripColumns)
      for (size_t strip = 0, row = 0; strip < strips; ++strip, ahead += ahead_bytes) {
        const size_t now = (rows - row + strips - strip - 1) / (strips - strip);
        for (size_t byte = 0; byte < ahead_bytes; byte += 64) __builtin_prefetch(ahead + byte, 0, 2);
        const std::byte* inputs = x + row * x_stride + first * kQuantGroup * sizeof(int16_t);
        const std::byte* input_groups = x_groups + row * x_stride + first * sizeof(QuantInputGroup);
        kRows[now - 1](tile, count, first == 0, column, inputs, reinterpret_cast<const QuantInputGroup*>(input_groups),
                       x_stride, y + row * y_stride, y_stride, columns);
        row += now;
      }
  }
}

void wide_panel(const std::byte* x, size_t x_stride, size_t rows, const std::byte* panel, size_t k, QuantForm form,
                float* y, size_t y_stride, size_t columns) {
  const auto tiles = [&] {
    switch (form) {
      case QuantForm::four: return tile_panel<QuantForm::four>;
      case QuantForm::eight: return tile_panel<QuantForm::eight>;
      case QuantForm::four_k: return tile_panel<QuantForm::four_k>;
      case QuantForm::five_k: return tile_panel<QuantForm::five_k>;
      case QuantForm::six_k: break;
    }
    return tile_panel<QuantForm::six_k>;
  }();
  tiles(x, x_stride, rows, panel, k, y, y_stride, columns);
}

}  // namespace

const QuantKernels kQuantAvx512Vnni = {"avx512vnni", supported, 1, quant_rows<Vnni>, quant_panel<Vnni>};
const QuantKernels kQuantAvx512VnniTiles = {"avx512vnni tiles", supported, 64, quant_rows<Wide>, wide_panel};

}  // namespace mc::ops
