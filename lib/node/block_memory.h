// BlockMemory records blocks that a node has no longer, or has under another name. A miss gets its true reason from it.
// Its size is bounded: a miss of a block that it has forgotten is reported as cold.
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
  /// Its bytes had changed, and it was dropped.
  void rotten(const BlockHash& hash);
  /// The block is here again.
  void stored(const BlockHash& hash);

  bool was_rotten(const BlockHash& hash) const { return rotten_.contains(hash); }
  std::optional<Duration> evicted_ago(const BlockHash& hash, TimePoint now) const;

  /// A prompt that begins with these tokens (its first block) was computed here, under this attention and salt.
  void computed(std::span<const uint32_t> first_block, const std::string& attention, const std::string& salt);
  /// Whether such a prompt was computed here under another name: `layout` for another attention, `salt` for another
  /// salt under the same attention, else cold.
  wire::MissKind other_name(std::span<const uint32_t> first_block, const std::string& attention,
                            const std::string& salt) const;

 private:
  struct Evicted {
    TimePoint at;
    uint64_t number;  // of the eviction: the entry of older_ with another number is stale
  };
  struct Name {
    std::string attention, salt;
    auto operator<=>(const Name&) const = default;
  };
  using Prompt = uint64_t;  // fingerprint of the first block's tokens
  static Prompt fingerprint(std::span<const uint32_t> tokens);

  size_t entries_max_;
  uint64_t evictions_ = 0;
  std::map<BlockHash, Evicted> evicted_;
  std::deque<std::pair<uint64_t, BlockHash>> older_;  // in order of eviction
  std::set<BlockHash> rotten_;
  std::map<Prompt, std::set<Name>> computed_;
  std::deque<std::pair<Prompt, Name>> computed_order_;
};

/// Runs of blocks that were missed, from one reason a block: neighbours with the same reason and node become one run.
class MissRuns {
 public:
  /// `block` follows the one added before.
  void add(uint32_t block, wire::MissKind kind, const std::string& node = "", uint64_t age_ms = 0);
  /// The same reason as the block before: its own bytes are there, but not what comes before them.
  void extend();
  bool empty() const { return runs_.empty(); }
  std::vector<wire::Miss> take() { return std::move(runs_); }

 private:
  std::vector<wire::Miss> runs_;
};

}  // namespace mc::node
