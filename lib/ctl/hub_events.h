// The queue of events from the loop to the hub's owner, and the counters that the owner reads. Events that do not fit
// into the ring wait here, and the loop reads no socket until they fit. Owned by the loop's thread.
#pragma once

#include <deque>

#include "ctl/hub_shared.h"

namespace mc::ctl {

class Events {
 public:
  explicit Events(Shared& shared) : shared_(shared) {}

  /// Emits an event. The counters are published first, so the owner of an event finds its cause in Hub::stats().
  void emit(Event event);
  /// Moves waiting events to the ring, as far as it has room.
  void flush();
  void publish();
  /// Whether no event waits for room in the ring.
  bool flowing() const { return waiting_.empty(); }

  HubStats stats;

 private:
  Shared& shared_;
  std::deque<Event> waiting_;
};

}  // namespace mc::ctl
