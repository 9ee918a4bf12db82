// Copy and CRC32C in one loop: 256 bytes a turn are loaded once, stored, and folded into four 512-bit
// accumulators by carry-less multiplication (Gopal et al., "Fast CRC Computation for Generic
// Polynomials Using PCLMULQDQ", Intel 2009). An accumulator is congruent to what it has swallowed, so
// the end needs no Barrett reduction: its 64 bytes go through the crc32 instruction from register 0.
//
//   fold by D bits:  A * x^D  =  A.low * x^(D+32)  ^  A.high * x^(D-32)     per 128-bit lane, reflected
#include <immintrin.h>

#include <cstring>

#include "base/copy_crc.h"

namespace mc {
namespace {

constexpr size_t kTurnBytes = 256;

bool usable() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("vpclmulqdq") && __builtin_cpu_supports("sse4.2");
}

/// x^n modulo the CRC32C polynomial, reflected (bit 31 is x^0), and moved to where clmul wants it.
constexpr long long power(int n) {
  uint32_t r = 1u << 31;
  for (; n > 0; --n) r = (r & 1) ? (r >> 1) ^ 0x82f63b78u : r >> 1;
  return static_cast<long long>(static_cast<uint64_t>(r) << 1);
}

template <int kBits>
__m512i fold(__m512i a, __m512i next) {
  constexpr long long kLow = power(kBits + 32);
  constexpr long long kHigh = power(kBits - 32);
  const __m512i k = _mm512_set_epi64(kHigh, kLow, kHigh, kLow, kHigh, kLow, kHigh, kLow);
  const __m512i low = _mm512_clmulepi64_epi128(a, k, 0x00);
  const __m512i high = _mm512_clmulepi64_epi128(a, k, 0x11);
  return _mm512_ternarylogic_epi64(low, high, next, 0x96);  // xor of three
}

/// Continues the register over `size` bytes that are in L1.
uint32_t sum_small(const std::byte* at, size_t size, uint32_t reg) {
  uint64_t r = reg;
  for (; size >= 8; at += 8, size -= 8) {
    uint64_t word;
    std::memcpy(&word, at, 8);
    r = _mm_crc32_u64(r, word);
  }
  for (; size > 0; ++at, --size) r = _mm_crc32_u8(static_cast<uint32_t>(r), static_cast<uint8_t>(*at));
  return static_cast<uint32_t>(r);
}

uint32_t copy_small(std::byte* to, const std::byte* from, size_t size, uint32_t reg) {
  if (size == 0) return reg;
  std::memcpy(to, from, size);
  return sum_small(to, size, reg);
}

enum class To { cache, memory, nowhere };

template <To kTo>
void store(std::byte* to, __m512i value) {
  if constexpr (kTo == To::memory) _mm512_stream_si512(reinterpret_cast<__m512i*>(to), value);
  if constexpr (kTo == To::cache) _mm512_storeu_si512(to, value);
}

__m512i load(const std::byte* from) {
  return _mm512_loadu_si512(from);
}

/// size >= kTurnBytes. To::memory: `to` is 64-byte aligned. To::nowhere: `to` is not used.
template <To kTo>
uint32_t fold_all(std::byte* to, const std::byte* from, size_t size, uint32_t reg) {
  __m512i acc[4];
  for (size_t i = 0; i < 4; ++i) {
    acc[i] = load(from + 64 * i);
    store<kTo>(to + 64 * i, acc[i]);
  }
  acc[0] = _mm512_xor_si512(acc[0], _mm512_zextsi128_si512(_mm_cvtsi32_si128(static_cast<int>(reg))));
  for (from += kTurnBytes, to += kTurnBytes, size -= kTurnBytes; size >= kTurnBytes;
       from += kTurnBytes, to += kTurnBytes, size -= kTurnBytes) {
#pragma GCC unroll 4
    for (size_t i = 0; i < 4; ++i) {
      const __m512i next = load(from + 64 * i);
      store<kTo>(to + 64 * i, next);
      acc[i] = fold<8 * kTurnBytes>(acc[i], next);
    }
  }
  __m512i one = fold<512>(acc[2], acc[3]);
  one = fold<1024>(acc[1], one);
  one = fold<1536>(acc[0], one);
  for (; size >= 64; from += 64, to += 64, size -= 64) {
    const __m512i next = load(from);
    store<kTo>(to, next);
    one = fold<512>(one, next);
  }
  alignas(64) std::byte rest[64];
  _mm512_store_si512(rest, one);
  const uint32_t folded = sum_small(rest, sizeof rest, 0);
  return kTo == To::nowhere ? sum_small(from, size, folded) : copy_small(to, from, size, folded);
}

size_t to_alignment(const std::byte* at) {
  return -reinterpret_cast<uintptr_t>(at) & 63;
}

uint32_t copy_crc(std::byte* to, const std::byte* from, size_t size, uint32_t seed, bool stream) {
  uint32_t reg = ~seed;
  if (size < kTurnBytes) return ~copy_small(to, from, size, reg);
  if (!stream || size < kTurnBytes + 64) return ~fold_all<To::cache>(to, from, size, reg);
  const size_t head = to_alignment(to);
  reg = copy_small(to, from, head, reg);
  reg = fold_all<To::memory>(to + head, from + head, size - head, reg);
  _mm_sfence();  // whoever is told of this copy must find it
  return ~reg;
}

uint32_t sum(const std::byte* from, size_t size, uint32_t seed) {
  if (size < kTurnBytes) return ~sum_small(from, size, ~seed);
  return ~fold_all<To::nowhere>(const_cast<std::byte*>(from), from, size, ~seed);
}

void copy(std::byte* to, const std::byte* from, size_t size, bool stream) {
  if (!stream || size < kTurnBytes) {
    if (size > 0) std::memcpy(to, from, size);
    return;
  }
  const size_t head = to_alignment(to);
  std::memcpy(to, from, head);
  to += head, from += head, size -= head;
  for (; size >= kTurnBytes; from += kTurnBytes, to += kTurnBytes, size -= kTurnBytes) {
    const __m512i a = load(from), b = load(from + 64), c = load(from + 128), d = load(from + 192);
    store<To::memory>(to, a);
    store<To::memory>(to + 64, b);
    store<To::memory>(to + 128, c);
    store<To::memory>(to + 192, d);
  }
  std::memcpy(to, from, size);
  _mm_sfence();
}

}  // namespace

const CopyVariant kCopyAvx512 = {"avx512clmul", usable, copy_crc, copy, sum};

}  // namespace mc
