// AVX-512 with vdpbf16ps: products of bf16 pairs accumulated in f32, two k a step. The instruction
// flushes denormals and rounds after each pair; everything else is as in cpu_avx512.cc.
#include "ops/simd_avx512.h"
#include "ops/simd_kernels.h"
#include "ops/variants.h"

namespace mc::ops {
namespace {

bool supported() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512bf16");
}

struct PanelDot {
  using Row = bf16_t;
  using Weight = bf16_t;
  static constexpr size_t kScale = 2;

  template <int kRows, int kVectors>
  static inline void accumulate(const bf16_t* x, size_t x_stride, const bf16_t* panel, size_t k,
                                __m512 (&sum)[kRows][kVectors]) {
    for (size_t i = 0; i < k; i += 2) {
      ask_ahead(panel + i * kPanelColumns, kVectors * 64);
      __m512bh w[kVectors];
      for (int v = 0; v < kVectors; ++v) w[v] = (__m512bh)_mm512_loadu_si512(panel + i * kPanelColumns + 32 * v);
      for (int r = 0; r < kRows; ++r) {
        int pair;
        __builtin_memcpy(&pair, x + r * x_stride + i, 4);
        const __m512bh a = (__m512bh)_mm512_set1_epi32(pair);
        for (int v = 0; v < kVectors; ++v) sum[r][v] = _mm512_dpbf16_ps(sum[r][v], a, w[v]);
      }
    }
  }
};

}  // namespace

const Kernels kAvx512Bf16 = {"avx512bf16",
                             supported,
                             TileGemm::onednn,
                             rms_norm<Avx512>,
                             silu_mul<Avx512>,
                             add<Avx512>,
                             rope<Avx512>,
                             to_bf16<Avx512>,
                             from_bf16<Avx512>,
                             widen_pairs<Avx512>,
                             max<Avx512>,
                             sum_exp<Avx512>,
                             panel_product<Avx512, PanelF32<Avx512>>,
                             panel_product<Avx512, PanelDot>,
                             nullptr};

}  // namespace mc::ops
