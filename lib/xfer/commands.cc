#include "xfer/commands.h"

#include <utility>

#include "base/assert.h"

namespace mc::xfer {

Result<void> CommandQueue::open() {
  MC_TRY(wake, EventFd::open());
  wake_ = std::move(wake);
  return {};
}

void CommandQueue::push(Command command) {
  bool wake;
  {
    std::lock_guard lock(mutex_);
    commands_.push_back(std::move(command));
    any_.store(true, std::memory_order_relaxed);  // a hint
    wake = std::exchange(sleeping_, false);
  }
  if (wake) wake_.signal();
}

bool CommandQueue::take(std::vector<Command>& out) {
  out.clear();
  if (!any_hint()) return false;
  std::lock_guard lock(mutex_);
  any_.store(false, std::memory_order_relaxed);  // a hint
  out.swap(commands_);
  MC_ASSERT(commands_.empty());
  return !out.empty();
}

bool CommandQueue::may_sleep() {
  std::lock_guard lock(mutex_);
  MC_ASSERT(!sleeping_);  // one thread sleeps here, and awake() follows
  sleeping_ = commands_.empty();
  return sleeping_;
}

void CommandQueue::awake() {
  std::lock_guard lock(mutex_);
  sleeping_ = false;
}

void CommandQueue::wake() {
  std::lock_guard lock(mutex_);
  if (std::exchange(sleeping_, false)) wake_.signal();
}

}  // namespace mc::xfer
