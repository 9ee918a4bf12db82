// The parts of a prefix that a simulated prefill node fetches for one request (sched/fetch_plan.h). The node asks for
// them in their order, a few at a time, as a live one does (node/prefix_fetches.h). A fetch is held as long as its
// holder still computes the blocks.
#pragma once

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "base/assert.h"
#include "sched/sched.h"

namespace mc::sim {

/// Holders are numbers of nodes.
class PrefixParts {
 public:
  void fetch(std::vector<sched::FetchRun> parts, bool held) {
    MC_ASSERT(parts_.empty() && next_ == 0 && !held_);
    parts_ = std::move(parts);
    held_ = held;
  }
  /// Adds a part to a fetch.
  void add(const sched::FetchRun& part) { parts_.push_back(part); }
  /// The holder has computed the blocks.
  void release() { held_ = false; }
  bool is_held() const { return held_; }
  /// The next part to be sent; nullopt = none is left, the fetch is held, or enough parts are on their way.
  std::optional<sched::FetchRun> ask() {
    if (held_ || next_ == parts_.size() || on_their_way_ == sched::kPartsAtOnce) return std::nullopt;
    ++on_their_way_;
    return parts_[next_++];
  }
  /// A part is here.
  void arrive() {
    MC_ASSERT_LT(0u, on_their_way_);
    --on_their_way_;
  }
  /// Gives up the parts that are not on their way.
  void cut() {
    parts_.resize(next_);
    held_ = false;
  }
  /// The first holder of a part for which has_all(holder) is true.
  template <class HasAll>
  std::optional<int> find_holder(const HasAll& has_all) const {
    const auto part =
        std::find_if(parts_.begin(), parts_.end(), [&](const sched::FetchRun& p) { return has_all(p.holder); });
    return part == parts_.end() ? std::nullopt : std::optional(part->holder);
  }

  /// Blocks of the prefix are read from the node's own disk.
  void begin_load() { loading_ = true; }
  void end_load() { loading_ = false; }

  bool is_here() const { return !held_ && !loading_ && on_their_way_ == 0 && next_ == parts_.size(); }

 private:
  std::vector<sched::FetchRun> parts_;
  size_t next_ = 0;            // the first part that was not asked for
  uint32_t on_their_way_ = 0;  // number of parts
  bool held_ = false, loading_ = false;
};

}  // namespace mc::sim
