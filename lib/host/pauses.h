// Pauses after failures, by holder. A holder that did not answer is not asked again before its pause is over. Each
// further failure makes the pause twice as long, up to a limit. An answer ends it.
#pragma once

#include <algorithm>
#include <map>

#include "base/clock.h"
#include "base/ids.h"

namespace mc::host {

class Pauses {
 public:
  static constexpr Duration kMin = 5s, kMax = 300s;

  bool has(const InstanceId& holder, TimePoint now) const {
    const auto at = pauses_.find(holder);
    return at != pauses_.end() && now < at->second.until;
  }
  void failed(const InstanceId& holder, TimePoint now) {
    Pause& pause = pauses_[holder];
    pause.length = std::clamp<Duration>(2 * pause.length, kMin, kMax);
    pause.until = after(now, pause.length);
  }
  void answered(const InstanceId& holder) { pauses_.erase(holder); }
  /// Forgets the holders for which is_gone(holder) is true.
  template <class IsGone>
  void forget(const IsGone& is_gone) {
    std::erase_if(pauses_, [&](const auto& pause) { return is_gone(pause.first); });
  }

 private:
  struct Pause {
    TimePoint until{};
    Duration length{};
  };
  std::map<InstanceId, Pause> pauses_;
};

}  // namespace mc::host
