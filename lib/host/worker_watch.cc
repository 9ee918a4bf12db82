#include "host/worker_watch.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"
#include "base/errors.h"

namespace mc::host {

WorkerWatch::Changes WorkerWatch::look(const node::Registration& registration, node::DiskTier::State disk,
                                       TimePoint now) {
  Changes changes;
  if (registration.is_member() && name_ != registration.name()) {
    name_ = registration.name();
    changes.named = true;
  }
  const bool was_member = std::exchange(was_member_, registration.is_member());
  changes.rejoined = was_member_ && !was_member && !changes.named;
  if (name_.empty() && now >= say_waiting_) {
    say_waiting_ = kNever;
    changes.waits = true;
  }
  changes.disk_lost = disk == node::DiskTier::State::lost && !std::exchange(disk_lost_, true);
  changes.tenants_changed = std::exchange(has_tenants_, registration.has_tenants()) != registration.has_tenants();
  look_at_refusal(registration, changes);
  return changes;
}

void WorkerWatch::look_at_refusal(const node::Registration& registration, Changes& changes) {
  const wire::Refused* refused = registration.refused();
  if (!refused || registration.is_member()) {
    refused_at_ = kNever;
    refused_for_ = {};
    return;
  }
  const bool is_first = refused_at_ == kNever;
  if (!is_first) {
    MC_ASSERT(refused_at_ <= registration.refused_at());
    refused_for_ += std::min(registration.refused_at() - refused_at_, kRefusalGap);
  }
  refused_at_ = registration.refused_at();
  const bool may_pass =
      refused->mc == err::kNameTaken ? refused_for_ <= kNameWait : refused->mc == err::kWrongKey && !name_.empty();
  if (!may_pass)
    changes.refused = refused;
  else if (is_first)
    changes.waits_for = refused;
}

}  // namespace mc::host
