// Parts shared by the CPU drivers. See cpu.h.
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
  MC_ASSERT(layout.dtype == Dtype::f32 || layout.dtype == Dtype::bf16 || layout.has_scales());
  MC_ASSERT(layout.head_dim > 0 && layout.head_dim <= kDimMax);
  MC_ASSERT(layout.block_tokens > 0 && layout.block_tokens % kRun == 0);
  Shape shape;
  shape.head_dim = static_cast<int>(layout.head_dim);
  shape.dim = static_cast<int>(round_up(layout.head_dim, kRun));
  shape.kv_heads = static_cast<int>(layout.kv_heads);
  shape.q_heads = q_heads;
  shape.group = q_heads / shape.kv_heads;
  shape.bf16 = layout.dtype != Dtype::f32;
  shape.e4m3 = layout.has_scales();
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

KvRows rows_at(const ExtentLayout& layout, const KvView& kv, int64_t position, int kv_head) {
  const int64_t page = position / layout.block_tokens;
  const std::byte* record = head_record(layout, kv, page, kv_head);
  const std::byte* k = record + static_cast<size_t>(position - page * layout.block_tokens) * layout.row_bytes();
  return {k, k + layout.v_offset(), layout.has_scales() ? scales_of(layout, record) : ScaleExponents{}};
}

CentroidRows gather_centroids(const Kernels& kernels, const ExtentLayout& layout, const KvView& kv, int kv_head,
                              int32_t moba_block, int64_t first, int64_t end, uint16_t* means) {
  CentroidRows out;
  out.count = static_cast<int>(std::clamp<int64_t>(end - first, 0, kStripKeys));
  MC_ASSERT_LE(end * moba_block, kv.kv_len);
  const int64_t pages = moba_block / layout.block_tokens;
  const int head_dim = static_cast<int>(layout.head_dim);
  const auto ksum = [&](int64_t page) {
    return reinterpret_cast<const float*>(head_record(layout, kv, page, kv_head) + layout.ksum_offset());
  };
  // The sums are one record apart, where no hardware prefetcher fetches them.
  constexpr int64_t kAhead = 6;
  const int64_t end_page = (first + out.count) * pages;
  const auto ask_for = [&](int64_t begin, int64_t count) {
    for (int64_t page = begin; page < std::min(begin + count, end_page); ++page)
      for (int i = 0; i < head_dim; i += 16) __builtin_prefetch(ksum(page) + i);
  };
  const int64_t gathered = kv.centroids.moba_block == moba_block ? kv.centroids.count - first : 0;
  int i = 0;
  if (gathered > 0) {
    MC_ASSERT(first % CentroidView::kStripBlocks == 0);
    const uint16_t* rows = centroid_row(layout, kv.centroids, first, kv_head);
    for (; i < std::min<int64_t>(out.count, gathered); ++i) out.rows[i] = rows + i * head_dim;
  }
  if (pages > 1) ask_for((first + i) * pages, kAhead);
  for (; i < out.count; ++i) {
    const int64_t page = (first + i) * pages;
    uint16_t* mean = means + i * head_dim;
    out.rows[i] = mean;
    if (pages == 1) {
      out.rows[i] = reinterpret_cast<const uint16_t*>(head_record(layout, kv, page, kv_head) + layout.kmean_offset());
      continue;
    }
    ask_for(page + kAhead, pages);
    float sum[kDimMax];
    for (int64_t p = page; p < page + pages; ++p) kernels.add_row(ksum(p), head_dim, p == page, sum);
    kernels.mean_row(sum, static_cast<float>(moba_block), head_dim, mean);
  }
  return out;
}

void pack_centroids(const Kernels& kernels, const ExtentLayout& layout, const Shape& shape, const KvView& kv,
                    int kv_head, int32_t moba_block, int64_t first, int64_t count, std::byte* strip) {
  const size_t panel_bytes = static_cast<size_t>(shape.dim) * kRun * kernels.element_bytes;
  uint16_t means[kStripKeys * kDimMax], panel[kRun * kDimMax];
  const CentroidRows centroids = gather_centroids(kernels, layout, kv, kv_head, moba_block, first, count, means);
  for (int run = 0; run < kStripKeys; run += kRun, strip += panel_bytes) {
    const int valid = std::clamp(centroids.count - run, 0, kRun);
    for (int i = 0; i < valid; ++i) std::copy_n(centroids.rows[run + i], shape.head_dim, panel + i * shape.head_dim);
    kernels.pack_k(true, panel, valid, shape.head_dim, shape.dim, strip);
  }
}

}  // namespace mc::attn
