// AVX-512 without bf16 instructions: bf16 is widened to f32 on the way and multiplied by f32 fma. On
// Intel CPUs that is also the faster way (see dispatch.cc).
#include "ops/simd_avx512.h"
#include "ops/simd_kernels.h"
#include "ops/variants.h"

namespace mc::ops {
namespace {

bool supported() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

}  // namespace

const Kernels kAvx512 = {"avx512",
                         supported,
                         TileGemm::onednn_widened,
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
                         nullptr,
                         panel_product<Avx512, PanelBf16<Avx512>>};

}  // namespace mc::ops
