// Turns of the engine's loop on a caller's thread, for callers that would rather burn a core than wait for
// another thread to be woken (Options::spin). Waking costs a few microseconds each way, as much as a small
// RDMA READ takes altogether; here the thread that submits posts the request itself, and polls the device
// itself in poll(), as a program written straight to the verbs would.
//
//   submit()  makes a turn if nobody else is making one, else pushes a command as always. A small request
//             with nothing before it needs no turn: core_direct.cc
//   poll()    makes turn after turn until there is an event, `spin` has passed or the deadline has come
//
// A command never waits: pushing one wakes the engine's thread if that sleeps. Meanwhile devices are not told to
// interrupt; the engine's thread naps, and if nobody has polled for a whole nap it takes over.
#include "xfer/core.h"

namespace mc::xfer {

/// One turn, in which `batch` is taken in (null: the caller polls); false: somebody else is at it.
bool Engine::Core::drive(Batch* batch, TimePoint& now) {
  std::unique_lock turn(turn_, std::defer_lock);
  // turn_wanted_ is a hint: sockets must get their turn
  const auto take = [&] { return !turn_wanted_.load(std::memory_order_relaxed) && turn.try_lock(); };
  bool taken = take();
  // Most likely the engine's thread is about to end its turn. Given the batch, it would still be at it when the caller
  // comes with the next one, and so on: every batch would change threads.
  if (!taken && batch != nullptr)
    for (const TimePoint end = SystemClock::instance().now() + kPatience;
         !(taken = take()) && SystemClock::instance().now() < end;) {
    }
  if (!taken) return false;
  const bool watching = batch == nullptr;
  if (watching) {
    driven_ = true;
    nap_until_ = now + kNap;
  }
  take_commands();
  TimePoint until{};
  if (!watching) {
    const Begun begun = begin_directly(*batch, until);
    if (begun == Begun::over) {  // and perhaps closed: it is not ours any more
      if (sleep_until_ > until) wake();
      return true;
    }
    if (begun == Begun::no) intake(*batch);
  }
  until = round(now);
  for (int again = 0; again < 3 && until <= now && !watching; ++again) until = round(now);  // done already, often
  // the engine's thread sleeps too long: for what this turn left to do, unless the caller is about to poll; or to
  // notice that nobody polls any more
  if (watching || (driven_ && until <= now)) until = now + kNap;
  if (sleep_until_ > until) wake();
  return true;
}

void Engine::Core::wake() {
  std::lock_guard lock(mutex_);
  if (std::exchange(sleeping_, false)) wake_.signal();
}

/// Begins the batch at once when nobody else has the turn.
void Engine::Core::submit_here(Batch& batch) {
  TimePoint now{};
  if (!drive(&batch, now)) push({.kind = Command::Kind::submit, .batch = &batch});
}

/// Polls until there is an event, at most for options_.spin.
void Engine::Core::watch(TimePoint deadline) {
  polls_.fetch_add(1, std::memory_order_relaxed);  // only ever compared with what it was
  if (event_count_.load(std::memory_order_relaxed) > 0) return;
  TimePoint now = SystemClock::instance().now();
  if (deadline <= now) return;
  const TimePoint end = std::min(deadline, now + options_.spin);
  while (event_count_.load(std::memory_order_relaxed) == 0) {  // a hint: take_events() knows
    if (!drive(nullptr, now)) now = SystemClock::instance().now();
    if (now < end) continue;
    // the engine's thread takes over: from now on completions must wake it
    std::lock_guard turn(turn_);
    driven_ = false;
    polls_seen_ = polls_.load(std::memory_order_relaxed);
    for (auto& active : active_) active.transport->doze(outbox_);
    if (!outbox_.empty()) wake();
    return;
  }
}

}  // namespace mc::xfer
