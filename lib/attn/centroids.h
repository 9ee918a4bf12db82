// The centroids of one sequence, gathered for the gate of decode. In the pages they lie one behind each KV head's K
// and V, tens of KiB apart: a gate over 8192 blocks reads so many addresses that it waits for each (10-12 GB/s where
// the machine streams 30). Here they lie in strips of 64 blocks, in the order in which the gate scores them:
//
//   strip   layer 0: | KV head 0: 64 centroids | KV head 1: 64 centroids | ...   layer 1: | ...
//
// They equal the centroids in the pages (or those made of the sums of several pages) bit for bit, so a gate chooses
// the same blocks with and without an index. The owner of the sequence's pages keeps the index beside them and drops
// it with them; it is never sent or stored. It costs head_dim * 2 bytes a block, layer and KV head: 1 / (2 * block) of
// the KV. A sparse method that scores other rows gives the gate a CentroidView of its own.
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

  /// Takes in the blocks of the plan's sparse layers that lie whole below `tokens`, where pages[i] holds tokens
  /// [i * block_tokens, (i + 1) * block_tokens), sealed. Blocks taken in before are not read again while their pages
  /// are the same: a page that moved, a smaller `tokens` (what follows may be written anew) or another block size
  /// drops them and all behind. Nothing to do for a plan or a length that gates nothing. Without memory the blocks
  /// are left out: the gate finds them in the pages.
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
