// The stage of a framed stream: bytes that came in behind a payload and are not parsed yet. Small frames are read into
// it many at a time. What is left of a parsed stage is at most the beginning of a header, so it moves to the front, and
// all the room is behind it.
//
//     [ parsed | bytes() | room ]   --compact-->   [ bytes() |  room  ]
#pragma once

#include <cstddef>
#include <cstring>
#include <span>
#include <vector>

#include "base/assert.h"

namespace mc::xfer {

class ReceiveStage {
 public:
  explicit ReceiveStage(size_t capacity) : memory_(capacity) {}

  size_t capacity() const { return memory_.size(); }
  size_t size() const { return end_ - begin_; }
  /// The bytes that are not parsed yet; valid until the next change.
  std::span<const std::byte> bytes() const { return std::span(memory_).subspan(begin_, size()); }
  /// `count` bytes from the front are parsed.
  void drop(size_t count) {
    MC_ASSERT_LE(count, size());
    begin_ += count;
  }
  void clear() { end_ = begin_; }
  /// Moves the bytes to the front.
  void compact() {
    if (begin_ == 0) return;
    std::memmove(memory_.data(), memory_.data() + begin_, size());
    end_ -= begin_;
    begin_ = 0;
  }
  /// Room behind the bytes, up to `size_max` bytes with them. The stage is compact.
  std::span<std::byte> room(size_t size_max) {
    MC_ASSERT_EQ(begin_, size_t{0});
    MC_ASSERT(end_ <= size_max && size_max <= memory_.size());
    return std::span(memory_).subspan(end_, size_max - end_);
  }
  /// `count` bytes of the room are filled.
  void filled(size_t count) {
    MC_ASSERT_LE(count, memory_.size() - end_);
    end_ += count;
  }
  /// The whole memory of an empty stage, for bytes that nobody reads.
  std::span<std::byte> scratch() {
    MC_ASSERT_EQ(size(), size_t{0});
    return memory_;
  }

 private:
  std::vector<std::byte> memory_;
  size_t begin_ = 0, end_ = 0;
};

}  // namespace mc::xfer
