// The thread that runs the engine's loop. One thread at a time has the turn, usually the engine's own. With
// Options::spin, a thread in submit() or poll() takes the turn when it is free. Waking another thread costs a few
// microseconds each way, as much as a small RDMA READ. So the submitting thread posts the request and polls the device
// itself, like a program written directly to the verbs.
//
//   submit()  takes one turn if no other thread has it, else pushes a command
//   watch()   takes turns until there is an event, `spin` has passed or the deadline is reached
//
// A command never waits, because pushing one wakes the engine's thread if it sleeps. While callers poll, devices raise
// no interrupts. The engine's thread sleeps for short naps, and takes over when no caller has polled during a whole
// nap.
#pragma once

#include <atomic>
#include <mutex>
#include <thread>

#include "xfer/loop.h"
#include "xfer/word_mutex.h"

namespace mc::xfer {

class LoopTurns {
 public:
  /// `spin`: Options::spin.
  LoopTurns(EngineLoop& loop, CommandQueue& commands, EventQueue& events, Poller& poller, Duration spin)
      : loop_(loop), commands_(commands), events_(events), poller_(poller), spin_(spin) {}
  ~LoopTurns() { stop(); }
  LoopTurns(const LoopTurns&) = delete;
  LoopTurns& operator=(const LoopTurns&) = delete;

  /// Starts the engine's thread.
  void start();
  /// Closes every connection and joins the thread.
  void stop();
  /// With `spin`, submits a small request (SmallPath::begin) in a turn of this thread. BatchId::none: the request needs
  /// a batch.
  BatchId submit_small(const Request& request, TimePoint deadline, uint64_t cookie);
  /// Makes an ordinary batch of a small one that flies.
  void join_small();
  /// Gives a kept batch to the loop, in a turn of this thread or as a command.
  void submit(OpenBatch& batch);
  /// Polls until there is an event, at most for `spin`. Without `spin` it returns at once.
  void watch(TimePoint deadline);

 private:
  static constexpr Duration kNap = 2ms;
  static constexpr Duration kTurnWait = 50us;  // longest time that submit() polls for the turn

  void run();
  std::unique_lock<WordMutex> take_turn();
  bool try_turn(std::unique_lock<WordMutex>& turn, bool wait);
  TimePoint nap(TimePoint now, TimePoint idle_since, TimePoint until);
  bool drive(TimePoint& now);
  bool drive(OpenBatch& batch);
  void finish_turn();
  void wake_for(TimePoint until);

  EngineLoop& loop_;
  CommandQueue& commands_;
  EventQueue& events_;
  Poller& poller_;
  const Duration spin_;
  std::thread thread_;
  WordMutex turn_;
  std::atomic<bool> turn_wanted_{false};  // set by the engine's thread, so that polling callers leave it the turn
  std::atomic<uint64_t> polls_{0};        // number of times that a caller waited for an event
  // protected by turn_
  TimePoint sleep_until_{};  // valid while the engine's thread sleeps
  bool driven_ = false;      // a caller polls the devices, and the engine's thread only checks that every kNap
  uint64_t polls_seen_ = 0;
  TimePoint nap_until_{};
};

}  // namespace mc::xfer
