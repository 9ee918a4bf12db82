// Blocks of a pipeline of which a member lost its layers. The other members still have theirs. When another node holds
// such a block, only the lost layers are read again (BlockRead::held). When none does, the block is computed again.
//
//   cached --member lost--> kept here, in no index --take--> read by the member that lacks it --> cached
//                                   '-- pages are needed, or the block was computed again --> free
//
// The pages stay owned, but any other use of them comes first: make_room() gives the least recently used ones back.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "kv/kv.h"

namespace mc::node {

class LostParts {
 public:
  /// `pool` must outlive the object.
  explicit LostParts(kv::Pool& pool) : pool_(pool) {}

  /// Member `stage` of the pipeline lost its layers of every block. Takes all cached blocks out of the pool. Blocks
  /// that a request or a reader still holds are dropped.
  void lose(uint32_t stage);
  struct Kept {
    kv::PageIndex page = kv::kNoPage;
    uint64_t lost = 0;  // bit s: member s lacks its layers
  };
  /// Gives the caller the page of a block. nullopt: the block is not here, or its layers had other checksums than the
  /// block that will be read.
  std::optional<Kept> take(const BlockHash& hash, std::span<const uint32_t> layer_crcs);
  /// The block was computed again.
  void forget(const BlockHash& hash);
  /// Frees pages until the pool can give `pages`, as far as there are any.
  void make_room(uint32_t pages);
  uint32_t size() const { return static_cast<uint32_t>(blocks_.size()); }

 private:
  struct Block {
    Kept kept;
    uint64_t use = 0;
    std::vector<uint32_t> layer_crcs;
  };
  using Iterator = std::map<BlockHash, Block>::iterator;
  void erase(Iterator block);

  kv::Pool& pool_;
  std::map<BlockHash, Block> blocks_;
  std::map<uint64_t, BlockHash> by_use_;  // key: Block::use, which is unique
  uint64_t uses_ = 0;                     // newest key
};

}  // namespace mc::node
