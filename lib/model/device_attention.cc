#include "model/device_attention.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"

namespace mc::model {
namespace {

/// Whether each batch of a pass has MoBA rows: a batch for each of the modes that layers have under the plans.
std::vector<bool> batches_of(std::span<const attn::Plan> plans) {
  std::vector<std::vector<attn::Mode>> all;
  for (int32_t layer = 0; !plans.empty() && layer < plans.front().layers; ++layer) {
    std::vector<attn::Mode> modes;
    for (const attn::Plan& plan : plans) modes.push_back(plan.layer(layer));
    if (std::ranges::find(all, modes) == all.end()) all.push_back(std::move(modes));
  }
  std::vector<bool> out;
  for (const std::vector<attn::Mode>& modes : all)
    out.push_back(std::ranges::any_of(modes, [](const attn::Mode& m) { return m.kind == attn::ModeKind::moba; }));
  return out;
}

}  // namespace

gpu::AttentionMemory DeviceAttention::memory(const ExtentLayout& layout, int32_t q_heads, size_t rows, size_t sequences,
                                             std::span<const attn::Plan> plans, size_t device_bytes) {
  constexpr size_t kBatchesMin = 2;
  std::vector<bool> batches = batches_of(plans);
  const bool has_moba = std::ranges::find(batches, true) != batches.end();
  if (batches.size() < kBatchesMin) batches.resize(kBatchesMin, false);
  // The first one is that of attend_last_row().
  gpu::AttentionMemory out = gpu::attention_memory(layout, q_heads, 1, 1, has_moba, device_bytes);
  for (const bool with_moba : batches) {
    const gpu::AttentionMemory one = gpu::attention_memory(layout, q_heads, rows, sequences, with_moba, device_bytes);
    out.fixed += one.fixed, out.page += one.page;
  }
  return out;
}

void DeviceAttention::begin(const gpu::AttentionShape& shape, std::vector<gpu::SequenceRows> rows) {
  shape_ = shape;
  rows_ = std::move(rows);
  begun_ = 0;
}

Result<void> DeviceAttention::attend(std::vector<attn::Mode> modes, const gpu::AttentionLayer& layer) {
  MC_ASSERT_LE(modes.size(), rows_.size());
  modes.resize(rows_.size());  // rows of no sequence
  const auto begun = batches_.begin() + static_cast<ptrdiff_t>(begun_);
  auto found = std::find_if(batches_.begin(), begun, [&](const ModeBatch& b) { return b.modes == modes; });
  if (found == begun) {
    if (begun == batches_.end()) batches_.push_back({{}, gpu::AttentionBatch(device_)});
    found = batches_.begin() + static_cast<ptrdiff_t>(begun_);
    std::vector<gpu::SequenceRows> rows = rows_;
    for (size_t i = 0; i < rows.size(); ++i) rows[i].mode = modes[i];
    MC_CHECK(found->batch.begin(shape_, std::move(rows)));
    found->modes = std::move(modes);
    ++begun_;
  }
  return found->batch.attend(layer);
}

Result<void> DeviceAttention::attend_last_row(const attn::Mode& mode, const gpu::AttentionLayer& layer) {
  MC_ASSERT(rows_.size() == 1 && rows_[0].tokens > 0);
  gpu::SequenceRows row = rows_[0];
  row.q_begin += row.tokens - 1;
  row.tokens = 1;
  row.mode = mode;
  MC_CHECK(last_row_.begin(shape_, {std::move(row)}));
  return last_row_.attend(layer);
}

}  // namespace mc::model
