#include "model/device_steps.h"

#include <cstring>
#include <utility>

#include "attn/attn.h"
#include "base/assert.h"
#include "gpu/kernels/layer.h"

namespace mc::model {

size_t kept_row_bytes(const ExtentLayout& layout) {
  if (layout.has_scales()) return gpu::kept_code_bytes(layout.kv_heads, layout.head_dim);
  return size_t{2} * layout.kv_heads * layout.row_bytes();
}

void write_kept_row(const ExtentLayout& layout, std::byte* extent, size_t slot, const std::byte* kept) {
  if (layout.has_scales()) return attn::append_codes(layout, extent, static_cast<int64_t>(slot), kept);
  const size_t head = layout.row_bytes();
  for (const size_t part : {layout.k_offset(), layout.v_offset()})
    for (size_t kv_head = 0; kv_head < layout.kv_heads; ++kv_head, kept += head)
      std::memcpy(extent + kv_head * layout.head_bytes() + part + slot * head, kept, head);
}

Result<void> DeviceSteps::queue(Step step) {
  MC_ASSERT(!step.rows.empty() && steps_.size() < kPlaces);
  MC_ASSERT(step.rows.size() <= step.kept_rows && step.summed.size() <= step.sum_rows);
  Queued queued{.step = std::move(step), .place = next_place()};
  Step& of = queued.step;
  const size_t row_bytes = kept_row_bytes(layout_);
  queued.kept.resize(layout_.layers * of.kept_rows * row_bytes);
  queued.sums.resize(layout_.layers * of.sum_rows);
  std::vector<DeviceCopies::Store> pieces = of.full_pages;
  pieces.push_back({of.kept, queued.kept.data(), queued.kept.size()});
  const auto sums = std::as_writable_bytes(std::span(queued.sums));
  if (!sums.empty()) pieces.push_back({of.sums, sums.data(), sums.size()});
  of.draws.add_copies(pieces);
  MC_CHECK(copies_.store(static_cast<uint32_t>(queued.place), std::move(pieces)));
  steps_.push_back(std::move(queued));
  return {};
}

Result<void> DeviceSteps::store(Queued& queued) {
  if (queued.is_stored) return {};
  MC_CHECK(copies_.finish_store(static_cast<uint32_t>(queued.place)));
  queued.is_stored = true;
  write_rows(queued);
  return {};
}

Result<void> DeviceSteps::store_all() {
  for (Queued& queued : steps_) MC_CHECK(store(queued));
  return {};
}

Result<void> DeviceSteps::finish(std::span<ops::Sampled> out) {
  MC_ASSERT(!steps_.empty());
  auto stored = store(steps_.front());
  const Queued ended = std::move(steps_.front());
  steps_.pop_front();
  first_ = (first_ + 1) % kPlaces;
  MC_CHECK(std::move(stored));
  note_sums(ended);
  return ended.step.draws.results(out);
}

/// Writes K and V of the rows into the caller's pages.
void DeviceSteps::write_rows(const Queued& queued) const {
  const size_t row_bytes = kept_row_bytes(layout_);
  for (uint32_t layer = 0; layer < layout_.layers; ++layer) {
    const std::byte* from = queued.kept.data() + layer * queued.step.kept_rows * row_bytes;
    for (const Row& row : queued.step.rows) {
      write_kept_row(layout_, row.page + kv_.host_offset(layer), row.slot, from);
      from += row_bytes;
    }
  }
}

void DeviceSteps::note_sums(const Queued& queued) {
  const size_t rows = queued.step.rows.size(), summed = queued.step.summed.size();
  sums_.clear();
  if (summed == 0) return;
  sums_.resize(layout_.layers * rows);
  for (uint32_t layer = 0; layer < layout_.layers; ++layer)
    for (size_t i = 0; i < summed; ++i)
      sums_[layer * rows + queued.step.summed[i]] = queued.sums[layer * queued.step.sum_rows + i];
}

}  // namespace mc::model
