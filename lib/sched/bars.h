// Pairs of nodes that a request may not use although both nodes accept: pairs that fail (sched/breaker.h), and pairs on
// which this request has failed already.
#pragma once

#include <cstddef>
#include <set>
#include <utility>
#include <vector>

namespace mc::sched {

struct Snapshot;

/// A pair that is set aside, by place in the snapshot's views; -1 = a node with any partner.
struct Bar {
  int prefill = -1, decode = -1;
  double left_s = 0;  // of the back-off; 0 = a probe is under way, or this request failed there
};

/// The bars of a snapshot, for looking up.
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

/// When every pair of accepting nodes is barred, the pair whose back-off ends first loses its bars: a request that may
/// fail is better than one that is refused, and its success is how the pair comes back before its time.
void lift_least_bad(Snapshot& snapshot);

}  // namespace mc::sched
