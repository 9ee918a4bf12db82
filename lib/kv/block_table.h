// The table of a node's blocks that is read while the node changes it (wire/block_index.h). The thread that owns the
// node's pools writes it with each block event. Any thread reads it, and so may other processes: no reader waits for
// the writer, and none delays it.
//
// The table says what the node has, and promises nothing: only a lease keeps a block. It may lack blocks, because a
// block whose two buckets are full is left out, and a reader gives up after a few copies that mix two states.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kv/events.h"
#include "wire/block_index.h"

namespace mc::kv {

/// A table as its readers see it: memory that somebody else changes at any time. Any thread.
class BlockTableView {
 public:
  /// The table of a node with this epoch in `memory`, which is 8-byte aligned. nullopt: no table has this size. What
  /// the memory holds is checked with each look, so it may be garbage.
  static std::optional<BlockTableView> of(std::span<const std::byte> memory, uint64_t epoch);

  wire::HeldIn find(const BlockHash& hash) const;
  /// A table that somebody leaves in the middle of a change costs a bounded time.
  std::vector<wire::HeldIn> find(std::span<const BlockHash> hashes) const;
  uint64_t buckets() const { return memory_.size() / sizeof(wire::BlockBucket); }

 private:
  BlockTableView(std::span<const std::byte> memory, uint64_t epoch) : memory_(memory), epoch_(epoch) {}
  std::optional<wire::BlockBucket> sound_copy(uint64_t bucket, int& copies_left) const;
  wire::HeldIn find(const BlockHash& hash, int& copies_left) const;

  std::span<const std::byte> memory_;
  uint64_t epoch_;
};

/// The epoch of the table that this process publishes. An instance is random, so it names a start of a node.
uint64_t table_epoch(const InstanceId& instance);

class BlockTable {
 public:
  static constexpr uint64_t kBucketsMax = uint64_t{1} << 18;  // 64 MiB

  /// The size of a table for so many blocks, which fill three quarters of it at most. A table has kBucketsMax buckets
  /// at most.
  static size_t bytes_for(uint64_t blocks);
  /// The number of buckets of a table of this size; nullopt: no table has this size.
  static std::optional<uint64_t> buckets_in(uint64_t bytes);
  /// `memory` outlives the table. It is 8-byte aligned, and it has a power of two of buckets, 2 to kBucketsMax. `epoch`
  /// differs for each start of the node.
  BlockTable(std::span<std::byte> memory, uint64_t epoch);
  BlockTable(const BlockTable&) = delete;
  BlockTable& operator=(const BlockTable&) = delete;

  // ---- the thread of the pools ----
  void apply(const BlockEvent& event);
  /// Number of blocks in the table.
  uint64_t blocks() const { return blocks_; }
  /// Number of times that a block was left out.
  uint64_t left_out() const { return left_out_; }

  // ---- any thread ----
  wire::HeldIn find(const BlockHash& hash) const { return view_.find(hash); }
  std::vector<wire::HeldIn> find(std::span<const BlockHash> hashes) const { return view_.find(hashes); }
  uint64_t buckets() const { return memory_.size() / sizeof(wire::BlockBucket); }

 private:
  std::span<std::byte> bucket_at(uint64_t bucket) const;
  wire::BlockBucket own_copy(uint64_t bucket) const;
  void write(uint64_t bucket, wire::BlockBucket changed);
  void add(const BlockHash& hash, wire::HeldIn tier);

  std::span<std::byte> memory_;
  BlockTableView view_;
  uint64_t epoch_;
  uint64_t blocks_ = 0, left_out_ = 0;
};

}  // namespace mc::kv
