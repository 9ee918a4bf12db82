// The layout of one layer's K and V of one KV block: the same bytes in a pool page, on the wire and on disk. kv
// allocates pages of them, attn reads and seals them, wire names the layout in block headers; they agree by using this
// one struct.
//
//   extent = for each kv_head:
//            | K [tokens, head_dim] | V [tokens, head_dim] | ksum f32 [head_dim] | kmean bf16 [head_dim] |
//            of fp8_e4m3 then  | scale of K f32 | scale of V f32 |
//            every part but the second scale starts on a 64-byte boundary; rows beyond the block's token count are zero
//   page   = extents of layers 0 .. layers-1, one after the other, rounded up to 4 KiB;
//            of a pipeline stage: of its own layers alone
//
// With fp8_e4m3 a value of K or V is its code times the scale (base/e4m3.h), which all rows of the page share. ksum and
// kmean are made of these values. A page that is still open has codes under the scale of its rows so far. A row with a
// larger scale shifts the codes of the rows before it, and the bytes are those of a page that got all rows at once. So
// an open page needs no second copy of its rows in a wider type: it is attended to, sent and stored like a full one.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/assert.h"
#include "base/dtype.h"

namespace mc {

constexpr size_t round_up(size_t value, size_t step) {
  return (value + step - 1) / step * step;
}

/// Layers [first, end) of a model.
struct LayerRange {
  uint32_t first = 0, end = 0;
  bool operator==(const LayerRange&) const = default;
  constexpr uint32_t count() const { return end - first; }
};

/// The layers of stage `stage` (0-based) of a pipeline of `stages`, at most as many as layers (Mooncake,
/// arXiv:2407.00079, "Multi-node Prefill").
constexpr LayerRange stage_layers(uint32_t layers, uint32_t stage, uint32_t stages) {
  MC_ASSERT(stage < stages && stages <= layers);
  return {layers * stage / stages, layers * (stage + 1) / stages};
}

struct ExtentLayout {
  static constexpr uint16_t kVersion = 1;  // goes into block headers and the namespace

  uint32_t layers = 0;
  uint32_t kv_heads = 0;
  uint32_t head_dim = 0;
  uint32_t block_tokens = 64;
  Dtype dtype = Dtype::bf16;  // of K and V: f32, bf16 or f8_e4m3
  LayerRange stage;           // the layers a page holds, of a pipeline stage; empty: all

  bool operator==(const ExtentLayout&) const = default;

  constexpr size_t row_bytes() const { return head_dim * dtype_bytes(dtype); }
  constexpr size_t k_offset() const { return 0; }
  constexpr size_t v_offset() const { return round_up(block_tokens * row_bytes(), 64); }
  constexpr size_t ksum_offset() const { return 2 * v_offset(); }
  constexpr size_t kmean_offset() const { return ksum_offset() + round_up(head_dim * 4, 64); }
  constexpr size_t scale_offset() const { return kmean_offset() + round_up(head_dim * 2, 64); }
  constexpr bool has_scales() const { return dtype == Dtype::f8_e4m3; }
  /// Bytes of one KV head's record: distance between heads inside an extent.
  constexpr size_t head_bytes() const { return scale_offset() + (has_scales() ? 64 : 0); }
  constexpr size_t layer_bytes() const { return kv_heads * head_bytes(); }
  /// `layer` is one of held(), counted in the model.
  constexpr size_t layer_offset(uint32_t layer) const { return (layer - stage.first) * layer_bytes(); }
  constexpr LayerRange held() const { return stage.count() > 0 ? stage : LayerRange{0, layers}; }
  constexpr size_t page_bytes() const { return round_up(held().count() * layer_bytes(), 4096); }
};

}  // namespace mc
