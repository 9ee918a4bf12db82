// Bounded rings between threads. A full ring is `busy` (push returns false), never growth; an empty
// one returns nothing. Capacity is rounded up to a power of two. Wake-ups are the caller's (an
// EventFd beside the ring): push, then signal; drain the event, then pop until empty.
//
//   SpscRing  one producer thread, one consumer thread: two counters
//   MpscRing  any producers, one consumer: a sequence number per cell (D. Vyukov's bounded queue)
#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "base/assert.h"

namespace mc {

inline constexpr size_t kCacheLine = 64;

template <class T>
class SpscRing {
 public:
  explicit SpscRing(size_t capacity) : mask_(std::bit_ceil(capacity < 1 ? size_t{1} : capacity) - 1) {
    cells_ = std::make_unique<T[]>(mask_ + 1);
  }
  SpscRing(const SpscRing&) = delete;
  SpscRing& operator=(const SpscRing&) = delete;

  /// Producer only. Leaves `value` untouched when full.
  bool push(T&& value) {
    const size_t tail = tail_.load(std::memory_order_relaxed);  // own counter
    // acquire pairs with pop's release: the consumer has moved the old value out before we reuse the cell
    if (tail - head_.load(std::memory_order_acquire) > mask_) return false;
    cells_[tail & mask_] = std::move(value);
    tail_.store(tail + 1, std::memory_order_release);  // pairs with pop's acquire: publishes the cell
    return true;
  }
  bool push(const T& value) {
    T copy = value;
    return push(std::move(copy));
  }
  /// Consumer only.
  std::optional<T> pop() {
    const size_t head = head_.load(std::memory_order_relaxed);               // own counter
    if (head == tail_.load(std::memory_order_acquire)) return std::nullopt;  // pairs with push's release
    std::optional<T> value(std::move(cells_[head & mask_]));
    head_.store(head + 1, std::memory_order_release);  // pairs with push's acquire: the cell is free
    return value;
  }
  /// A snapshot: exact only on a thread that is both producer and consumer.
  size_t size() const {
    return tail_.load(std::memory_order_acquire) - head_.load(std::memory_order_acquire);  // counts only
  }
  size_t capacity() const { return mask_ + 1; }

 private:
  const size_t mask_;
  std::unique_ptr<T[]> cells_;
  alignas(kCacheLine) std::atomic<size_t> head_{0};
  alignas(kCacheLine) std::atomic<size_t> tail_{0};
};

template <class T>
class MpscRing {
 public:
  explicit MpscRing(size_t capacity) : mask_(std::bit_ceil(capacity < 2 ? size_t{2} : capacity) - 1) {
    cells_ = std::make_unique<Cell[]>(mask_ + 1);
    for (size_t i = 0; i <= mask_; ++i)
      cells_[i].sequence.store(i, std::memory_order_relaxed);  // before any other thread has the ring
  }
  MpscRing(const MpscRing&) = delete;
  MpscRing& operator=(const MpscRing&) = delete;

  /// Any thread. Leaves `value` untouched when full.
  bool push(T&& value) {
    size_t tail = tail_.load(std::memory_order_relaxed);  // a guess; the exchange below decides
    for (;;) {
      Cell& cell = cells_[tail & mask_];
      // acquire pairs with pop's release: the cell's last value has been moved out
      const auto ahead = static_cast<ptrdiff_t>(cell.sequence.load(std::memory_order_acquire) - tail);
      if (ahead < 0) return false;  // still holds a value of the round before: full
      // relaxed: winning the slot publishes nothing, the cell's sequence does
      if (ahead == 0 && tail_.compare_exchange_weak(tail, tail + 1, std::memory_order_relaxed)) {
        cell.value = std::move(value);
        cell.sequence.store(tail + 1, std::memory_order_release);  // pairs with pop's acquire
        return true;
      }
      if (ahead > 0) tail = tail_.load(std::memory_order_relaxed);  // another producer took it
    }
  }
  bool push(const T& value) {
    T copy = value;
    return push(std::move(copy));
  }
  /// Consumer only. Empty also while the oldest producer is between winning its cell and filling it.
  std::optional<T> pop() {
    Cell& cell = cells_[head_ & mask_];
    if (cell.sequence.load(std::memory_order_acquire) != head_ + 1) return std::nullopt;  // pairs with push's release
    std::optional<T> value(std::move(cell.value));
    cell.sequence.store(head_ + mask_ + 1, std::memory_order_release);  // pairs with push's acquire: next round
    ++head_;
    return value;
  }
  size_t capacity() const { return mask_ + 1; }

 private:
  struct Cell {
    std::atomic<size_t> sequence{0};
    T value{};
  };
  const size_t mask_;
  std::unique_ptr<Cell[]> cells_;
  alignas(kCacheLine) std::atomic<size_t> tail_{0};
  alignas(kCacheLine) size_t head_ = 0;  // consumer's own
};

}  // namespace mc
