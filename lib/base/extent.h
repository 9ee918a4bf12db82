// How one layer's K and V of one KV block lie in memory (DESIGN 4): the same bytes in a pool page,
// on the wire and on disk. kv allocates pages of them, attn reads and seals them, wire names the
// layout in block headers; they agree by using this one struct.
//
//   extent = for each kv_head:
//            | K [tokens, head_dim] | V [tokens, head_dim] | ksum f32 [head_dim] | kmean bf16 [head_dim] |
//            every part starts on a 64-byte boundary; rows beyond the block's token count are zero
//   page   = extents of layers 0 .. layers-1, one after the other, rounded up to 4 KiB
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"

namespace mc {

constexpr size_t round_up(size_t value, size_t step) { return (value + step - 1) / step * step; }

struct ExtentLayout {
  static constexpr uint16_t kVersion = 1;  // goes into block headers and the namespace

  uint32_t layers = 0;
  uint32_t kv_heads = 0;
  uint32_t head_dim = 0;
  uint32_t block_tokens = 64;
  Dtype dtype = Dtype::bf16;  // of K and V: f32 or bf16

  bool operator==(const ExtentLayout&) const = default;

  constexpr size_t row_bytes() const { return head_dim * dtype_bytes(dtype); }
  constexpr size_t k_offset() const { return 0; }
  constexpr size_t v_offset() const { return round_up(block_tokens * row_bytes(), 64); }
  constexpr size_t ksum_offset() const { return 2 * v_offset(); }
  constexpr size_t kmean_offset() const { return ksum_offset() + round_up(head_dim * 4, 64); }
  /// Bytes of one KV head's record: distance between heads inside an extent.
  constexpr size_t head_bytes() const { return kmean_offset() + round_up(head_dim * 2, 64); }
  constexpr size_t layer_bytes() const { return kv_heads * head_bytes(); }
  constexpr size_t layer_offset(uint32_t layer) const { return layer * layer_bytes(); }
  constexpr size_t page_bytes() const { return round_up(layers * layer_bytes(), 4096); }
};

}  // namespace mc
