// Blocks that a node's disk gave up and that had no reader since. Those that memory lacks are of no use here, because a
// reader comes before they can be in memory again. They are removed when the set has grown.
#pragma once

#include <algorithm>
#include <set>
#include <span>

#include "node/shelf.h"

namespace mc::node {

class GivenUpBlocks {
 public:
  void add(const BlockHash& hash) { hashes_.insert(hash); }
  bool contains(const BlockHash& hash) const { return hashes_.contains(hash); }
  /// These blocks have a reader.
  void read(std::span<const BlockHash> hashes) {
    for (size_t i = 0; i < hashes.size() && !hashes_.empty(); ++i) hashes_.erase(hashes[i]);
  }
  /// `shelves`: all memory of the node.
  void prune(std::span<Shelf* const> shelves) {
    if (hashes_.size() < prune_above_) return;
    std::erase_if(hashes_, [&](const BlockHash& hash) {
      return std::none_of(shelves.begin(), shelves.end(),
                          [&](const Shelf* shelf) { return shelf->pool.find(hash) != kv::kNoPage; });
    });
    prune_above_ = std::max(kPruneMin, 2 * hashes_.size());
  }

 private:
  static constexpr size_t kPruneMin = 1024;
  std::set<BlockHash> hashes_;
  size_t prune_above_ = kPruneMin;
};

}  // namespace mc::node
