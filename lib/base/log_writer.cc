#include "base/log_writer.h"

#include <poll.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <condition_variable>
#include <csignal>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <utility>

#include "base/fd.h"
#include "base/thread_limit.h"

namespace mc {

struct LogWriter::State {
  const int fd;
  const Options options;
  std::mutex mutex;                // guards the rest
  std::condition_variable filled;  // there is work, or the owner is gone
  std::condition_variable idle;    // everything is written
  std::string queue;
  uint64_t missing = 0;  // dropped since the last notice
  uint64_t dropped = 0;
  bool full = false;  // until the thread takes the queue: what is dropped leaves one gap
  bool writing = false;
  bool stopping = false;

  State(int descriptor, Options o) : fd(descriptor), options(std::move(o)) {}
  void run();
  bool add_notice(uint64_t count, std::string& lines) const;
  uint64_t write_lines(std::string_view lines) const;
};

namespace {

/// As many whole lines as one write(2) to a pipe keeps together, so that lines of several processes do not mix.
std::string_view next_piece(std::string_view lines) {
  if (lines.size() <= PIPE_BUF) return lines;
  size_t end = lines.rfind('\n', PIPE_BUF - 1);
  if (end == std::string_view::npos) end = lines.find('\n');
  return lines.substr(0, end == std::string_view::npos ? lines.size() : end + 1);
}

bool write_piece(int fd, std::string_view piece) {
  while (!piece.empty()) {
    const ssize_t n = ::write(fd, piece.data(), piece.size());
    if (n > 0) {
      piece.remove_prefix(static_cast<size_t>(n));
    } else if (n < 0 && errno == EAGAIN) {
      if (!wait_fd(fd, POLLOUT, kNever)) return false;
    } else if (n == 0 || errno != EINTR) {
      return false;
    }
  }
  return true;
}

}  // namespace

/// Returns how many lines the descriptor refused (its reader is gone, its disk is full).
uint64_t LogWriter::State::write_lines(std::string_view lines) const {
  uint64_t refused = 0;
  while (!lines.empty()) {
    const std::string_view piece = next_piece(lines);
    lines.remove_prefix(piece.size());
    if (!write_piece(fd, piece)) refused += static_cast<uint64_t>(std::count(piece.begin(), piece.end(), '\n'));
  }
  return refused;
}

/// False when there is no memory for the notice: its count belongs to a later one.
bool LogWriter::State::add_notice(uint64_t count, std::string& lines) const {
  if (!options.notice) return true;
  try {
    lines += options.notice(count);
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

void LogWriter::State::run() {
  std::unique_lock lock(mutex);
  for (;;) {
    filled.wait(lock, [this] { return stopping || !queue.empty(); });
    if (queue.empty()) return;
    std::string lines;
    lines.swap(queue);
    full = false;
    const uint64_t before = std::exchange(missing, 0);
    writing = true;
    lock.unlock();
    // A full queue drops what follows its last line, so this is where the notice belongs.
    const bool is_noted = before == 0 || add_notice(before, lines);
    const uint64_t refused = write_lines(lines);
    lock.lock();
    writing = false;
    missing += refused + (is_noted ? 0 : before);
    dropped += refused;
    if (queue.empty()) idle.notify_all();
  }
}

LogWriter::LogWriter(int fd, Options options) : state_(std::make_shared<State>(fd, std::move(options))) {}

LogWriter::~LogWriter() {
  const std::lock_guard lock(state_->mutex);
  state_->stopping = true;
  state_->filled.notify_all();
}

Result<void> LogWriter::start() {
  sigset_t all, before;
  sigfillset(&all);
  (void)pthread_sigmask(SIG_BLOCK, &all, &before);  // signals are for the threads that expect them
  Result<void> started;
  try {
    std::thread([state = state_] { state->run(); }).detach();
  } catch (const std::system_error& error) {
    started = thread_limit_error(error.code().value());
  }
  (void)pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return started;
}

void LogWriter::push(std::string_view line) noexcept {
  const std::lock_guard lock(state_->mutex);
  State& s = *state_;
  s.full = s.full || s.queue.size() + line.size() > s.options.bytes_max;
  if (!s.full) {
    try {
      s.queue += line;
      s.filled.notify_one();
      return;
    } catch (const std::exception&) {  // out of memory: the line is dropped as if the queue were full
    }
  }
  ++s.missing;
  ++s.dropped;
}

bool LogWriter::flush(TimePoint deadline) {
  std::unique_lock lock(state_->mutex);
  return state_->idle.wait_until(lock, deadline, [this] { return state_->queue.empty() && !state_->writing; });
}

bool LogWriter::drain(TimePoint deadline) {
  constexpr Duration kTurn = 10ms, kStarvedMax = 20s;
  const TimePoint end = after(deadline, kStarvedMax);
  for (TimePoint until = deadline;; until = after(SystemClock::instance().now(), kTurn)) {
    if (flush(until)) return true;
    const TimePoint now = SystemClock::instance().now();
    if (now >= end || !wait_fd(state_->fd, POLLOUT, now)) return false;
  }
}

uint64_t LogWriter::dropped() const {
  const std::lock_guard lock(state_->mutex);
  return state_->dropped;
}

}  // namespace mc
