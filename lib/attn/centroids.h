// The centroids of one sequence, gathered for the gate of decode. In the pages a centroid is behind each KV head's K
// and V, tens of KiB apart. A gate over 8192 blocks reads so many addresses that it waits for each (10-12 GB/s where
// the machine streams 30). Here the centroids are in strips of 64 blocks, in the order in which the gate scores them:
//
//   strip   layer 0: | KV head 0: 64 centroids | KV head 1: 64 centroids | ...   layer 1: | ...
//
// The copies equal the centroids in the pages (or those computed from the sums of several pages) bit for bit, so a gate
// chooses equal blocks with and without an index. The owner of the sequence's pages keeps the index and drops it with
// them. The index is never sent or stored. It costs head_dim * 2 bytes for each block, layer and KV head: 1 / (2 *
// block) of the KV. A sparse method that scores other rows gives the gate a CentroidView of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "attn/plan.h"
#include "attn/view.h"
#include "mem/mem.h"

namespace mc {
class Parallel;
}

namespace mc::attn {

/// Owned by the thread that decodes the sequence.
class CentroidIndex {
 public:
  explicit CentroidIndex(const ExtentLayout& layout) : layout_(layout) {}

  /// Adds the blocks of the plan's sparse layers that are complete below `tokens`. pages[i] holds tokens [i *
  /// block_tokens, (i + 1) * block_tokens), sealed. Blocks in the index are not read again while their pages are
  /// unchanged. A moved page, a smaller `tokens` (later tokens may be rewritten) or another block size drops them and
  /// all later ones. Does nothing for a plan or a length without a gate. When memory runs out, blocks are left out, and
  /// the gate reads them in the pages.
  void extend(const Plan& plan, const std::byte* const* pages, int64_t tokens, Parallel& parallel);

  /// Centroids of one layer, for KvView; valid until the next extend().
  CentroidView view(uint32_t layer) const;

  int64_t count() const { return count_; }
  size_t bytes() const;

 private:
  void take_in(uint32_t layer, int64_t first, int64_t end, const std::byte* const* pages);
  size_t layer_values() const {
    return size_t{layout_.kv_heads} * static_cast<size_t>(CentroidView::kStripBlocks) * layout_.head_dim;
  }

  ExtentLayout layout_;
  int32_t moba_block_ = 0;
  int64_t count_ = 0;
  std::vector<mem::HostBuffer> strips_;
  std::vector<uint16_t*> starts_;        // starts of the strips
  std::vector<const std::byte*> pages_;  // pages of the blocks in the index
};

}  // namespace mc::attn
