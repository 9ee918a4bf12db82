// Bars: pairs of accepting nodes that a request may not use, because their circuit breaker is open (sched/breaker.h) or
// because this request has failed on them.
#pragma once

#include <cstddef>
#include <set>
#include <utility>
#include <vector>

namespace mc::sched {

struct Snapshot;

/// A pair that is barred, by index in the snapshot's views; -1 = a node with every partner.
struct Bar {
  int prefill = -1, decode = -1;
  double left_s = 0;  // seconds of back-off left; 0 = a probe is under way, or this request failed there
};

/// A lookup table of the bars of a snapshot.
class Bars {
 public:
  explicit Bars(const Snapshot& snapshot);
  bool allows(size_t prefill, size_t decode) const {
    return !prefill_[prefill] && !decode_[decode] &&
           !pairs_.contains({static_cast<int>(prefill), static_cast<int>(decode)});
  }

 private:
  std::vector<char> prefill_, decode_;
  std::set<std::pair<int, int>> pairs_;
};

/// When every pair of accepting nodes is barred, the bars of the pair whose back-off ends first are removed. A request
/// that may fail is better than a request that is refused, and its success closes the breaker early.
void lift_least_bad(Snapshot& snapshot);

}  // namespace mc::sched
