// What the CPU drivers share. See cpu.h.
#include "attn/cpu.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include <algorithm>
#include <cmath>
#include <numbers>

#include "attn/seal.h"

namespace mc::attn {

Shape shape_of(const ExtentLayout& layout, int32_t q_heads, float scale) {
  MC_ASSERT(layout.kv_heads > 0 && q_heads > 0 && q_heads % static_cast<int32_t>(layout.kv_heads) == 0);
  MC_ASSERT(layout.dtype == Dtype::f32 || layout.dtype == Dtype::bf16);
  MC_ASSERT(layout.head_dim > 0 && layout.head_dim <= kDimMax);
  MC_ASSERT(layout.block_tokens > 0 && layout.block_tokens % kRun == 0);
  Shape shape;
  shape.head_dim = static_cast<int>(layout.head_dim);
  shape.dim = static_cast<int>(round_up(layout.head_dim, kRun));
  shape.kv_heads = static_cast<int>(layout.kv_heads);
  shape.q_heads = q_heads;
  shape.group = q_heads / shape.kv_heads;
  shape.bf16 = layout.dtype == Dtype::bf16;
  const double softmax_scale =
      scale != 0 ? static_cast<double>(scale) : 1.0 / std::sqrt(static_cast<double>(layout.head_dim));
  shape.scale = static_cast<float>(softmax_scale * std::numbers::log2e);
  return shape;
}

#if defined(__x86_64__)
namespace {
constexpr unsigned kFlushToZero = 0x8000, kDenormalsAreZero = 0x0040;
}
FlushDenormals::FlushDenormals() : saved_(_mm_getcsr()) {
  _mm_setcsr(saved_ | kFlushToZero | kDenormalsAreZero);
}
FlushDenormals::~FlushDenormals() {
  _mm_setcsr(saved_);
}
#else
FlushDenormals::FlushDenormals() : saved_(0) {}
FlushDenormals::~FlushDenormals() {}
#endif

void pack_centroids(const Kernels& kernels, const ExtentLayout& layout, const Shape& shape, const KvView& kv,
                    int kv_head, int32_t moba_block, int64_t first, int64_t count, std::byte* strip) {
  const size_t panel_bytes = static_cast<size_t>(shape.dim) * kRun * kernels.element_bytes;
  for (int64_t run = first; run < first + kStripKeys; run += kRun, strip += panel_bytes) {
    bf16_t means[kRun * kDimMax];
    const int valid = static_cast<int>(std::clamp<int64_t>(count - run, 0, kRun));
    for (int i = 0; i < valid; ++i) centroid(layout, kv, kv_head, moba_block, run + i, means + i * shape.head_dim);
    kernels.pack_k(true, means, valid, shape.head_dim, shape.dim, strip);
  }
}

}  // namespace mc::attn
