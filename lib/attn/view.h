// The KV of one layer of a sequence as attention sees it: an array of pages in any order in memory, each with
// block_tokens tokens of every KV head (base/extent.h). k_row() and v_row() return rows of K and V. 16 consecutive
// tokens that start at a multiple of 16 never cross a page.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/e4m3.h"
#include "base/extent.h"

namespace mc::attn {

/// Centroids of a sequence's first `count` moba_blocks, end to end instead of one in each page (attn/centroids.h makes
/// them). The centroid of block j and a KV head is row kv_head * 64 + j % 64 of strip j / 64, bf16 [head_dim]. `offset`
/// (elements) is added to every strip, so one array of strips serves all layers.
struct CentroidView {
  static constexpr int64_t kStripBlocks = 64;

  const uint16_t* const* strips = nullptr;
  int64_t count = 0;
  int32_t moba_block = 0;
  size_t offset = 0;
};

/// Token t is in pages[t / block_tokens]. `offset` is added to every pointer, so one array of page pointers serves all
/// layers (offset = layout.layer_offset(layer)). Only tokens below kv_len are read.
struct KvView {
  const std::byte* const* pages = nullptr;
  int64_t kv_len = 0;
  size_t offset = 0;
  CentroidView centroids = {};  // optional; blocks in it are not looked up in the pages
};

/// A KvView for writing.
struct KvTarget {
  std::byte* const* pages = nullptr;
  size_t offset = 0;
};

/// The record of one KV head in page number `page` of the sequence.
inline const std::byte* head_record(const ExtentLayout& layout, const KvView& kv, int64_t page, int kv_head) {
  return kv.pages[page] + kv.offset + static_cast<size_t>(kv_head) * layout.head_bytes();
}

inline const std::byte* k_row(const ExtentLayout& layout, const KvView& kv, int64_t position, int kv_head) {
  const int64_t page = position / layout.block_tokens;
  return head_record(layout, kv, page, kv_head) +
         static_cast<size_t>(position - page * layout.block_tokens) * layout.row_bytes();
}

/// The scales of a record of fp8_e4m3: exponents of two, as base/e4m3.h has them.
struct ScaleExponents {
  int k, v;
};
inline ScaleExponents scales_of(const ExtentLayout& layout, const std::byte* record) {
  const float* scales = reinterpret_cast<const float*>(record + layout.scale_offset());
  return {e4m3_exponent_of(scales[0]), e4m3_exponent_of(scales[1])};
}

inline const std::byte* v_row(const ExtentLayout& layout, const KvView& kv, int64_t position, int kv_head) {
  return k_row(layout, kv, position, kv_head) + layout.v_offset();
}

inline const uint16_t* centroid_row(const ExtentLayout& layout, const CentroidView& view, int64_t block, int kv_head) {
  const int64_t row = kv_head * CentroidView::kStripBlocks + block % CentroidView::kStripBlocks;
  return view.strips[block / CentroidView::kStripBlocks] + view.offset + static_cast<size_t>(row) * layout.head_dim;
}

}  // namespace mc::attn
