// File descriptors as a move-only type, and the few calls every loop needs, each with a deadline:
// nothing here waits for ever. Errors name the call and the errno text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "base/clock.h"
#include "base/result.h"

namespace mc {

class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  ~Fd() { reset(); }
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    if (this != &other) reset(std::exchange(other.fd_, -1));
    return *this;
  }
  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  int release() { return std::exchange(fd_, -1); }
  void reset(int fd = -1);

 private:
  int fd_ = -1;
};

/// "open /x: No such file or directory" from the current errno; code io, no_space or not_found.
Error errno_error(std::string_view what);
Error errno_error(std::string_view what, int errnum);

struct Pipe {
  Fd read_end;
  Fd write_end;
};

Result<Pipe> make_pipe();
/// A wake-up between threads. signal() never blocks; drain() clears any number of signals.
class EventFd {
 public:
  static Result<EventFd> open();
  int fd() const { return fd_.get(); }
  void signal() const;
  /// True when at least one signal was pending.
  bool drain() const;
  /// False when the deadline passed first. Does not drain.
  bool wait(TimePoint deadline) const;

 private:
  Fd fd_;
};

Result<void> set_nonblocking(int fd, bool on);
/// Waits until `events` (POLLIN, POLLOUT) or an error condition; Code::timeout at the deadline.
Result<void> wait_fd(int fd, short events, TimePoint deadline);
/// Writes all bytes; works on blocking and non-blocking descriptors (only the latter keep the
/// deadline while the peer does not read).
Result<void> write_all(int fd, std::span<const std::byte> bytes, TimePoint deadline = kNever);
Result<void> write_all(int fd, std::string_view text, TimePoint deadline = kNever);
/// Fills `out` completely; Code::peer_lost at end of file with the count that did arrive.
Result<void> read_all(int fd, std::span<std::byte> out, TimePoint deadline = kNever);
/// Reads to end of file; MC1008 when there is more than `limit` bytes.
Result<std::string> read_to_end(int fd, size_t limit, TimePoint deadline = kNever);
/// Whole file as text; `-` is stdin. MC1008 beyond `limit` bytes.
Result<std::string> read_file(const std::string& path, size_t limit);
/// Creates or replaces through a temporary name and rename, so that readers see old or new. What is there and no
/// regular file (/dev/null, a pipe) is written to and stays.
Result<void> write_file_atomic(const std::string& path, std::string_view text, unsigned mode = 0644);

}  // namespace mc
