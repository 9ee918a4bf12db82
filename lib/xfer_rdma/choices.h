// The pairs of addresses that the dialler may use for one path, best first, and which of them is tried (internal,
// pure).
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "base/assert.h"
#include "xfer_rdma/gid.h"

namespace mc::xfer {

class GidChoices {
 public:
  GidChoices() = default;
  explicit GidChoices(std::vector<GidChoice> pairs) : pairs_(std::move(pairs)) {}

  bool empty() const { return pairs_.empty(); }
  size_t size() const { return pairs_.size(); }
  /// Every pair has failed once since the list was made.
  bool exhausted() const { return exhausted_; }
  /// The pair that is tried, or in use; null: there is none.
  const GidChoice* current() const { return pairs_.empty() ? nullptr : &pairs_[at_]; }

  enum class Change : uint8_t {
    none,   // the list is the same
    kept,   // the pair in use is still there
    gone,   // the pair in use is not: its attempt must end
    again,  // no pair was in use: the best is next
  };
  /// The addresses of a port have changed. `live`: an attempt uses the current pair.
  Change replan(std::vector<GidChoice> pairs, bool live) {
    if (pairs == pairs_) return Change::none;
    const GidChoice used = pairs_.empty() ? GidChoice{} : pairs_[at_];
    const auto kept = std::find(pairs.begin(), pairs.end(), used);
    const bool gone = kept == pairs.end();
    at_ = gone || !live ? 0 : static_cast<size_t>(kept - pairs.begin());
    pairs_ = std::move(pairs);
    exhausted_ = false;
    if (!live) return Change::again;
    return gone ? Change::gone : Change::kept;
  }
  /// An attempt failed before the path was up: the next pair. `all`: it would fail with every pair.
  void failed(bool all) {
    MC_ASSERT(!pairs_.empty());
    ++at_;
    exhausted_ |= all || at_ == pairs_.size();
    at_ %= pairs_.size();
  }
  /// The best pair is next.
  void restart() { at_ = 0; }

 private:
  std::vector<GidChoice> pairs_;
  size_t at_ = 0;
  bool exhausted_ = false;
};

}  // namespace mc::xfer
