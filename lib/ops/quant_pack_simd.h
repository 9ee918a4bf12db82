// Packing of blocks of GGUF types into panels of quant.h, many rows (outputs) at a time, over a vector type V; each
// file that includes this gets its own copy, compiled for its instruction set. The bytes are those of pack_blocks(),
// which is the definition. A block's codes never become single numbers: four 32-bit words of each of V::lanes rows are
// transposed, so that a register has the same four inputs of neighbouring outputs, which is how a panel has them.
// V has
//   ireg, freg           registers of `lanes` 32-bit words and floats
//   words(rows, at, to)  bytes [at, at + 16) of each row as words; to[i] has word i of the rows, in order
//   set1, both, either, flip (xor), left<n>, right<n>    of words
//   chosen(a, b, yes, no)                                `yes` where a == b
//   wide(halves), half(floats)                           f16 in the low 16 bits of words
//   mul, add, splat                                      of floats
//   store(at, v), store_u16(at, v), store_u8(at, v)      whole words, or their low bits
#pragma once

#include <cstring>

#include "ops/quant_pack.h"

namespace mc::ops {
namespace {  // NOLINT: every including file must own its copy

constexpr size_t kPackLineBytes = kPanelColumns * 4;
constexpr int kHalfExponent = 0x7c00, kHalfNaN = 0x7e00;

/// One block of V::lanes rows. `block` is where the block lies in a panel, `lane` the first output.
template <class V>
class LanePacker {
 public:
  using ireg = typename V::ireg;

  LanePacker(const std::byte* const* rows, size_t at, std::byte* block, size_t lane)
      : rows_(rows), at_(at), block_(block), lane_(lane) {}

  /// Groups of 32 with an f16 scale, in Q4_1 an f16 minimum, and 16 bytes of codes: the low halves are 0 to 15.
  template <int kFirstCode, bool kMinimum>
  void nibbles() {
    ireg words[4];
    V::words(rows_, at_, words);
    const ireg scale = V::both(words[0], V::set1(0xffff));
    const ireg minimum = kMinimum ? V::template right<16>(words[0]) : V::set1(0);
    V::words(rows_, at_ + (kMinimum ? 4 : 2), words);
    for (size_t pair = 0; pair < 2; ++pair) {
      V::store(line(block_, pair), low_pair(words[2 * pair], words[2 * pair + 1]));
      V::store(line(block_, 2 + pair), high_pair(words[2 * pair], words[2 * pair + 1]));
    }
    factors<kFirstCode>(block_ + quant_code_bytes(QuantForm::four), scale, minimum);
  }

  /// Q8_0: an f16 scale and 32 signed bytes.
  void bytes() {
    ireg words[4];
    V::words(rows_, at_, words);
    const ireg scale = V::both(words[0], V::set1(0xffff));
    for (size_t half = 0; half < 2; ++half) {
      V::words(rows_, at_ + 2 + 16 * half, words);
      for (size_t i = 0; i < 4; ++i)
        V::store(line(block_, 4 * half + i), V::flip(words[i], V::set1(static_cast<int>(0x80808080u))));
    }
    factors<-128>(block_ + quant_code_bytes(QuantForm::eight), scale, V::set1(0));
  }

  /// Q4_K and Q5_K: f16 d and least, 12 bytes of factors, in Q5_K 32 bytes with a fifth bit each, then 128 bytes whose
  /// runs of 32 have a group in the low halves and the next in the high halves (gguf/types.cc).
  template <QuantForm kForm>
  void k_nibbles() {
    constexpr bool kFifth = kForm == QuantForm::five_k;
    ireg words[4];
    V::words(rows_, at_, words);
    head(words[0], V::template right<16>(words[0]));
    const ireg six = V::set1(0x3f3f3f3f), low = V::set1(0x0f0f0f0f), top = V::set1(0x30303030);
    const ireg later = words[3];
    k_factors<kForm>(0, V::both(words[1], six), V::both(words[2], six));
    k_factors<kForm>(
        4, V::either(V::both(later, low), V::both(V::template right<2>(words[1]), top)),
        V::either(V::both(V::template right<4>(later), low), V::both(V::template right<2>(words[2]), top)));
    for (size_t quad = 0; quad < 8; ++quad) {
      V::words(rows_, at_ + (kFifth ? 48 : 16) + 16 * quad, words);
      std::byte* group = group_at<kForm>(quad / 2 * 2);
      std::byte* next = group + quant_group_bytes(kForm);
      for (size_t i = 0; i < 2; ++i) {
        V::store(line(group, quad % 2 * 2 + i), low_pair(words[2 * i], words[2 * i + 1]));
        V::store(line(next, quad % 2 * 2 + i), high_pair(words[2 * i], words[2 * i + 1]));
      }
    }
    if constexpr (kFifth) {
      for (size_t half = 0; half < 2; ++half) {
        V::words(rows_, at_ + 16 + 16 * half, words);
        fifth_bits<0>(half, words);
      }
    }
  }

  /// Q6_K: twice 64 bytes of low halves, twice 32 bytes of bit pairs, 16 signed scales, f16 d.
  void q6_k() {
    constexpr QuantForm kForm = QuantForm::six_k;
    ireg words[4];
    for (size_t quad = 0; quad < 8; ++quad) {
      V::words(rows_, at_ + 16 * quad, words);
      std::byte* group = group_at<kForm>(quad / 4 * 4 + quad % 4 / 2);
      std::byte* later = group + 2 * quant_group_bytes(kForm);
      for (size_t i = 0; i < 2; ++i) {
        V::store(line(group, quad % 2 * 2 + i), low_pair(words[2 * i], words[2 * i + 1]));
        V::store(line(later, quad % 2 * 2 + i), high_pair(words[2 * i], words[2 * i + 1]));
      }
    }
    for (size_t quad = 0; quad < 4; ++quad) {
      V::words(rows_, at_ + 128 + 16 * quad, words);
      bit_pairs(quad / 2 * 4, quad % 2, words);
    }
    V::words(rows_, at_ + 192, words);
    for (size_t i = 0; i < 4; ++i) {
      std::byte* group = group_at<kForm>(2 * i) + quant_code_bytes(kForm) + lane_;
      std::byte* next = group + quant_group_bytes(kForm);
      V::store_u8(group, words[i]);
      V::store_u8(group + kPanelColumns, V::template right<8>(words[i]));
      V::store_u8(next, V::template right<16>(words[i]));
      V::store_u8(next + kPanelColumns, V::template right<24>(words[i]));
    }
    V::words(rows_, at_ + 194, words);  // the last two bytes of these are d
    const ireg d = V::template right<16>(words[3]);
    const ireg exponent = V::set1(kHalfExponent);
    V::store_u16(block_ + lane_ * 2, V::chosen(V::both(d, exponent), exponent, V::set1(kHalfNaN), d));
  }

 private:
  std::byte* line(std::byte* group, size_t index) const { return group + index * kPackLineBytes + lane_ * 4; }
  template <QuantForm kForm>
  std::byte* group_at(size_t group) const {
    return block_ + quant_group_offset(kForm, group);
  }

  /// A line of two steps from words whose low halves, or high halves, are their codes.
  static ireg low_pair(ireg first, ireg second) {
    const ireg low = V::set1(0x0f0f0f0f);
    return V::either(V::both(first, low), V::template left<4>(V::both(second, low)));
  }
  static ireg high_pair(ireg first, ireg second) {
    const ireg high = V::set1(static_cast<int>(0xf0f0f0f0u));
    return V::either(V::template right<4>(V::both(first, high)), V::both(second, high));
  }

  /// f16 factors of four and eight; weights are scale * (code + kFirstCode) + minimum.
  template <int kFirstCode>
  void factors(std::byte* out, ireg scale, ireg minimum) {
    const auto moved = V::mul(V::wide(scale), V::splat(kFirstCode));
    const ireg least = V::half(V::add(V::wide(minimum), moved));
    const ireg exponent = V::set1(kHalfExponent);
    const auto held = [&](ireg of, ireg yes, ireg no) { return V::chosen(V::both(of, exponent), exponent, no, yes); };
    V::store_u16(out + lane_ * 2, held(scale, held(least, scale, V::set1(kHalfNaN)), V::set1(kHalfNaN)));
    V::store_u16(out + (kPanelColumns + lane_) * 2, held(scale, held(least, least, V::set1(0)), V::set1(0)));
  }

  /// f16 factors of a block; both are no numbers where one is not finite.
  void head(ireg d, ireg least) {
    const ireg exponent = V::set1(kHalfExponent), nan = V::set1(kHalfNaN);
    const auto held = [&](ireg value) {
      return V::chosen(V::both(d, exponent), exponent, nan, V::chosen(V::both(least, exponent), exponent, nan, value));
    };
    V::store_u16(block_ + lane_ * 2, held(d));
    V::store_u16(block_ + (kPanelColumns + lane_) * 2, held(least));
  }

  /// A byte of scale and of minimum for the four groups from `first` on.
  template <QuantForm kForm>
  void k_factors(size_t first, ireg scales, ireg minima) {
    std::byte* at = group_at<kForm>(first) + quant_code_bytes(kForm) + lane_;
    for (size_t i = 0; i < 4; ++i, at += quant_group_bytes(kForm)) {
      V::store_u8(at, scales);
      V::store_u8(at + kPanelColumns, minima);
      scales = V::template right<8>(scales);
      minima = V::template right<8>(minima);
    }
  }

  /// Bit kGroup of every byte is the fifth bit of a code of group kGroup; and so on for the groups after it.
  template <int kGroup>
  void fifth_bits(size_t half, const ireg (&words)[4]) {
    const ireg one = V::set1(0x01010101);
    const auto bit = [&](ireg word) { return V::both(V::template right<kGroup>(word), one); };
    V::store(line(group_at<QuantForm::five_k>(kGroup), 4 + half),
             V::either(V::either(bit(words[0]), V::template left<2>(bit(words[1]))),
                       V::either(V::template left<4>(bit(words[2])), V::template left<6>(bit(words[3])))));
    if constexpr (kGroup < 7) fifth_bits<kGroup + 1>(half, words);
  }

  /// Bits 2 i and 2 i + 1 of every byte are the high bits of a code of group `first` + i: a transposition of the pairs
  /// of bits of four words.
  void bit_pairs(size_t first, size_t half, const ireg (&words)[4]) {
    const ireg pair = V::set1(0x33333333), four = V::set1(0x0f0f0f0f);
    const auto even = [&](ireg a, ireg b) {
      return V::either(V::both(a, pair), V::template left<2>(V::both(b, pair)));
    };
    const auto odd = [&](ireg a, ireg b) {
      return V::either(V::both(V::template right<2>(a), pair), V::both(b, V::flip(pair, V::set1(-1))));
    };
    const auto low = [&](ireg a, ireg b) { return V::either(V::both(a, four), V::template left<4>(V::both(b, four))); };
    const auto high = [&](ireg a, ireg b) {
      return V::either(V::both(V::template right<4>(a), four), V::both(b, V::flip(four, V::set1(-1))));
    };
    const ireg even01 = even(words[0], words[1]), even23 = even(words[2], words[3]);
    const ireg odd01 = odd(words[0], words[1]), odd23 = odd(words[2], words[3]);
    const ireg tops[4] = {low(even01, even23), low(odd01, odd23), high(even01, even23), high(odd01, odd23)};
    for (size_t i = 0; i < 4; ++i) V::store(line(group_at<QuantForm::six_k>(first + i), 4 + half), tops[i]);
  }

  const std::byte* const* rows_;
  size_t at_;  // the block's offset in a row
  std::byte* block_;
  size_t lane_;
};

/// Rows read in one go come from as many places in memory, more than a core foresees by itself.
constexpr size_t kPackAheadBytes = 512;

template <class V, gguf::Type kType>
void pack_rows_of(const std::byte* const* rows, size_t count, size_t k, size_t lane, std::byte* panel) {
  const gguf::TypeInfo& info = gguf::info(kType);
  const QuantForm form = *kept_form(kType);
  const size_t block_bytes = info.bytes, step = quant_block_bytes(form), end = k / info.weights * block_bytes;
  for (size_t at = 0; at < end; at += block_bytes, panel += step)
    for (size_t row = 0; row < count; row += V::lanes) {
      for (size_t i = row; i < row + V::lanes; ++i)
        for (size_t byte = 0; byte < block_bytes; byte += 64) __builtin_prefetch(rows[i] + at + kPackAheadBytes + byte);
      LanePacker<V> packer(rows + row, at, panel, lane + row);
      if constexpr (kType == gguf::Type::q4_0) packer.template nibbles<-8, false>();
      if constexpr (kType == gguf::Type::q4_1) packer.template nibbles<0, true>();
      if constexpr (kType == gguf::Type::q8_0) packer.bytes();
      if constexpr (kType == gguf::Type::q4_k) packer.template k_nibbles<QuantForm::four_k>();
      if constexpr (kType == gguf::Type::q5_k) packer.template k_nibbles<QuantForm::five_k>();
      if constexpr (kType == gguf::Type::q6_k) packer.q6_k();
    }
}

template <class V>
PackRows pack_rows_for(gguf::Type type) {
  switch (type) {
    case gguf::Type::q4_0: return pack_rows_of<V, gguf::Type::q4_0>;
    case gguf::Type::q4_1: return pack_rows_of<V, gguf::Type::q4_1>;
    case gguf::Type::q8_0: return pack_rows_of<V, gguf::Type::q8_0>;
    case gguf::Type::q4_k: return pack_rows_of<V, gguf::Type::q4_k>;
    case gguf::Type::q5_k: return pack_rows_of<V, gguf::Type::q5_k>;
    case gguf::Type::q6_k: return pack_rows_of<V, gguf::Type::q6_k>;
    default: return nullptr;
  }
}

}  // namespace
}  // namespace mc::ops
