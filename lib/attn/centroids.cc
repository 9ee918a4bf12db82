// Copies of the centroids in pages. See centroids.h.
#include "attn/centroids.h"

#include <algorithm>

#include "attn/cpu.h"
#include "attn/seal.h"
#include "base/parallel.h"

namespace mc::attn {

void CentroidIndex::extend(const Plan& plan, const std::byte* const* pages, int64_t tokens, Parallel& parallel) {
  const Mode& mode = plan.mode;
  MC_ASSERT_LE(plan.layers, static_cast<int32_t>(layout_.held().count()));
  const bool gates = mode_row(mode.kind).select != nullptr && tokens >= dense_below(mode);
  if (!gates || mode.block != moba_block_) count_ = 0;
  if (!gates) return;
  constexpr int64_t kStrip = CentroidView::kStripBlocks;
  moba_block_ = mode.block;
  const int64_t block_pages = mode.block / layout_.block_tokens, wanted = tokens / mode.block;
  const int64_t known = std::min(count_, wanted) * block_pages;
  const auto moved = std::mismatch(pages_.begin(), pages_.begin() + known, pages).first;
  count_ = (moved - pages_.begin()) / block_pages;
  pages_.resize(static_cast<size_t>(count_ * block_pages));
  if (count_ == wanted) return;
  const size_t strip_bytes = layout_.held().count() * layer_values() * sizeof(uint16_t);
  while (static_cast<int64_t>(strips_.size()) * kStrip < wanted) {
    auto strip = mem::HostBuffer::allocate(strip_bytes, {.name = "centroids"});
    if (!strip) break;
    starts_.push_back(strip->as<uint16_t>());
    strips_.push_back(std::move(*strip));
  }
  const int64_t end = std::min(wanted, static_cast<int64_t>(strips_.size()) * kStrip);
  const int64_t layers = std::max(plan.layers - plan.full_last, 0), first_strip = count_ / kStrip;
  const int64_t strips = (end + kStrip - 1) / kStrip - first_strip;
  parallel.for_each(layers * strips, [&](int64_t index, int) {
    const int64_t strip = first_strip + index % strips;
    take_in(static_cast<uint32_t>(index / strips), std::max(count_, strip * kStrip),
            std::min(end, (strip + 1) * kStrip), pages);
  });
  pages_.assign(pages, pages + end * block_pages);
  count_ = end;
}

void CentroidIndex::take_in(uint32_t layer, int64_t first, int64_t end, const std::byte* const* pages) {
  const FlushDenormals flush;  // the gate does the same where it makes centroids
  const KvView kv{pages, end * moba_block_, layout_.layer_offset(layer), {}};
  uint16_t* rows = starts_[static_cast<size_t>(first / CentroidView::kStripBlocks)] + view(layer).offset;
  for (int64_t block = first; block < end; ++block)
    for (uint32_t head = 0; head < layout_.kv_heads; ++head) {
      const int64_t row = head * CentroidView::kStripBlocks + block % CentroidView::kStripBlocks;
      centroid(layout_, kv, static_cast<int>(head), moba_block_, block,
               reinterpret_cast<bf16_t*>(rows + static_cast<size_t>(row) * layout_.head_dim));
    }
}

CentroidView CentroidIndex::view(uint32_t layer) const {
  return {starts_.data(), count_, moba_block_, (layer - layout_.held().first) * layer_values()};
}

size_t CentroidIndex::bytes() const {
  size_t sum = 0;
  for (const mem::HostBuffer& strip : strips_) sum += strip.size();
  return sum;
}

}  // namespace mc::attn
