// DiskWrites chooses the blocks that a node writes to its disk, and holds the writes under way.
//
//   while the node serves   the blocks that would be evicted next, when a shelf fills up: the coldest chains, the last
//                           block of a chain first, because a chain without its head is useless and the disk gives up
//                           its oldest blocks first
//   when an operator asks   the blocks of a chain, before all others
//   when the node stops     all blocks, in the order of node/write_out.h
//
// With DiskTierOptions::uses_min a serving node writes only blocks that so many requests have used. A block that leaves
// memory is remembered, and its next stay in memory counts as another use.
//
// A block that the disk removed while it was in memory is not written again before its next reader, or before it has
// left memory and come back. Else a disk that holds less than the cold blocks in memory would be written for ever.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include "node/disk_blocks.h"
#include "node/node.h"
#include "node/numbers.h"
#include "node/reuse_counts.h"
#include "node/shelf.h"
#include "node/write_out.h"

namespace mc::node {

struct DiskTierOptions {
  uint64_t capacity_bytes = 0;            // 0 = no tier
  uint64_t value_bytes_max = UINT64_MAX;  // larger values do not fit
  double write_above = 0.7;               // share of taken pages above which cold blocks are written
  uint32_t writes_max = 32;               // writes under way; the disk makes them durable together
  uint32_t loads_max = 64;                // loads under way
  double write_bytes_per_s = 0;           // bound on the mean rate of writes; 0 = none
  uint32_t uses_min = 1;                  // requests that must have used a block before a serving node writes it
};

class DiskWrites {
 public:
  struct Write {
    Shelf* shelf = nullptr;
    kv::PageIndex page = kv::kNoPage;  // pinned by the write
    DiskBlock block;
  };

  /// `blocks`, those on disk, and `numbers` must outlive the object.
  DiskWrites(const DiskTierOptions& options, const DiskBlocks& blocks, Numbers& numbers)
      : options_(options), blocks_(blocks), numbers_(numbers), spend_bytes_(options.write_bytes_per_s) {}

  /// Begins the writes that are due now. `asked_alone`: those that an operator asked for.
  void tend(std::span<Shelf* const> shelves, TimePoint now, bool asked_alone, Actions& out);
  /// An operator waits until these blocks, which the shelf has in memory, are on disk. They are written before others,
  /// whatever their uses, until unask() with the same hashes.
  void ask(Shelf& shelf, std::span<const BlockHash> hashes);
  void unask(std::span<const BlockHash> hashes);
  /// The node stops, so all blocks are to be written: as many as fill the free space of the disk, or half of the disk
  /// where less is free. So they do not push each other out.
  void start_write_out();
  /// The disk is lost: nothing is written any more.
  void stop() { stopped_ = true, asked_.clear(), waiting_.clear(); }
  /// A write has ended, and the caller has its pin now. nullopt: no write has this number.
  std::optional<Write> end(uint64_t op, Code code);
  /// The disk has removed a block for space.
  void removed_by_disk(const BlockHash& hash);
  /// A block in memory has a reader.
  void hit(const BlockHash& hash);
  /// A block is not in memory any more, so it may be written like any other when it comes back.
  void left_memory(const BlockHash& hash) { removed_.erase(hash); }
  /// A block was evicted from memory.
  void evicted(const BlockHash& hash);
  /// Blocks that left memory and are not on disk, because too few requests had used them.
  uint64_t spared() const { return spared_; }

  bool has(const BlockHash& hash) const { return writing_.contains(hash); }
  /// The write of the block is under way, or it was asked for and has still to begin.
  bool is_to_come(const BlockHash& hash) const { return has(hash) || waiting_.contains(hash); }
  /// No write is under way, and none is to come because an operator asked or the node stops.
  bool idle() const { return writes_.empty() && waiting_.empty() && !is_writing_out(); }
  /// Blocks to be written because the node stops, those under way included.
  size_t write_out_left() const { return write_out_ ? write_out_->left() + writes_.size() : 0; }
  /// When tend() has something to do without an event.
  TimePoint next_wakeup() const {
    return (is_writing_out() || !waiting_.empty()) && writes_.empty() ? look_at_ : kNever;
  }
  /// Pins on pages of `pool`.
  uint64_t pins(const kv::Pool& pool) const;
  void check() const;

 private:
  bool may_spend(uint64_t bytes, TimePoint now);
  bool wants(const Shelf& shelf, kv::PageIndex page) const;
  bool used_enough(const BlockHash& hash) const;
  bool fits(const Shelf& shelf) const;
  size_t writes_most(const Shelf& shelf) const;
  uint64_t room_for(const Shelf& shelf) const;
  uint64_t usable_bytes() const;
  void write(Shelf& shelf, kv::PageIndex page, Actions& out);
  bool write_asked(TimePoint now, Actions& out);
  void write_cold(Shelf& shelf, TimePoint now, Actions& out);
  void write_rest(std::span<Shelf* const> shelves, TimePoint now, Actions& out);
  bool is_writing_out() const { return write_out_ && !write_out_->is_done() && !stopped_; }

  DiskTierOptions options_;
  const DiskBlocks& blocks_;
  Numbers& numbers_;
  std::map<uint64_t, Write> writes_;  // key: number of the operation
  std::set<BlockHash> writing_;
  std::deque<std::pair<Shelf*, BlockHash>> asked_;  // in the order of ask()
  std::map<BlockHash, uint32_t> waiting_;           // asked for and still to begin -> calls of ask(); others are stale
  std::set<BlockHash> removed_;  // blocks in memory that the disk removed and that had no reader since
  ReuseCounts reuses_;
  uint64_t spared_ = 0;
  std::optional<WriteOut> write_out_;  // after start_write_out()
  bool stopped_ = false;
  TimePoint look_at_{};     // before it no block is looked for
  double spend_bytes_ = 0;  // what the bound on writes allows now
  TimePoint spend_at_{};    // as of then
};

}  // namespace mc::node
