#include "xfer/turns.h"

#include <algorithm>
#include <array>

#include "base/assert.h"

namespace mc::xfer {

void LoopTurns::start() {
  MC_ASSERT(!thread_.joinable());
  thread_ = std::thread([this] { run(); });
}

void LoopTurns::stop() {
  if (!thread_.joinable()) return;
  commands_.push({.kind = Command::Kind::stop});
  thread_.join();
}

std::unique_lock<WordMutex> LoopTurns::take_turn() {
  turn_wanted_.store(true, std::memory_order_relaxed);  // a hint
  std::unique_lock turn(turn_);
  turn_wanted_.store(false, std::memory_order_relaxed);  // a hint
  return turn;
}

/// `wait`: tries for kTurnWait, because the engine's thread is probably about to end its turn. If the engine's thread
/// got the batch instead, it would still be busy when the caller submits the next one. Every batch would then change
/// threads.
bool LoopTurns::try_turn(std::unique_lock<WordMutex>& turn, bool wait) {
  // turn_wanted_ is a hint; the sockets need a turn too
  const auto take = [&] { return !turn_wanted_.load(std::memory_order_relaxed) && turn.try_lock(); };
  if (take()) return true;
  if (!wait) return false;
  const Clock& clock = SystemClock::instance();
  for (const TimePoint end = clock.now() + kTurnWait; clock.now() < end;)
    if (take()) return true;
  return false;
}

void LoopTurns::run() {
  std::array<Poller::Ready, 64> ready;
  TimePoint now{}, until{};
  TimePoint idle_since = SystemClock::instance().now();
  for (;;) {
    {
      const auto turn = take_turn();
      if (loop_.stopping()) break;
      until = loop_.round(now);
      if (until <= now) idle_since = now;
      until = nap(now, idle_since, until);
    }
    const size_t count = poller_.wait(ready, now, until);
    MC_ASSERT_LE(count, ready.size());
    const auto turn = take_turn();
    commands_.awake();
    loop_.ready(std::span(ready).first(count));
    if (loop_.take_commands() || count > 0) idle_since = SystemClock::instance().now();
  }
  loop_.shutdown();
}

/// The end of the coming wait. From then on a thread that pushes a command wakes this thread.
TimePoint LoopTurns::nap(TimePoint now, TimePoint idle_since, TimePoint until) {
  // the value is only compared with an earlier one
  if (const uint64_t polls = polls_.load(std::memory_order_relaxed); polls != polls_seen_) {
    polls_seen_ = polls;
    driven_ = true;
    nap_until_ = now + kNap;
  } else if (nap_until_ <= now) {
    driven_ = false;
  }
  if (driven_)
    until = std::min(until, nap_until_);
  else if (now - idle_since < spin_)
    until = now;
  else if (until > now && !loop_.doze())
    until = now;
  if (until <= now) return until;
  if (!commands_.may_sleep()) return now;
  sleep_until_ = until;
  return until;
}

/// Wakes the engine's thread if its sleep would last longer than `until`.
void LoopTurns::wake_for(TimePoint until) {
  if (sleep_until_ > until) commands_.wake();
}

/// Takes one turn for a caller that polls. False: another thread has the turn.
bool LoopTurns::drive(TimePoint& now) {
  std::unique_lock turn(turn_, std::defer_lock);
  if (!try_turn(turn, false)) return false;
  if (loop_.small().flying()) {  // it ends within microseconds, which a round would not wait for
    loop_.small().look();
    now = SystemClock::instance().now();
    return true;
  }
  driven_ = true;
  nap_until_ = now + kNap;
  loop_.take_commands();
  (void)loop_.round(now);
  wake_for(now + kNap);  // the engine's thread must notice when no caller polls any more
  return true;
}

/// Takes one turn for a caller that submits. False: another thread has the turn.
bool LoopTurns::drive(OpenBatch& batch) {
  std::unique_lock turn(turn_, std::defer_lock);
  if (!try_turn(turn, true)) return false;
  loop_.take_commands();
  loop_.submit(batch);
  finish_turn();
  return true;
}

/// Rounds after a batch was submitted, which is often done by then.
void LoopTurns::finish_turn() {
  TimePoint now{};
  TimePoint until = loop_.round(now);
  for (int again = 0; again < 3 && until <= now; ++again) until = loop_.round(now);
  // Wakes the engine's thread for the rest of the work, unless the caller is about to poll.
  wake_for(driven_ && until <= now ? now + kNap : until);
}

BatchId LoopTurns::submit_small(const Request& request, TimePoint deadline, uint64_t cookie) {
  if (spin_ <= Duration{}) return BatchId::none;
  std::unique_lock turn(turn_, std::defer_lock);
  // the flag is a hint; see try_turn()
  if ((turn_wanted_.load(std::memory_order_relaxed) || !turn.try_lock()) && !try_turn(turn, true)) return BatchId::none;
  if (commands_.any_hint()) loop_.take_commands();
  const SmallPath::Begun begun = loop_.small().begin(request, deadline, cookie);
  if (begun.id == BatchId::none) return BatchId::none;
  // A batch that flies is left to a caller that polls, and after a nap to the engine's thread.
  if (begun.until == TimePoint::min() || (loop_.small().flying() && !driven_))
    finish_turn();
  else
    wake_for(begun.until);
  return begun.id;
}

void LoopTurns::join_small() {
  std::lock_guard turn(turn_);
  if (loop_.small().join()) commands_.wake();  // for its deadline
}

void LoopTurns::submit(OpenBatch& batch) {
  if (spin_ > Duration{} && drive(batch)) return;
  commands_.push({.kind = Command::Kind::submit, .batch = &batch});
}

void LoopTurns::watch(TimePoint deadline) {
  if (spin_ <= Duration{}) return;
  polls_.fetch_add(1, std::memory_order_relaxed);  // the value is only compared with an earlier one
  if (events_.size_hint() > 0) return;
  TimePoint now = SystemClock::instance().now();
  if (deadline <= now) return;
  const TimePoint end = std::min(deadline, now + spin_);
  while (events_.size_hint() == 0) {  // EventQueue::poll() reads the exact state
    if (!drive(now)) now = SystemClock::instance().now();
    if (now < end) continue;
    // The engine's thread takes over, so completions must wake it from now on.
    std::lock_guard turn(turn_);
    driven_ = false;
    polls_seen_ = polls_.load(std::memory_order_relaxed);  // the value is only compared with an earlier one
    if (!loop_.doze()) commands_.wake();
    return;
  }
}

}  // namespace mc::xfer
