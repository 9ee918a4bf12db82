// The pairs of addresses that the dialler may use for one path, best first, and the pair that is being tried (internal,
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
  /// The pair that is tried or in use; null: the list is empty.
  const GidChoice* current() const { return pairs_.empty() ? nullptr : &pairs_[at_]; }

  enum class Change : uint8_t {
    none,   // the list is unchanged
    kept,   // the pair in use is still in the list
    gone,   // the pair in use has left the list, so its attempt must end
    again,  // no pair was in use; the best pair is next
  };
  /// The addresses of a port have changed. `live`: an attempt uses the current pair.
  Change replan(std::vector<GidChoice> pairs, bool live) {
    MC_ASSERT(pairs_.empty() ? at_ == 0 : at_ < pairs_.size());
    if (pairs == pairs_) return Change::none;
    const GidChoice used = pairs_.empty() ? GidChoice{} : pairs_[at_];
    const auto kept = std::find(pairs.begin(), pairs.end(), used);
    const bool gone = kept == pairs.end();
    at_ = gone || !live ? 0 : static_cast<size_t>(kept - pairs.begin());
    pairs_ = std::move(pairs);
    MC_ASSERT(pairs_.empty() ? at_ == 0 : at_ < pairs_.size());
    exhausted_ = false;
    if (!live) return Change::again;
    return gone ? Change::gone : Change::kept;
  }
  /// An attempt failed before the path was up, so the next pair is tried. `all`: every pair would fail.
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
