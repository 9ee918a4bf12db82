// The requests that wait at the router of a simulated cluster, with the time at which each of them is rejected.
//
//   held     waits for its turn in the line (sched/line.h). It is parked as well while no node may serve it
//   parked   has run before, and waits for a node of each role
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/clock.h"

namespace mc::sim {

class Waits {
 public:
  static constexpr Duration kParkMax = 10s;  // as node::ConductorOptions::park_max

  /// The request must not wait yet. `expires`: from this time on its TTFT bound cannot be met.
  void hold(uint32_t r, TimePoint expires);
  /// The request waits for a node from now on, at most for kParkMax. A second call does not prolong the wait.
  void park(uint32_t r, TimePoint now);
  /// A held request waits for its turn alone again.
  void unpark(uint32_t r);
  /// The request is placed, or rejected.
  void erase(uint32_t r);

  bool holds(uint32_t r) const;
  /// The held requests, by the time at which each must end.
  std::vector<uint32_t> held() const;
  /// Makes take_recalled() return the parked requests that are not held: the members changed.
  void recall() { recalled_ = true; }
  bool has_recalled() const { return recalled_ && held_ < waits_.size(); }
  std::vector<uint32_t> take_recalled();

  /// A request whose time has come.
  std::optional<uint32_t> due(TimePoint now) const {
    return next_wakeup() <= now ? std::optional(ends_.begin()->second) : std::nullopt;
  }
  TimePoint next_wakeup() const { return ends_.empty() ? kNever : ends_.begin()->first; }

 private:
  struct Wait {
    bool held = false;
    TimePoint expires = kNever, parked_until = kNever;
    TimePoint end() const { return std::min(expires, parked_until); }
  };
  void set_parked_until(uint32_t r, TimePoint until);

  std::map<uint32_t, Wait> waits_;
  std::set<std::pair<TimePoint, uint32_t>> ends_;
  size_t held_ = 0;
  bool recalled_ = false;
};

}  // namespace mc::sim
