// The watch of a worker process over its node, once a round of the control loop. It notices a name from the conductor,
// a wait for the conductor, a refusal that will stay, and a disk that was lost. Each is reported once.
#pragma once

#include <string>

#include "base/clock.h"
#include "node/worker.h"

namespace mc::host {

class WorkerWatch {
 public:
  /// A taken name may come free: a process killed a moment ago still counts as alive. The keys of a node that was
  /// registered before may be ahead of the conductor's, which reads its key file next. Other refusals stay.
  static constexpr Duration kNameWait = 5s;  // in which refusals of the name keep coming
  /// Most that the time between two refusals adds to that. A conductor that did not answer meanwhile refused nothing.
  static constexpr Duration kRefusalGap = 1s;
  static constexpr Duration kSilence = 1s;  // wait for a conductor that is not worth a line

  /// The control loop starts.
  void start(TimePoint now) { say_waiting_ = now + kSilence; }

  struct Changes {
    bool named = false;            // the conductor has registered the node under a new name()
    bool rejoined = false;         // a conductor has registered the node again, under the same name
    bool waits = false;            // no conductor has registered the node since start()
    bool disk_lost = false;        // the node goes on without its tier on disk
    bool tenants_changed = false;  // another answer to Registration::has_tenants()
    // A refusal that may pass, the first time that it is seen. The node goes on asking. Owned by the registration.
    const wire::Refused* waits_for = nullptr;
    const wire::Refused* refused = nullptr;  // the process is to give up; owned by the registration
  };
  Changes look(const node::Registration& registration, node::DiskTier::State disk, TimePoint now);
  /// The name under which the node was registered last; "" = it never was.
  const std::string& name() const { return name_; }

 private:
  void look_at_refusal(const node::Registration& registration, Changes& changes);

  std::string name_;
  bool was_member_ = false;
  TimePoint say_waiting_ = kNever;
  TimePoint refused_at_ = kNever;  // the last refusal that was seen; kNever: none
  Duration refused_for_{};         // time in which refusals kept coming
  bool disk_lost_ = false, has_tenants_ = false;
};

}  // namespace mc::host
