// The thread that runs the engine's loop. One thread at a time has the turn: nearly always the engine's own. With
// Options::spin, a thread in submit() or poll() takes the turn when it is free, because waking another thread costs a
// few microseconds each way, as much as a small RDMA READ takes altogether: the thread that submits posts the request
// itself and polls the device itself in poll(), as a program written straight to the verbs would.
//
//   submit()  takes one turn if no other thread has it, else pushes a command
//   watch()   takes turn after turn until there is an event, `spin` has passed or the deadline has come
//
// A command never waits: pushing one wakes the engine's thread if that sleeps. While callers poll, devices do not
// interrupt. The engine's thread naps, and takes over when no caller has polled for a whole nap.
#pragma once

#include <atomic>
#include <mutex>
#include <thread>

#include "xfer/loop.h"

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
  /// Hands a kept batch to the loop, in a turn of this thread or as a command.
  void submit(OpenBatch& batch);
  /// Polls until there is an event, at most for `spin`; without `spin` it returns at once.
  void watch(TimePoint deadline);

 private:
  static constexpr Duration kNap = 2ms;
  static constexpr Duration kTurnWait = 50us;  // submit() polls for the turn that long

  void run();
  std::unique_lock<std::mutex> take_turn();
  bool try_turn(std::unique_lock<std::mutex>& turn, bool wait);
  TimePoint nap(TimePoint now, TimePoint idle_since, TimePoint until);
  bool drive(TimePoint& now);
  bool drive(OpenBatch& batch);
  void wake_for(TimePoint until);

  EngineLoop& loop_;
  CommandQueue& commands_;
  EventQueue& events_;
  Poller& poller_;
  const Duration spin_;
  std::thread thread_;
  std::mutex turn_;
  std::atomic<bool> turn_wanted_{false};  // by the engine's thread: callers that poll leave it the turn
  std::atomic<uint64_t> polls_{0};        // times that a caller waited for an event
  // under turn_
  TimePoint sleep_until_{};  // while the engine's thread sleeps
  bool driven_ = false;      // a caller polls the devices: the engine's thread only looks every kNap whether that is so
  uint64_t polls_seen_ = 0;
  TimePoint nap_until_{};
};

}  // namespace mc::xfer
