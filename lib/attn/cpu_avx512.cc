// AVX-512 leaves: 16 f32 lanes, 6 x 64 register tiles (24 accumulators of 32 registers).
#include "attn/simd_avx512.h"
#include "attn/tile_f32.h"

namespace mc::attn {
namespace {

/// 16 rows x 16 elements, transposed: element i of all rows goes to out + i * 16.
void pack_k(bool bf16, const void* rows, int valid, int head_dim, int dim, void* panel) {
  float* out = static_cast<float*>(panel);
  for (int i = 0; i < dim; i += kRun) {
    const int count = min_int(kRun, max_int(head_dim - i, 0));
    const __mmask16 lanes = V512::lanes_below(count);
    __m512i block[kRun];
    MC_UNROLL for (int key = 0; key < kRun; ++key) {
      const ptrdiff_t at = static_cast<ptrdiff_t>(key) * head_dim + i;
      const __mmask16 used = key < valid ? lanes : 0;
      if (bf16) {
        const __m256i half = _mm256_maskz_loadu_epi16(used, static_cast<const uint16_t*>(rows) + at);
        block[key] = _mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16);
      } else {
        block[key] = _mm512_maskz_loadu_epi32(used, static_cast<const float*>(rows) + at);
      }
    }
    transpose16(block);
    MC_UNROLL for (int element = 0; element < kRun; ++element)
        _mm512_storeu_si512(out + (i + element) * kRun, block[element]);
  }
}

void score_rows(const ScoreArgs& args, int head_dim, const CentroidRows& centroids, const CentroidRows& ahead) {
  score_rows_with<float>(args, head_dim, centroids, ahead,
                         [](auto& acc, __m512i pairs, const float* const* q, int i) MC_INLINE_LAMBDA {
                           const __m512 even = _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
                           const __m512 odd = _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(-0x10000)));
                           constexpr int kRows = sizeof(acc) / sizeof(acc[0]);
                           MC_UNROLL for (int r = 0; r < kRows; ++r) {
                             acc[r] = V512::fma(V512::set1(q[r][i]), even, acc[r]);
                             acc[r] = V512::fma(V512::set1(q[r][i + 1]), odd, acc[r]);
                           }
                         });
}

}  // namespace

constinit const Kernels kAvx512Kernels = F32Leaves<V512>::table(widen_e4m3, pack_k, score_rows);

}  // namespace mc::attn
