#include "ctl/hub_events.h"

namespace mc::ctl {

void Events::publish() {
  const std::lock_guard lock(shared_.mutex);
  shared_.stats = stats;
}

void Events::emit(Event event) {
  publish();
  if (waiting_.empty() && shared_.events.push(std::move(event))) {
    shared_.event_ready.signal();
    return;
  }
  waiting_.push_back(std::move(event));  // push leaves a refused event untouched
}

void Events::flush() {
  bool any = false;
  while (!waiting_.empty() && shared_.events.push(std::move(waiting_.front()))) {
    waiting_.pop_front();
    any = true;
  }
  if (any) shared_.event_ready.signal();
}

}  // namespace mc::ctl
