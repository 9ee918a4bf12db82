#include "base/fd.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>

#include "base/errors.h"

namespace mc {

void Fd::reset(int fd) {
  if (fd_ >= 0) ::close(fd_);
  fd_ = fd;
}

Error errno_error(std::string_view what, int errnum) {
  Code code = Code::io;
  if (errnum == ENOSPC || errnum == EDQUOT || errnum == EFBIG || errnum == ENOMEM) code = Code::no_space;
  if (errnum == ENOENT) code = Code::not_found;
  if (errnum == EADDRINUSE) code = Code::busy;
  Error error{code, std::string(what) + ": " + std::strerror(errnum)};
  if (errnum == EROFS) error.next = "mount the file system for writing, or choose a folder on another one";
  return error;
}

Error errno_error(std::string_view what) {
  return errno_error(what, errno);
}

namespace {

/// The MC#### error of a write that failed, by errno.
Error write_error(std::string_view what) {
  const int error = errno;
  const bool full = error == ENOSPC || error == EDQUOT || error == EFBIG;
  return as_user_error(full ? err::kDiskFull : err::kFileAccess, errno_error(what, error));
}

}  // namespace

Result<Pipe> make_pipe() {
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC) != 0) return errno_error("pipe2");
  return Pipe{Fd(fds[0]), Fd(fds[1])};
}

Result<EventFd> EventFd::open() {
  EventFd event;
  event.fd_ = Fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!event.fd_) return errno_error("eventfd");
  return event;
}

void EventFd::signal() const {
  const uint64_t one = 1;
  // A full counter (EAGAIN) still wakes the reader: nothing is lost.
  while (::write(fd_.get(), &one, sizeof one) < 0 && errno == EINTR) {
  }
}

bool EventFd::drain() const {
  uint64_t count = 0;
  ssize_t n;
  while ((n = ::read(fd_.get(), &count, sizeof count)) < 0 && errno == EINTR) {
  }
  return n == sizeof count;
}

bool EventFd::wait(TimePoint deadline) const {
  return wait_fd(fd_.get(), POLLIN, deadline).has_value();
}

Result<void> set_nonblocking(int fd, bool on) {
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0 || ::fcntl(fd, F_SETFL, on ? flags | O_NONBLOCK : flags & ~O_NONBLOCK) != 0)
    return errno_error("fcntl O_NONBLOCK");
  return {};
}

Result<void> wait_fd(int fd, short events, TimePoint deadline) {
  for (;;) {
    int timeout_ms = -1;
    if (deadline != kNever) {
      const Duration left = deadline - SystemClock::instance().now();
      // Rounded up: a poll that returns a moment early would spin.
      timeout_ms = left <= Duration::zero()
                       ? 0
                       : static_cast<int>(std::min<int64_t>((left.count() + 999'999) / 1'000'000, INT_MAX));
    }
    pollfd p{fd, events, 0};
    const int rc = ::poll(&p, 1, timeout_ms);
    if (rc > 0) return {};
    if (rc < 0 && errno != EINTR) return errno_error("poll");
    if (rc == 0 && deadline != kNever && SystemClock::instance().now() >= deadline)
      return {Code::timeout, "deadline passed waiting on descriptor " + std::to_string(fd)};
  }
}

Result<void> write_all(int fd, std::span<const std::byte> bytes, TimePoint deadline) {
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n = ::write(fd, bytes.data() + done, bytes.size() - done);
    if (n >= 0) {
      done += static_cast<size_t>(n);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      MC_CHECK(wait_fd(fd, POLLOUT, deadline));
    } else if (errno == EPIPE || errno == ECONNRESET) {
      return {Code::peer_lost,
              "write: reader closed after " + std::to_string(done) + " of " + std::to_string(bytes.size()) + " bytes"};
    } else if (errno != EINTR) {
      return write_error("write after " + std::to_string(done) + " bytes");
    }
  }
  return {};
}

Result<void> write_all(int fd, std::string_view text, TimePoint deadline) {
  return write_all(fd, std::as_bytes(std::span(text)), deadline);
}

Result<void> read_all(int fd, std::span<std::byte> out, TimePoint deadline) {
  size_t done = 0;
  while (done < out.size()) {
    if (deadline != kNever) MC_CHECK(wait_fd(fd, POLLIN, deadline));
    const ssize_t n = ::read(fd, out.data() + done, out.size() - done);
    if (n > 0) {
      done += static_cast<size_t>(n);
    } else if (n == 0) {
      return {Code::peer_lost,
              "read: end of input after " + std::to_string(done) + " of " + std::to_string(out.size()) + " bytes"};
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      MC_CHECK(wait_fd(fd, POLLIN, deadline));
    } else if (errno != EINTR) {
      return errno_error("read");
    }
  }
  return {};
}

Result<std::string> read_to_end(int fd, size_t limit, TimePoint deadline) {
  std::string text;
  char buffer[16384];
  for (;;) {
    if (deadline != kNever) MC_CHECK(wait_fd(fd, POLLIN, deadline));
    const ssize_t n = ::read(fd, buffer, sizeof buffer);
    if (n == 0) return text;
    if (n < 0) {
      if (errno == EINTR) continue;
      if (errno != EAGAIN && errno != EWOULDBLOCK) return errno_error("read");
      MC_CHECK(wait_fd(fd, POLLIN, deadline));
      continue;
    }
    if (text.size() + static_cast<size_t>(n) > limit)
      return user_error(err::kInputTooLarge, "input is larger than the limit of " + std::to_string(limit) + " bytes");
    text.append(buffer, static_cast<size_t>(n));
  }
}

Result<std::string> read_file(const std::string& path, size_t limit) {
  auto named = [&](Error error) { return within(path == "-" ? "stdin" : path, std::move(error)); };
  Fd owned;
  int fd = STDIN_FILENO;
  if (path != "-") {
    owned = Fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!owned) return errno_error("open " + path);
    fd = owned.get();
  }
  auto text = read_to_end(fd, limit);
  if (!text) return named(std::move(text).error());
  return text;
}

Result<void> write_file_atomic(const std::string& path, std::string_view text, unsigned mode) {
  struct stat found {};
  if (::stat(path.c_str(), &found) == 0 && !S_ISREG(found.st_mode)) {
    // Opening a FIFO without a reader would wait for ever; writing to a FIFO waits for its reader.
    const Fd as_it_is(::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC));
    if (!as_it_is) return errno == ENXIO ? Error{Code::io, "nobody reads " + path} : write_error("open " + path);
    if (::fcntl(as_it_is.get(), F_SETFL, 0) != 0) return errno_error("fcntl " + path);
    if (auto r = write_all(as_it_is.get(), text); !r) return within(path, std::move(r).error());
    return {};
  }
  std::string temporary = path + ".tmp.XXXXXX";
  Fd fd(::mkostemp(temporary.data(), O_CLOEXEC));
  if (!fd) return write_error("create " + temporary);
  auto undo = [&](Error error) {
    ::unlink(temporary.c_str());
    return error;
  };
  if (::fchmod(fd.get(), mode) != 0) return undo(write_error("fchmod " + temporary));
  if (auto r = write_all(fd.get(), text); !r) return undo(within(path, std::move(r).error()));
  if (::fsync(fd.get()) != 0) return undo(write_error("fsync " + temporary));
  if (::rename(temporary.c_str(), path.c_str()) != 0) return undo(write_error("rename to " + path));
  return {};
}

}  // namespace mc
