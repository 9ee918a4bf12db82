// The bytes of one connection that wait until the client takes them (private to lib/http).
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/assert.h"
#include "base/clock.h"

namespace mc::http::detail {

class Output {
 public:
  explicit Output(TimePoint now) : progress_(now), span_(now) {}

  void append(std::string_view bytes) {
    MC_ASSERT(lent_.empty());
    bytes_ += bytes;
  }
  /// Puts bytes behind those that wait now without a copy of them. What was given to hold() keeps them alive. Nothing
  /// is appended until all are written.
  void lend(std::string_view bytes) {
    MC_ASSERT(lent_.empty());
    lent_ = bytes;
  }
  /// The next bytes; more may follow once they are written.
  std::string_view unsent() const {
    return written_ < bytes_.size() ? std::string_view(bytes_).substr(written_) : lent_;
  }
  bool is_empty() const { return written_ == bytes_.size() && lent_.empty(); }
  /// Keeps something alive until the bytes that wait now are written, or the connection ends.
  void hold(std::shared_ptr<const void> thing) { held_.push_back(std::move(thing)); }
  /// `count` bytes of unsent() were written. After the last byte, memory beyond a small amount is freed.
  void on_written(size_t count, TimePoint now);
  /// Whether the client takes too little although bytes wait: no byte for longer than `limit`, or fewer than
  /// `lent_bytes_min` in a span of `limit` in which lent bytes wait, because what is lent cannot be freed meanwhile.
  /// The loop asks a few times a second, and the times count from the last call at which no such bytes waited.
  bool is_stalled(TimePoint now, Duration limit, size_t lent_bytes_min);

 private:
  std::string bytes_;
  size_t written_ = 0;     // bytes of bytes_ that are written
  std::string_view lent_;  // unwritten bytes that follow bytes_
  std::vector<std::shared_ptr<const void>> held_;
  TimePoint progress_;     // the last time at which the client took a byte, or nothing was unsent
  TimePoint span_;         // the start of the span in which lent bytes wait
  size_t span_taken_ = 0;  // bytes that the client took in that span
};

}  // namespace mc::http::detail
