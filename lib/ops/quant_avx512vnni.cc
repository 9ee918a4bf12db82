// AVX-512 with VNNI, in two variants that give the same bits.
// Few rows: an input's 16 bits are two signed bytes, 256 * high + low, and each of them is multiplied by the codes with
// vpdpbusd, four products a lane: |sum| <= 32 * 255 * 32512 fits 32 bits.
// Many rows: codes of eight groups become 16 bits wide once for all rows, and vpdpwssd multiplies them by whole inputs,
// two products a lane. A sum then has one register in place of two, so the sums of twelve rows and 32 outputs fit. In
// the forms of K types the wide codes are multiplied by the whole-number scales of their groups, so that sums stay in
// registers for a run of groups.
// Weights in place have variants of both: blocks of neighbouring rows are multiplied as they lie, or their codes become
// wide as those of a panel do.
#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "ops/quant_lines.h"
#include "ops/quant_variants.h"
#include "ops/quant_words_avx512.h"

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
  static ireg zero_whole() { return _mm512_setzero_si512(); }
  /// sum + a * b
  static ireg add_product(ireg a, ireg b, ireg sum) { return _mm512_add_epi32(sum, _mm512_mullo_epi32(a, b)); }
  static freg to_float(ireg v) { return _mm512_cvtepi32_ps(v); }
  static freg load_f16(const std::byte* halves) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(halves)));
  }
  static ireg load_u8(const std::byte* bytes) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes)));
  }
  static ireg load_i8(const std::byte* bytes) {
    return _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes)));
  }
  static constexpr int vectors(int rows) { return rows <= 2 ? 4 : 2; }

  static uint32_t largest_bits(const float* x) {
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
    return _mm512_reduce_max_epu32(
        _mm512_max_epu32(_mm512_and_si512(_mm512_castps_si512(Avx512::load(x)), magnitude),
                         _mm512_and_si512(_mm512_castps_si512(Avx512::load(x + 16)), magnitude)));
  }
  /// The codes of 16 inputs at a time, and their sums.
  template <class Store>
  static void quantise(const float* x, InputScale scale, QuantInputGroup& group, const Store& store) {
    for (int i = 0; i < 2; ++i) {
      // 0 * infinity is no number, so a group that is not finite needs zeros of its own.
      const __m512i codes = scale.inverse == 0
                                ? _mm512_setzero_si512()
                                : _mm512_cvtps_epi32(mul(Avx512::load(x + 16 * i), set1(scale.inverse)));
      group.half_sum[i] = _mm512_reduce_add_epi32(codes);
      store(i, codes);
    }
    group.scale = scale.scale;
    group.sum = scale.scale * static_cast<float>(group.half_sum[0] + group.half_sum[1]);
  }
  static void quantise_group(const float* x, InputScale scale, std::byte* out, QuantInputGroup& group) {
    quantise(x, scale, group, [&](int i, __m512i codes) {
      const __m512i high = _mm512_srai_epi32(_mm512_add_epi32(codes, _mm512_set1_epi32(128)), 8);
      const __m512i low = _mm512_sub_epi32(codes, _mm512_slli_epi32(high, 8));
      const __m128i h = _mm512_cvtepi32_epi8(high), l = _mm512_cvtepi32_epi8(low);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(out + 32 * i), _mm_unpacklo_epi32(h, l));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(out + 32 * i + 16), _mm_unpackhi_epi32(h, l));
    });
  }
};

// ---- few rows, weights in place ----

/// Sums of blocks of 16 rows. Here an output has eight lanes, whose sums are added up last: for few rows of inputs
/// that costs less than to put the words of weights side by side.
template <int kRows>
struct LineSums {
  static constexpr bool is_unrolled = true;
  __m512i high[kRows], low[kRows];  // the bytes of 32 inputs, twice

  LineSums(const std::byte* x, size_t x_stride) {
    // Words of four high bytes take turns with words of four low bytes.
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 0, 2, 4, 6, 8, 10, 12, 14);
    const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
    unrolled<kRows>([&](auto r) __attribute__((always_inline)) {
      const __m512i inputs = Vnni::load(x + r * x_stride);
      high[r] = _mm512_permutexvar_epi32(even, inputs);
      low[r] = _mm512_permutexvar_epi32(odd, inputs);
    });
  }

  [[gnu::always_inline]] void multiply(const std::byte* const* lines, size_t at, size_t next, uint16_t* scales,
                                       __m512i (&out)[kRows]) const {
    __m512i quads[2][kRows];  // of rows 0 to 7, then 8 to 15
    unrolled<2>([&](auto half) __attribute__((always_inline)) {
      __m512i sums[kRows][4];
      unrolled<4>([&](auto i) __attribute__((always_inline)) {
        constexpr size_t row = 8 * half + i;  // with the one four rows on, so that they end in order
        const std::byte *one = lines[row], *other = lines[row + 4];
        copy_scale(one + next, scales + row);
        copy_scale(other + next, scales + row + 4);
        const __m512i codes = two_blocks(one + at, other + at);
        unrolled<kRows>([&](auto r) __attribute__((always_inline)) {
          const __m512i sum = _mm512_slli_epi32(_mm512_dpbusd_epi32(_mm512_setzero_si512(), codes, high[r]), 8);
          sums[r][i] = _mm512_dpbusd_epi32(sum, codes, low[r]);
        });
      });
      unrolled<kRows>([&](auto r) __attribute__((always_inline)) { quads[half][r] = quarters(sums[r]); });
    });
    unrolled<kRows>([&](auto r) __attribute__((always_inline)) {
      out[r] = _mm512_add_epi32(_mm512_shuffle_i32x4(quads[0][r], quads[1][r], 0x88),
                                _mm512_shuffle_i32x4(quads[0][r], quads[1][r], 0xdd));
    });
  }

 private:
  /// The codes of two blocks, raised to 0 .. 255.
  static __m512i two_blocks(const std::byte* one, const std::byte* other) {
    const auto load = [](const std::byte* block) {
      return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(block + sizeof(uint16_t)));
    };
    const __m512i codes = _mm512_inserti64x4(_mm512_castsi256_si512(load(one)), load(other), 1);
    return _mm512_xor_si512(codes, _mm512_set1_epi8(-128));
  }
  /// The sums of the quarters of each, side by side.
  static __m512i quarters(const __m512i (&of)[4]) {
    const __m512i left = _mm512_add_epi32(_mm512_unpacklo_epi32(of[0], of[1]), _mm512_unpackhi_epi32(of[0], of[1]));
    const __m512i right = _mm512_add_epi32(_mm512_unpacklo_epi32(of[2], of[3]), _mm512_unpackhi_epi32(of[2], of[3]));
    return _mm512_add_epi32(_mm512_unpacklo_epi64(left, right), _mm512_unpackhi_epi64(left, right));
  }
};

constexpr size_t kFewLinesMax = 8;

// ---- many rows ----

constexpr size_t kTileGroups = 8;  // a block of the K forms; its wide codes are 16 KiB
constexpr int kStripRows = 12, kStripVectors = 2;
constexpr size_t kStripColumns = kStripVectors * Vnni::lanes;
constexpr size_t kTileRowsMax = 128;
constexpr size_t kPairBytes = kStripColumns * 2 * sizeof(int16_t);  // two inputs of each output

/// Inputs of 16 bits, four rows together: [pair of inputs][4 rows][2 inputs], then [group][4 rows] QuantInputGroup.
/// Four inputs are in the order 0, 2, 1, 3: codes split into the even and the odd bytes of a lane.
struct Wide {
  static constexpr size_t pair_step = kQuantRows * 2 * sizeof(int16_t);
  static constexpr size_t code_step = kQuantGroup / 2 * pair_step, group_step = kQuantRows * sizeof(QuantInputGroup);

  static RowPlaces places(std::byte* rows, size_t row, size_t k) {
    std::byte* begin = rows + row / kQuantRows * kQuantRows * quant_row_bytes(k);
    const size_t lane = row % kQuantRows;
    return {begin + lane * 2 * sizeof(int16_t), code_step,
            begin + quant_groups(k) * code_step + lane * sizeof(QuantInputGroup), group_step};
  }
  static uint32_t largest_bits(const float* x) { return Vnni::largest_bits(x); }
  static void quantise_group(const float* x, InputScale scale, std::byte* out, QuantInputGroup& group) {
    Vnni::quantise(x, scale, group, [&](int i, __m512i codes) {
      alignas(32) uint32_t pairs[8];
      _mm256_store_si256(reinterpret_cast<__m256i*>(pairs),
                         _mm512_cvtepi32_epi16(_mm512_shuffle_epi32(codes, _MM_PERM_DBCA)));
      for (size_t pair = 0; pair < 8; ++pair)
        __builtin_memcpy(out + (8 * i + pair) * pair_step, &pairs[pair], sizeof pairs[pair]);
    });
  }
};

/// At most eight groups of 32 outputs, wide. They stay in the first cache while rows go by.
struct QuantTile {
  alignas(64) std::byte codes[kTileGroups][kQuantGroup / 2][kPairBytes];  // a pair: [32 outputs][2 inputs]
  alignas(64) float scale[kTileGroups][kStripColumns];  // of each group; in the forms of K types one, of the block
  alignas(64) float minimum[kTileGroups][kStripColumns];
  size_t run_groups;    // quant_run_groups()
  size_t block_minima;  // rows of `minimum` that the block has, in the forms of K types
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

/// Scales for the wide codes of half a group, for the 16 outputs from `column` on: twice in each lane.
template <QuantForm kForm>
__m512i code_factors(const std::byte* group, size_t half, size_t column) {
  const std::byte* scales = group + quant_code_bytes(kForm) + column;
  const __m512i scale =
      kForm == QuantForm::six_k ? Vnni::load_i8(scales + half * kPanelColumns) : Vnni::load_u8(scales);
  return _mm512_or_si512(_mm512_and_si512(scale, _mm512_set1_epi32(0xffff)), _mm512_slli_epi32(scale, 16));
}

/// The codes of the outputs from `column` on as whole numbers of 16 bits: the bytes 0 and 2 of each lane, then the
/// bytes 1 and 3.
template <QuantForm kForm>
void widen_codes(const std::byte* group, size_t column, std::byte (&out)[kQuantGroup / 2][kPairBytes]) {
  for (int v = 0; v < kStripVectors; ++v)
    for (size_t step = 0; step < kQuantGroup / 4; ++step) {
      const __m512i codes = step_codes<kForm>(group, step, column + v * Vnni::lanes);
      __m512i even = _mm512_and_si512(codes, _mm512_set1_epi16(255)), odd = _mm512_srli_epi16(codes, 8);
      if constexpr (kForm == QuantForm::six_k) {
        even = _mm512_sub_epi16(even, _mm512_set1_epi16(32));
        odd = _mm512_sub_epi16(odd, _mm512_set1_epi16(32));
      }
      if constexpr (quant_block_groups(kForm) > 1) {
        const __m512i factors = code_factors<kForm>(group, step / 4, column + v * Vnni::lanes);
        even = _mm512_mullo_epi16(even, factors);
        odd = _mm512_mullo_epi16(odd, factors);
      }
      _mm512_store_si512(out[2 * step] + v * Vnni::lanes * 4, even);
      _mm512_store_si512(out[2 * step + 1] + v * Vnni::lanes * 4, odd);
    }
}

/// Fills a tile with `groups` groups, of which the first one or its block is at `from`.
template <QuantForm kForm>
void fill_tile(const std::byte* from, size_t groups, size_t column, QuantTile& tile) {
  tile.run_groups = quant_run_groups(kForm);
  tile.block_minima = kForm == QuantForm::four_k || kForm == QuantForm::five_k ? kTileGroups : 0;
  for (size_t g = 0; g < groups; ++g) {
    const std::byte* group = from + quant_group_offset(kForm, g);
    widen_codes<kForm>(group, column, tile.codes[g]);
    if constexpr (quant_block_groups(kForm) > 1) continue;
    const std::byte* factors = group + quant_code_bytes(kForm) + column * sizeof(uint16_t);
    for (size_t i = 0; i < kStripColumns; i += Vnni::lanes) {
      Vnni::store(tile.scale[g] + i, Vnni::load_f16(factors + i * sizeof(uint16_t)));
      Vnni::store(tile.minimum[g] + i, Vnni::load_f16(factors + (kPanelColumns + i) * sizeof(uint16_t)));
    }
  }
  if constexpr (quant_block_groups(kForm) > 1)
    for (size_t i = 0; i < kStripColumns; i += Vnni::lanes) {
      Vnni::store(tile.scale[0] + i, Vnni::load_f16(from + (column + i) * sizeof(uint16_t)));
      if constexpr (kForm != QuantForm::six_k) {
        const BlockMinima<Vnni, kForm> minima(from, column + i);
        for (size_t g = 0; g < groups; ++g) Vnni::store(tile.minimum[g] + i, minima.of(g));
      }
    }
}

template <int kRows>
using Totals = __m512[kRows][kStripVectors];
template <int kRows>
using Sums = __m512i[kRows][kStripVectors];

/// sum += codes . inputs. The intrinsic would let GCC 12 copy every sum in each round of the loop.
[[gnu::always_inline]] inline void add_words(__m512i& sum, __m512i codes, __m512i inputs) {
  asm("vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(codes), "v"(inputs));
}

/// The products of a pair of inputs of kRows rows. x has the rows in fours, x_stride bytes apart.
template <int kRows>
[[gnu::always_inline]] inline void add_pair(Sums<kRows>& sums, const std::byte* codes, const std::byte* x,
                                            size_t x_stride) {
  const __m512i left = Vnni::load(codes), right = Vnni::load(codes + Vnni::lanes * 4);
  unrolled<kRows>([&](auto r) __attribute__((always_inline)) {
    const std::byte* word = x + r / kQuantRows * x_stride + r % kQuantRows * 4;
    const __m512i inputs = _mm512_set1_epi32(Vnni::word(word));
    add_words(sums[r][0], left, inputs);
    add_words(sums[r][1], right, inputs);
  });
}

/// The products of some groups.
template <int kRows>
[[gnu::always_inline]] inline void add_groups(Sums<kRows>& sums, const std::byte* codes, size_t groups,
                                              const std::byte* x, size_t x_stride) {
  constexpr int kPairs = 4;  // code of a whole group would not fit the cache of decoded instructions
  const std::byte* end = codes + groups * kQuantGroup / 2 * kPairBytes;
#pragma GCC unroll 1
  for (; codes < end; codes += kPairs * kPairBytes, x += kPairs * Wide::pair_step)
    unrolled<kPairs>([&](auto pair) __attribute__((always_inline)) {
      add_pair<kRows>(sums, codes + pair * kPairBytes, x + pair * Wide::pair_step, x_stride);
    });
}

/// The numbers of a group of row `row`; x_groups is where the group's first four rows are.
inline const QuantInputGroup& wide_input(const std::byte* x_groups, size_t row, size_t x_stride) {
  return reinterpret_cast<const QuantInputGroup*>(x_groups + row / kQuantRows * x_stride)[row % kQuantRows];
}

/// Adds the minima of a group, times the sums of its inputs.
template <int kRows>
[[gnu::always_inline]] inline void add_minima(Totals<kRows>& total, const float* minimum, const std::byte* x_groups,
                                              size_t x_stride) {
  const __m512 left = Avx512::load(minimum), right = Avx512::load(minimum + Vnni::lanes);
  unrolled<kRows>([&](auto r) __attribute__((always_inline)) {
    const __m512 sum = Vnni::set1(wide_input(x_groups, r, x_stride).sum);
    total[r][0] = Vnni::fma(left, sum, total[r][0]);
    total[r][1] = Vnni::fma(right, sum, total[r][1]);
  });
}

/// Adds sums, times the scales of their weights and of their inputs.
template <int kRows>
[[gnu::always_inline]] inline void add_sums(Totals<kRows>& total, const Sums<kRows>& sums, const float* scale,
                                            const std::byte* x_groups, size_t x_stride) {
  const __m512 left = Avx512::load(scale), right = Avx512::load(scale + Vnni::lanes);
  unrolled<kRows>([&](auto r) __attribute__((always_inline)) {
    const __m512 input = Vnni::set1(wide_input(x_groups, r, x_stride).scale);
    total[r][0] = Vnni::fma(Vnni::to_float(sums[r][0]), Vnni::mul(left, input), total[r][0]);
    total[r][1] = Vnni::fma(Vnni::to_float(sums[r][1]), Vnni::mul(right, input), total[r][1]);
  });
}

/// Adds the groups of a tile to its outputs of kRows rows, in the order of quant_strip(). The forms of K types, whose
/// tiles are blocks, have one such function for all of them: a copy for each form would take the compiler 4 s more.
template <bool kBlocks, int kRows>
void tile_rows(const QuantTile& tile, size_t groups, const std::byte* x, const std::byte* x_groups, size_t x_stride,
               float (*y)[kStripColumns]) {
  const size_t run = kBlocks ? tile.run_groups : 1;
  Totals<kRows> total;
  unrolled<kRows>([&](auto r) __attribute__((always_inline)) {
    total[r][0] = Avx512::load(y[r]);
    total[r][1] = Avx512::load(y[r] + Vnni::lanes);
  });
#pragma GCC unroll 1
  for (size_t g = 0; g < groups; g += run) {
    Sums<kRows> sums;
    unrolled<kRows>([&](auto r) __attribute__((always_inline)) { sums[r][0] = sums[r][1] = _mm512_setzero_si512(); });
    add_groups<kRows>(sums, tile.codes[g][0], run, x + g * Wide::code_step, x_stride);
    add_sums<kRows>(total, sums, tile.scale[kBlocks ? 0 : g], x_groups + g * Wide::group_step, x_stride);
    if constexpr (!kBlocks) add_minima<kRows>(total, tile.minimum[g], x_groups + g * Wide::group_step, x_stride);
  }
  if constexpr (kBlocks)
#pragma GCC unroll 1
    for (size_t g = 0; g < tile.block_minima; ++g)
      add_minima<kRows>(total, tile.minimum[g], x_groups + g * Wide::group_step, x_stride);
  unrolled<kRows>([&](auto r) __attribute__((always_inline)) {
    Vnni::store(y[r], total[r][0]);
    Vnni::store(y[r] + Vnni::lanes, total[r][1]);
  });
}

template <bool kBlocks, int... kRows>
constexpr auto tile_rows_table(std::integer_sequence<int, kRows...>) {
  return std::array{tile_rows<kBlocks, kRows + 1>...};
}

/// A panel, from which tiles are filled.
template <QuantForm kForm>
struct PanelTiles {
  static constexpr QuantForm form = kForm;
  static constexpr size_t tile_bytes = quant_panel_bytes(kTileGroups * kQuantGroup, kForm);
  const std::byte* panel;

  const std::byte* tile(size_t first) const { return panel + first / kTileGroups * tile_bytes; }
  void fill(size_t first, size_t groups, size_t column, QuantTile& to) const {
    fill_tile<kForm>(tile(first), groups, column, to);
  }
  /// Brings a part of a tile into the second cache.
  void fetch(size_t first, size_t part, size_t parts) const {
    const size_t bytes = tile_bytes / parts + 64;
    for (size_t byte = 0; byte < bytes; byte += 64) __builtin_prefetch(tile(first) + part * bytes + byte, 0, 2);
  }
};

/// Rows of Q8_0 blocks in place.
struct LineTiles {
  static constexpr QuantForm form = QuantForm::eight;
  const std::byte* const* lines;
  size_t groups;  // of a row

  void fill(size_t first, size_t count, size_t column, QuantTile& to) const {
    alignas(64) uint16_t scales[kTileGroups][kStripColumns];
    for (size_t i = 0; i < kStripColumns; ++i)
      for (size_t g = 0; g < count; ++g) copy_scale(lines[column + i] + (first + g) * kLineBlockBytes, &scales[g][i]);
    for (size_t g = 0; g < count; ++g)
      for (size_t i = 0; i < kStripColumns; i += Vnni::lanes) {
        __m512i codes[2][4];
        line_codes<Vnni, Avx512Words>(lines + column + i, (first + g) * kLineBlockBytes, codes);
        for (size_t step = 0; step < 8; ++step) {  // as in widen_codes()
          const __m512i now = codes[step / 4][step % 4];
          _mm512_store_si512(to.codes[g][2 * step] + i * 4, _mm512_and_si512(now, _mm512_set1_epi16(255)));
          _mm512_store_si512(to.codes[g][2 * step + 1] + i * 4, _mm512_srli_epi16(now, 8));
        }
        const auto factors = line_factors<Vnni>(&scales[g][i]);
        Vnni::store(to.scale[g] + i, factors.scale);
        Vnni::store(to.minimum[g] + i, factors.minimum);
      }
  }
  void fetch(size_t first, size_t part, size_t parts) const {
    if (first >= groups) return;  // the rows of the next panel may be another thread's
    const size_t bytes = std::min(kTileGroups, groups - first) * kLineBlockBytes;
    for (size_t i = part * kPanelColumns / parts; i < (part + 1) * kPanelColumns / parts; ++i)
      for (size_t byte = 0; byte < bytes + 63; byte += 64)
        __builtin_prefetch(lines[i] + first * kLineBlockBytes + std::min(byte, bytes - 1), 0, 2);
  }
};

/// At most kTileRowsMax rows. Their totals lie together, because lines of y may be so far apart that they share few
/// sets of the caches.
template <class Tiles>
void tile_panel(const Tiles& from, const std::byte* x, size_t rows, size_t k, float* y, size_t y_stride,
                size_t columns) {
  constexpr bool kBlocks = quant_block_groups(Tiles::form) > 1;
  constexpr auto kRows = tile_rows_table<kBlocks>(std::make_integer_sequence<int, kStripRows>());
  const size_t groups = quant_groups(k), x_stride = kQuantRows * quant_row_bytes(k);
  const size_t strips = (rows + kStripRows - 1) / kStripRows, parts = strips * (kPanelColumns / kStripColumns);
  QuantTile tile;
  alignas(64) float totals[kPanelColumns / kStripColumns][kTileRowsMax][kStripColumns];
  for (auto& strip : totals) std::fill_n(strip[0], rows * kStripColumns, 0.0f);
  for (size_t first = 0; first < groups; first += kTileGroups) {
    const size_t count = std::min(kTileGroups, groups - first);
    size_t part = 0;  // of the next tile, which comes into the second cache meanwhile
    for (size_t column = 0; column < columns; column += kStripColumns) {
      from.fill(first, count, column, tile);
      for (size_t row = 0, now; row < rows; row += now) {
        now = std::min<size_t>(rows - row, kStripRows);
        from.fetch(first + kTileGroups, part++, parts);
        const std::byte* inputs = x + row / kQuantRows * x_stride;
        kRows[now - 1](tile, count, inputs + first * Wide::code_step,
                       inputs + groups * Wide::code_step + first * Wide::group_step, x_stride,
                       totals[column / kStripColumns] + row);
      }
    }
  }
  for (size_t row = 0; row < rows; ++row)
    for (size_t column = 0; column < columns; column += kStripColumns)
      std::copy_n(totals[column / kStripColumns][row], std::min(kStripColumns, columns - column),
                  y + row * y_stride + column);
}

/// Any number of rows.
template <class Tiles>
void tile_panels(const Tiles& from, const std::byte* x, size_t rows, size_t k, float* y, size_t y_stride,
                 size_t columns) {
  for (size_t row = 0; row < rows; row += kTileRowsMax)
    tile_panel(from, x + row * quant_row_bytes(k), std::min(rows - row, kTileRowsMax), k, y + row * y_stride, y_stride,
               columns);
}

void wide_panel(const std::byte* x, size_t rows, const std::byte* panel, size_t k, QuantForm form, float* y,
                size_t y_stride, size_t columns) {
  const auto run = [&]<QuantForm kForm>(PanelTiles<kForm> from) {
    tile_panels(from, x, rows, k, y, y_stride, columns);
  };
  switch (form) {
    case QuantForm::four: return run(PanelTiles<QuantForm::four>{panel});
    case QuantForm::eight: return run(PanelTiles<QuantForm::eight>{panel});
    case QuantForm::four_k: return run(PanelTiles<QuantForm::four_k>{panel});
    case QuantForm::five_k: return run(PanelTiles<QuantForm::five_k>{panel});
    case QuantForm::six_k: return run(PanelTiles<QuantForm::six_k>{panel});
  }
}

void wide_lines(const std::byte* x, size_t rows, const std::byte* const* lines, size_t k, float* y, size_t y_stride,
                size_t columns) {
  tile_panels(LineTiles{lines, quant_groups(k)}, x, rows, k, y, y_stride, columns);
}

}  // namespace

const QuantKernels kQuantAvx512Vnni = {.name = "avx512vnni",
                                       .supported = supported,
                                       .rows_min = 1,
                                       .lines_min = 1,
                                       .lines_max = kFewLinesMax,
                                       .quantise_row = quant_row<Vnni, row_alone>,
                                       .panel = quant_panel<Vnni>,
                                       .lines = quant_lines<Vnni, LineSums>};
const QuantKernels kQuantAvx512VnniTiles = {.name = "avx512vnni tiles",
                                            .supported = supported,
                                            .rows_min = 24,
                                            .lines_min = kFewLinesMax + 1,
                                            .lines_max = std::numeric_limits<size_t>::max(),
                                            .quantise_row = quant_row<Wide, Wide::places>,
                                            .panel = wide_panel,
                                            .lines = wide_lines};

}  // namespace mc::ops
