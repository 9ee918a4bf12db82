// The virtual clock of a simulated cluster, and the actions that are due at its times. Actions run in order of time,
// and actions of one time in the order in which they were added.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

#include "base/assert.h"
#include "base/clock.h"

namespace mc::sim {

class Agenda {
 public:
  TimePoint now() const { return now_; }
  uint64_t events_run() const { return events_run_; }
  /// Adds an action. A time in the past means now.
  void at(TimePoint when, std::function<void()> run) {
    queue_.push_back({std::max(when, now_), ++asked_, std::move(run)});
    std::push_heap(queue_.begin(), queue_.end(), std::greater<>());
  }
  /// Runs all events up to now + d, or until `stop` returns true; it is called after each event.
  void run_for(Duration d, const std::function<bool()>& stop = {}) {
    const TimePoint end = now_ + d;
    while (!queue_.empty() && queue_.front().at <= end) {
      std::pop_heap(queue_.begin(), queue_.end(), std::greater<>());
      const Pending next = std::move(queue_.back());
      queue_.pop_back();
      MC_ASSERT(next.at >= now_);
      now_ = next.at;
      ++events_run_;
      next.run();
      if (stop && stop()) return;
    }
    now_ = end;
  }

 private:
  struct Pending {
    TimePoint at;
    uint64_t order;
    std::function<void()> run;
    bool operator>(const Pending& other) const { return at != other.at ? at > other.at : order > other.order; }
  };

  TimePoint now_{};
  uint64_t asked_ = 0, events_run_ = 0;
  std::vector<Pending> queue_;  // heap
};

}  // namespace mc::sim
