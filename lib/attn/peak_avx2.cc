// 12 chains of 8-lane f32 multiply-adds: more than latency times ports, fewer than registers.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>

#include "attn/bursts.h"

namespace mc::attn {
namespace {

constexpr int kChains = 12;

float run(int64_t rounds) {
  __m256 acc[kChains];
  for (int i = 0; i < kChains; ++i) acc[i] = _mm256_set1_ps(static_cast<float>(i));
  const __m256 a = _mm256_set1_ps(0.5f);
  const __m256 b = _mm256_set1_ps(1.0f);
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 32
    for (int i = 0; i < kChains; ++i) acc[i] = _mm256_fmadd_ps(acc[i], a, b);
  }
  for (int i = 1; i < kChains; ++i) acc[0] = _mm256_add_ps(acc[0], acc[i]);
  return _mm256_cvtss_f32(acc[0]);
}

}  // namespace

constinit const Burst kFmaAvx2 = {"fma_avx2", 2.0 * 8 * kChains, run};

}  // namespace mc::attn
