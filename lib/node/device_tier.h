// The memory of a node's device as a tier: which of its pages hold which blocks, which requests use them, and which
// block leaves when a page is needed. It is a pool like that of the host's pages (kv/pool.h), with a table of eviction
// policies in common, but its pages are copies: every block in it is, or was, in a page of the host as well. So a block
// leaves without a copy, and the blocks of an ended request stay until their pages are needed.
//
//   take()   gives a request pages for all its blocks: those that are here are pinned, the others are free pages
//   load()   LoadPages for the blocks that are in the host's pages alone; runs follow at once and wait by layer
//   ended()  PagesLoaded: other requests can use the blocks from here on
//   publish  as soon as a block is computed
//   release  when nothing computes with the request's pages any more
//
// A load is the request's own. Two requests that lack one block at the same time copy it twice, so that a load that
// fails ends one request.
//
// Watermarks: when fewer pages are free than the low one, blocks leave until the high one is reached. A step that needs
// a page then finds one free, and the conductor learns in good time which blocks have left.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "base/extent.h"
#include "kv/kv.h"
#include "node/held_pages.h"
#include "node/node.h"
#include "node/numbers.h"
#include "wire/messages.h"

namespace mc::node {

/// The pages of a request on the device, by block.
struct DevicePages {
  HeldPages pages;
  uint32_t filled = 0;  // leading blocks whose bytes are here or on their way
  uint64_t load = 0;    // the LoadPages under way; 0 = none
  uint32_t first = 0;   // leading blocks that were here when the pages were taken
};

class DeviceTier {
 public:
  /// Without pages the node has no such tier: take() and grow() then succeed, and hold nothing.
  DeviceTier(uint32_t page_count, const ExtentLayout& layout, const kv::Eviction& eviction, kv::EventLog& log,
             Numbers& numbers);

  bool exists() const { return pool_.counts().total > 0; }
  const kv::Pool& pool() const { return pool_; }
  bool holds(const BlockHash& hash) const { return pool_.find(hash) != kv::kNoPage; }
  /// Whether a sequence of so many blocks can be computed at all.
  bool fits(uint32_t blocks) const { return !exists() || blocks <= pool_.counts().total; }
  /// Pages that a request could take now.
  uint32_t available() const { return exists() ? pool_.available() : UINT32_MAX; }

  /// Takes pages for `blocks` blocks, of which `cached` are in the host's pages. False: the device has no room now,
  /// beside `reserve` pages for those that run, and nothing is taken.
  bool take(DevicePages& to, std::span<const BlockHash> cached, uint32_t blocks, uint32_t reserve = 0);
  /// Begins to copy the blocks before `end` that are not here. `pages`: of the host; `crcs`: of their extents,
  /// [block][layer].
  void load(DevicePages& to, std::span<const kv::PageIndex> pages, uint32_t end, std::span<const uint32_t> crcs,
            Actions& out);
  /// The request's load has ended. From here on other requests can use its blocks that have names; `names` are those of
  /// the sequence's first blocks. Returns which of them do not match their checksums.
  std::vector<uint32_t> ended(DevicePages& at, const PagesLoaded& done, std::span<const BlockHash> names,
                              const NamespaceId& ns);
  /// Adds a page for one more block. False: there is none now.
  bool grow(DevicePages& to);
  /// Other requests can use the block, whose bytes are here. `names`: of the sequence's blocks up to this one.
  void publish(DevicePages& at, uint32_t block, std::span<const BlockHash> names, const NamespaceId& ns);
  /// Gives back all pages. No load is under way.
  void release(DevicePages& at);

  /// Keeps the watermarks.
  void tend();
  void fill_load(wire::Load& load) const;
  bool idle() const { return loading_.empty() && pool_.counts().owned + pool_.counts().pinned == 0; }
  /// `held`: of all requests.
  void check(std::span<const DevicePages* const> held) const;

 private:
  uint32_t layers_, block_tokens_;
  kv::Pool pool_;
  Numbers& numbers_;
  std::map<uint64_t, uint32_t> loading_;  // load -> its blocks
  double block_s_ = 0;                    // smoothed seconds of copying one block; 0 before the first load
  uint64_t loaded_blocks_ = 0;
};

}  // namespace mc::node
