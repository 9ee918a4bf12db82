// A pool of threads that runs one loop at a time. The caller takes part, so a pool of one thread
// runs inline and starts nothing. Indices are handed out dynamically: which thread runs which index
// is not fixed, so a body must write only what its index owns, and then the result cannot depend on
// the number of threads. Workers spin for a few microseconds and then sleep on a futex; a worker
// that wakes after the loop ended finds it closed and is not waited for.
// Bodies run with denormals flushed to zero on every thread, the caller's included (and restored
// after): denormals are slow, and a result must not depend on which thread made it.
//
//   Parallel pool(2);
//   pool.for_each(rows, [&](int64_t row, int worker) { norm(in + row * n, out + row * n, scratch[worker]); });
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

namespace mc {

class Parallel {
 public:
  /// Starts threads - 1 workers; the calling thread of for_each is worker 0. threads >= 1.
  /// std::system_error when the system gives fewer threads.
  explicit Parallel(int threads = 1);
  ~Parallel();
  Parallel(const Parallel&) = delete;
  Parallel& operator=(const Parallel&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  /// Calls body(index, worker) once for every index in [0, count) and returns when all are done.
  /// worker is in [0, threads()) and no two calls at the same time have the same one: use it for
  /// scratch. One loop at a time: not from two threads, not from inside a body. body must not throw.
  template <class Body>
  void for_each(int64_t count, Body&& body) {
    run(
        count, 1,
        [](void* context, int64_t begin, int64_t, int worker) {
          (*static_cast<std::remove_reference_t<Body>*>(context))(begin, worker);
        },
        const_cast<void*>(static_cast<const void*>(&body)));
  }

  /// Calls body(begin, end, worker) for the ranges [0, grain), [grain, 2 grain), ... of [0, count):
  /// for bodies too small to be handed out one by one. The cuts depend on grain alone, never on threads().
  template <class Body>
  void for_ranges(int64_t count, int64_t grain, Body&& body) {
    run(
        count, grain,
        [](void* context, int64_t begin, int64_t end, int worker) {
          (*static_cast<std::remove_reference_t<Body>*>(context))(begin, end, worker);
        },
        const_cast<void*>(static_cast<const void*>(&body)));
  }

 private:
  using Call = void (*)(void* context, int64_t begin, int64_t end, int worker);

  void stop();
  void run(int64_t count, int64_t grain, Call call, void* context);
  void take_ranges(int worker);
  void serve(int worker);

  // The open loop. Written by the caller while gate_ is 0, read by workers that passed the gate.
  int64_t count_ = 0;
  int64_t grain_ = 1;
  Call call_ = nullptr;
  void* context_ = nullptr;
  alignas(64) std::atomic<int64_t> next_{0};  // first index not yet handed out
  // Bit 0: a loop is open. Above it, how many workers are inside. Acquire on entry pairs with the
  // release that opened the gate (loop fields); release on exit pairs with the caller's last acquire
  // (what the bodies wrote).
  alignas(64) std::atomic<uint32_t> gate_{0};
  std::atomic<uint32_t> signal_{0};  // counts openings; workers sleep on it
  std::atomic<bool> stopping_{false};
  std::vector<std::thread> workers_;
};

}  // namespace mc
