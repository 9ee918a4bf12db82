// The events of a simulation in order of time. Events of one time come in the order in which they were added.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

namespace mc::sim {

/// `Kind` is an enum; `a` and `b` mean what the kind says.
template <typename Kind>
class Calendar {
 public:
  struct Event {
    double at_s;
    uint64_t order;
    Kind kind;
    uint32_t a, b;
    bool operator>(const Event& other) const { return at_s != other.at_s ? at_s > other.at_s : order > other.order; }
  };

  void add(double at_s, Kind kind, uint32_t a, uint32_t b) {
    events_.push_back({at_s, ++order_, kind, a, b});
    std::push_heap(events_.begin(), events_.end(), std::greater<>());
  }
  /// Infinity when there is no event.
  double next_s() const { return events_.empty() ? std::numeric_limits<double>::infinity() : events_.front().at_s; }
  Event take() {
    std::pop_heap(events_.begin(), events_.end(), std::greater<>());
    const Event out = events_.back();
    events_.pop_back();
    return out;
  }

 private:
  uint64_t order_ = 0;
  std::vector<Event> events_;  // heap
};

}  // namespace mc::sim
