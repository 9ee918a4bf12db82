// A first-in first-out queue in one block of memory that doubles when it is full and never shrinks. std::deque
// allocates every few elements of this size. Its front is also slow to find or erase: the iterator is loaded as one
// wide word right after half of it was stored. That load waits until every earlier store (the payload just copied) has
// reached the cache, which takes a tenth of the time of 4 KiB reads.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "base/assert.h"

namespace mc::xfer {

template <class T>
class Fifo {
 public:
  bool empty() const { return count_ == 0; }
  size_t size() const { return count_; }
  /// `index` counts from the front.
  T& operator[](size_t index) { return slots_[(head_ + index) & (slots_.size() - 1)]; }
  const T& operator[](size_t index) const { return slots_[(head_ + index) & (slots_.size() - 1)]; }
  T& front() { return slots_[head_]; }

  /// Adds an element, which has the value of an earlier one that was dropped, or none.
  T& emplace_back() {
    if (count_ == slots_.size()) grow();
    return (*this)[count_++];
  }
  void push_back(T&& value) { emplace_back() = std::move(value); }
  void push_back(const T& value) { push_back(T(value)); }
  void pop_front() {
    MC_ASSERT(count_ > 0);
    front() = T();
    drop_front();
  }
  /// Removes the front element, which was moved from and owns nothing.
  void drop_front() {
    MC_ASSERT(count_ > 0);
    head_ = (head_ + 1) & (slots_.size() - 1);
    --count_;
  }
  /// Removes an element. Takes time proportional to `index`.
  void erase(size_t index) {
    MC_ASSERT_LT(index, count_);
    for (; index > 0; --index) (*this)[index] = std::move((*this)[index - 1]);
    pop_front();
  }
  void clear() {
    while (count_ > 0) pop_front();
  }

 private:
  void grow() {
    std::vector<T> larger(slots_.empty() ? 16 : slots_.size() * 2);  // a power of two, so that a mask wraps indices
    for (size_t i = 0; i < count_; ++i) larger[i] = std::move((*this)[i]);
    slots_ = std::move(larger);
    head_ = 0;
  }

  std::vector<T> slots_;
  size_t head_ = 0;
  size_t count_ = 0;
};

}  // namespace mc::xfer
