// A mutex in one word, for locks that are held for a moment and seldom contended. Without contention, locking and
// unlocking take one atomic operation each and no call. std::mutex takes two calls of 30 instructions. A thread that
// finds the lock taken sleeps in the kernel (U. Drepper, "Futexes Are Tricky", mutex 2). The mutex is not recursive,
// and no condition variable waits on it.
#pragma once

#include <atomic>
#include <cstdint>

namespace mc::xfer {

class WordMutex {
 public:
  WordMutex() = default;
  WordMutex(const WordMutex&) = delete;
  WordMutex& operator=(const WordMutex&) = delete;

  bool try_lock() {
    int free = kFree;
    // acquire: pairs with unlock()
    return word_.compare_exchange_strong(free, kHeld, std::memory_order_acquire, std::memory_order_relaxed);
  }
  void lock() {
    if (!try_lock()) [[unlikely]]
      lock_slowly();
  }
  void unlock() {
    // release: pairs with lock()
    if (word_.exchange(kFree, std::memory_order_release) == kAwaited) [[unlikely]]
      word_.notify_one();
  }

 private:
  enum : int { kFree, kHeld, kAwaited };  // awaited: held, and threads may sleep until it is free

  [[gnu::cold, gnu::noinline]] void lock_slowly() {
    // The new holder cannot know whether others sleep, so the word stays awaited. Acquire: pairs with unlock().
    while (word_.exchange(kAwaited, std::memory_order_acquire) != kFree)
      word_.wait(kAwaited, std::memory_order_relaxed);  // the exchange decides
  }

  std::atomic<int> word_{kFree};
};

}  // namespace mc::xfer
