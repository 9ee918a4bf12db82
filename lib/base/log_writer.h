// Lines for a descriptor whose reader may stop: push() copies a line into a bounded queue, and one thread,
// which alone may block, writes the queue. When the queue is full, lines are dropped until the thread has
// taken it; the count of the dropped lines is written as a line of its own in their place.
//
//   LogWriter writer(STDERR_FILENO, {.notice = [](uint64_t lines) { return ...; }});
//   MC_CHECK(writer.start());
//   writer.push("line\n");
//   writer.flush(after(now, 1s));
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/result.h"

namespace mc {

class LogWriter {
 public:
  struct Options {
    size_t bytes_max = size_t{1} << 20;             // of the queue
    std::function<std::string(uint64_t)> notice{};  // the line that says how many lines were dropped
  };

  /// The descriptor stays the caller's and must stay open.
  LogWriter(int fd, Options options);
  /// The thread ends once its last write returns. No thread waits for it, because that write may never return.
  ~LogWriter();
  LogWriter(const LogWriter&) = delete;
  LogWriter& operator=(const LogWriter&) = delete;

  /// Starts the thread, with every signal blocked in it.
  Result<void> start();
  /// `line` ends with a newline. Any thread; waits for no reader and throws nothing.
  void push(std::string_view line) noexcept;
  /// True once everything pushed before is written; false at the deadline.
  bool flush(TimePoint deadline);
  /// The same for a process that ends. While the descriptor takes more, the thread lacks a processor and not a reader:
  /// then the wait goes on for up to 20 s.
  bool drain(TimePoint deadline);
  /// Lines that were not written: the queue was full, or the descriptor refused them.
  uint64_t dropped() const;

 private:
  struct State;
  std::shared_ptr<State> state_;  // shared with the thread, which may outlive this
};

}  // namespace mc
