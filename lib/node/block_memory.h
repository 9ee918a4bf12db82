// BlockMemory records the blocks that a node no longer has, or has under another name. The reason of a miss comes from
// this record. The record has a bounded size. A block that has left it counts as cold.
#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "wire/miss.h"

namespace mc::node {

class BlockMemory {
 public:
  explicit BlockMemory(size_t entries_max = 16384) : entries_max_(entries_max) {}

  void evicted(const BlockHash& hash, TimePoint now);
  /// The block was dropped because its bytes had changed.
  void rotten(const BlockHash& hash);
  /// The disk that held the block failed.
  void unreadable(const BlockHash& hash);
  /// The block is on this node again.
  void stored(const BlockHash& hash);

  bool was_rotten(const BlockHash& hash) const { return rotten_.contains(hash); }
  bool was_unreadable(const BlockHash& hash) const { return unreadable_.contains(hash); }
  std::optional<Duration> evicted_ago(const BlockHash& hash, TimePoint now) const;

  /// Records that a prompt which begins with `first_block` was computed here under this attention plan and salt.
  void computed(std::span<const uint32_t> first_block, const std::string& attention, const std::string& salt);
  /// Whether a prompt with this first block was computed here under another name. Returns `layout` for another
  /// attention plan, `salt` for another salt under this plan, else `cold`.
  wire::MissKind other_name(std::span<const uint32_t> first_block, const std::string& attention,
                            const std::string& salt) const;

 private:
  struct Evicted {
    TimePoint at;
    uint64_t number;  // number of the eviction; an entry of older_ with another number is stale
  };
  struct Name {
    std::string attention, salt;
    auto operator<=>(const Name&) const = default;
  };
  using Prompt = uint64_t;  // fingerprint of the tokens of the first block
  static Prompt fingerprint(std::span<const uint32_t> tokens);

  size_t entries_max_;
  uint64_t evictions_ = 0;
  std::map<BlockHash, Evicted> evicted_;
  std::deque<std::pair<uint64_t, BlockHash>> older_;  // in order of eviction
  std::set<BlockHash> rotten_, unreadable_;
  std::map<Prompt, std::set<Name>> computed_;
  std::deque<std::pair<Prompt, Name>> computed_order_;
};

/// Runs of missed blocks, built from one reason for each block. Neighbours with an equal reason and node form one run.
class MissRuns {
 public:
  /// Adds `block`, the one after the block added before.
  void add(uint32_t block, wire::MissKind kind, const std::string& node = "", uint64_t age_ms = 0);
  /// Adds a block that is cached but unusable, because the block before it is missing. The block joins the last run.
  void extend();
  bool empty() const { return runs_.empty(); }
  std::vector<wire::Miss> take() { return std::move(runs_); }

 private:
  std::vector<wire::Miss> runs_;
};

}  // namespace mc::node
