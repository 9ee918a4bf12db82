// CRC32C of page extents, so that the checksum of KV is made where the KV is made, before the copy to the host.
//
// A CRC is linear. Word j of N contributes w_j x^(32 (N - j)) modulo the polynomial, and so do the 32 ones at the start
// for j = 0. A thread sums its words i, i + 128, i + 256, ... by Horner's rule in steps of x^(32 * 128), and multiplies
// by the power that is left. The sums of the threads meet by exclusive or. Polynomials are reflected: bit 31 is x^0.
#include "gpu/kernels/layer.h"
#include "gpu/ptx/memory.cuh"
#include "gpu/ptx/warp.cuh"

namespace mc::gpu {
namespace {

constexpr uint32_t kPolynomial = 0x82f63b78u;  // CRC32C, RFC 3720 appendix B.4

/// a b; `a` is a constant, so the loop is shifts and exclusive ors alone.
MC_DEVICE constexpr uint32_t multiply(uint32_t a, uint32_t b) {
  uint32_t product = 0;
#pragma unroll
  for (int bit = 31; bit >= 0; --bit) {
    product ^= (a >> bit & 1) != 0 ? b : 0;
    b = (b >> 1) ^ (kPolynomial & (0u - (b & 1)));
  }
  return product;
}

/// x^(32 * 2^k)
constexpr uint32_t power(int k) {
  uint32_t out = 1u << 30;  // x
  for (int i = 0; i < 5 + k; ++i) {
    uint32_t a = out, b = out, product = 0;
    for (uint32_t bit = 1u << 31; bit != 0; bit >>= 1) {
      if ((a & bit) != 0) product ^= b;
      b = (b & 1) != 0 ? (b >> 1) ^ kPolynomial : b >> 1;
    }
    out = product;
  }
  return out;
}

/// value x^(32 words), for 0 to 255 words.
template <int kBit = 7>
MC_DEVICE uint32_t advance(uint32_t value, uint32_t words) {
  constexpr uint32_t kPower = power(kBit);
  if ((words >> kBit & 1) != 0) value = multiply(kPower, value);
  if constexpr (kBit > 0) value = advance<kBit - 1>(value, words);
  return value;
}

}  // namespace

MC_KERNEL(checksum_extents, (kThreads))(MC_PARAM(ChecksumArgs) args) {
  constexpr uint32_t kStride = power(7);  // of 128 words
  static_assert(kThreads == 128);
  const uint32_t thread = ptx::tid_x(), shared = ptx::dynamic_shared<16>();
  const RowPlace page = ptx::load(args.pages + ptx::ctaid_x());
  if (page.page < 0) return;
  const uint32_t* words = reinterpret_cast<const uint32_t*>(args.extents + page.page * args.page_bytes);
  uint32_t sum = 0, next = thread;
  for (; next < args.words; next += kThreads) sum = multiply(kStride, sum) ^ ptx::load(words + next);
  // `next` is behind the thread's last word by 128.
  if (next > thread) sum = advance(sum, args.words - (next - kThreads));
#pragma unroll
  for (uint32_t by = 16; by > 0; by /= 2) sum ^= ptx::shuffle_xor(sum, by);
  if (thread % 32 == 0) ptx::store_shared_u32(shared + thread / 8, sum);
  ptx::barrier_all();
  if (thread > 0) return;
  uint32_t all = args.start;
  for (uint32_t warp = 0; warp < kThreads / 32; ++warp) all ^= ptx::load_shared_u32(shared + warp * 4);
  ptx::store(args.sums + ptx::ctaid_x(), ~all);
}

}  // namespace mc::gpu
