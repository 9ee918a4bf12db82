// A shelf: the pool of one block layout on a node, the leases on its pages, and the offsets of its pages in the node's
// KV buffer.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/extent.h"
#include "kv/kv.h"
#include "node/lost_parts.h"
#include "wire/messages.h"

namespace mc::node {

/// The pages are in slabs of `slab_pages` pages each. A prefill or decode node has one slab. An mc-cache gives slabs to
/// its shelves on demand.
struct Shelf {
  Shelf(const ExtentLayout& layout, uint32_t page_count, uint32_t slab_pages, const kv::Eviction& eviction,
        kv::EventLog& log)
      : layout(layout),
        slab_pages(slab_pages),
        pool({.page_count = page_count, .eviction = &eviction}, log),
        leases(pool) {}
  uint64_t page_offset(kv::PageIndex page) const {
    return slabs.at(page / slab_pages) + uint64_t{page % slab_pages} * layout.page_bytes();
  }
  /// The layers of a pipeline's blocks may be lost with a member. From now on the others are kept.
  void keep_lost_parts();
  /// Owned pages that are given to any other use first.
  uint32_t spare_pages() const { return lost ? lost->size() : 0; }
  /// The description of a cached block for a reader.
  wire::LeasedBlock leased_block(kv::PageIndex page, bool with_tokens) const;
  /// The checksums that the first `blocks` pages must have before they are used again (RunChunk::prefix_crcs).
  std::vector<uint32_t> prefix_crcs(std::span<const kv::PageIndex> pages, uint32_t blocks, LayerRange layers) const;

  ExtentLayout layout;
  uint32_t number = 0;  // among the shelves of the node; the pool number of its actions
  uint32_t slab_pages;
  std::vector<uint64_t> slabs;  // offset of each slab in the KV buffer
  kv::Pool pool;
  kv::Leases leases;
  /// Grows the pool until so many pages can be allocated, as far as its owner has memory. Empty: it never grows.
  std::function<void(uint32_t pages)> make_room;
  std::unique_ptr<LostParts> lost;  // only of the leader of a pipeline
};

/// The token ids that a peer gave with a block, when the block's id is made of them; else none. A node works without
/// them, and only exports need them.
std::vector<uint32_t> sound_tokens(const wire::LeasedBlock& block, const NamespaceId& ns, const ExtentLayout& layout);

}  // namespace mc::node
