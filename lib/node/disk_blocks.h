// The table of the blocks on a node's disk: where each block belongs, and its size. A block that comes or leaves is an
// event for the conductor's index.
#pragma once

#include <cstdint>
#include <functional>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "kv/kv.h"

namespace mc::node {

class DiskBlocks {
 public:
  struct Entry {
    NamespaceId name_space;
    BlockHash parent;
    uint32_t first_position = 0;
    uint32_t bytes = 0;  // in the store
    uint32_t loads = 0;
    TimePoint used{};  // when it was written, found or loaded, or left memory
  };
  using Look = std::function<void(const BlockHash&, const Entry&)>;

  /// `log` must outlive the object.
  explicit DiskBlocks(kv::EventLog& log) : log_(log) {}

  bool has(const BlockHash& hash) const { return entries_.contains(hash); }
  /// nullptr = the block is not on disk. Valid until a block comes or leaves.
  const Entry* find(const BlockHash& hash) const;
  Entry* find(const BlockHash& hash);
  size_t size() const { return entries_.size(); }
  bool empty() const { return entries_.empty(); }
  /// Bytes of all blocks in the store.
  uint64_t bytes() const { return bytes_; }
  /// All blocks, sorted by hash.
  std::vector<kv::ResidentBlock> snapshot() const;
  /// All blocks are in so many buckets. A block stays in its bucket until the number changes.
  size_t buckets() const { return entries_.bucket_count(); }
  void look_at_bucket(size_t bucket, const Look& look) const;

  /// Does nothing when the block is there.
  void add(const BlockHash& hash, const Entry& entry);
  /// Does nothing when the block is not there.
  void erase(const BlockHash& hash, kv::Removal reason);

 private:
  kv::EventLog& log_;
  std::unordered_map<BlockHash, Entry, Id128Hash> entries_;
  uint64_t bytes_ = 0;
};

}  // namespace mc::node
