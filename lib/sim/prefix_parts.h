// The parts of a prefix that a simulated prefill node fetches for one request (sched/fetch_plan.h). The node asks for
// them in their order, a few at a time, as a live one does (node/prefix_fetches.h). A fetch is held as long as its
// holder still computes the blocks.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "base/assert.h"
#include "sched/sched.h"

namespace mc::sim {

/// Holders are numbers of nodes.
class PrefixParts {
 public:
  void fetch(std::vector<sched::FetchRun> parts, bool held, double now_s) {
    MC_ASSERT(parts_.empty() && next_ == 0 && !held_);
    parts_ = std::move(parts);
    held_ = waited_ = held;
    began_s_ = now_s;
  }
  /// The holder has computed the blocks.
  void release() { held_ = false; }
  /// The next part to be sent; nullopt = none is left, the fetch is held, or enough parts are on their way.
  std::optional<sched::FetchRun> ask() {
    if (held_ || next_ == parts_.size() || on_their_way_ == sched::kPartsAtOnce) return std::nullopt;
    ++on_their_way_;
    return parts_[next_++];
  }
  /// A part is here.
  void arrive(double now_s) {
    MC_ASSERT_LT(0u, on_their_way_);
    --on_their_way_;
    arrived_s_ = now_s;
  }
  /// The duration of a fetch from one holder that had all blocks; nullopt: another fetch, or none. Several holders
  /// together say nothing about the rate of one.
  std::optional<double> seconds() const {
    if (parts_.size() != 1 || waited_) return std::nullopt;
    return arrived_s_ - began_s_;
  }
  /// Gives up the parts that are not on their way.
  void cut() {
    parts_.resize(next_);
    held_ = false;
  }
  /// Blocks of the prefix are read from the node's own disk.
  void begin_load() { loading_ = true; }
  void end_load() { loading_ = false; }

  bool is_here() const { return !held_ && !loading_ && on_their_way_ == 0 && next_ == parts_.size(); }

 private:
  std::vector<sched::FetchRun> parts_;
  size_t next_ = 0;            // the first part that was not asked for
  uint32_t on_their_way_ = 0;  // number of parts
  bool held_ = false, waited_ = false, loading_ = false;
  double began_s_ = 0, arrived_s_ = 0;
};

}  // namespace mc::sim
