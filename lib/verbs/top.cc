#include "verbs/top.h"

#include <fcntl.h>
#include <poll.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "base/assert.h"
#include "base/errors.h"
#include "base/exit.h"
#include "base/fd.h"
#include "base/table.h"
#include "base/units.h"
#include "host/signals.h"
#include "verbs/cluster_table.h"
#include "verbs/request_text.h"

namespace mc {

Result<void> flags::check_top_interval(std::string_view value) {
  MC_TRY(time, parse_duration(value));
  if (time >= 100ms && time <= std::chrono::hours(1)) return {};
  return {Code::invalid, "'" + std::string(value) + "' is not from 100ms to 1h"};
}

}  // namespace mc

namespace mc::verbs {
namespace {

constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
constexpr size_t kRowsElsewhere = 24;  // of a screen that goes to a pipe or a file

/// Events a second of a total of the cluster; NaN without two looks at one run of the conductor.
double rate(const TopSample& sample, const char* total) {
  if (sample.seconds <= 0) return kUnknown;
  const double grown = sample.now["totals"][total].as_double() - sample.before["totals"][total].as_double();
  return grown < 0 ? kUnknown : grown / sample.seconds;
}

Json known(double value) {
  return std::isnan(value) ? Json() : Json(value);
}

std::string number(double value) {
  if (std::isnan(value)) return "-";
  char text[32];
  std::snprintf(text, sizeof text, value < 100 ? "%.1f" : "%.0f", value);
  return text;
}

/// The p50 as mc-bench(1) defines a quantile: the ceil(N/2)-th smallest. `sorted` has one value or more.
double median(const std::vector<double>& sorted) {
  MC_ASSERT(!sorted.empty());
  return sorted[(sorted.size() - 1) / 2];
}

/// TTFT of the requests that ended last, ascending, ms.
std::vector<double> last_ttfts(const Json& requests) {
  std::vector<double> out;
  for (const Json& r : requests.items())
    if (r["outcome"].as_string() != "running" && r["ttft_ms"].is_number()) out.push_back(r["ttft_ms"].as_double());
  std::sort(out.begin(), out.end());
  return out;
}

std::string rates_text(const TopSample& sample) {
  const double in = rate(sample, "prompt_tokens");
  const double cached = rate(sample, "cached_local_tokens") + rate(sample, "cached_remote_tokens");
  std::string out = "requests/s " + number(rate(sample, "finished")) + "   failed/s " + number(rate(sample, "failed")) +
                    "   rejected/s " + number(rate(sample, "rejected")) + "   retried/s " +
                    number(rate(sample, "retried")) + "\ntokens/s in " + number(in);
  if (in > 0) out += " (" + number(100 * cached / in) + " % cached)";
  out += ", out " + number(rate(sample, "answer_tokens"));
  if (const auto ttfts = last_ttfts(sample.requests); !ttfts.empty())
    out += "   TTFT of the last " + std::to_string(ttfts.size()) + ": p50 " + number(median(ttfts)) + ", max " +
           number(ttfts.back()) + " ms";
  return out + "\n";
}

/// The first `rows` lines, each cut after `columns` characters.
std::string fitted(std::string_view text, size_t columns, size_t rows) {
  std::string out;
  for (size_t row = 0; row < rows && !text.empty(); ++row) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    size_t bytes = 0, characters = 0;
    for (; bytes < line.size(); ++bytes) {
      const bool is_start = (line[bytes] & 0xC0) != 0x80;
      if (is_start && characters++ == columns) break;
    }
    out += std::string(line.substr(0, bytes)) + "\n";
  }
  return out;
}

/// The terminal while it shows screens: its other contents come back at the end, and keys are not echoed. A terminal
/// that takes no output makes a draw wait until `is_leaving` is set, which outlives the object.
class Terminal {
 public:
  explicit Terminal(const std::atomic<bool>& is_leaving) : is_leaving_(is_leaving) {
    // Opened again: a descriptor that never blocks, while those of the shell stay as they are.
    char name[256];
    if (::ttyname_r(1, name, sizeof name) == 0) out_ = Fd(::open(name, O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
    if (::tcgetattr(0, &before_) == 0) {
      termios quiet = before_;
      quiet.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
      changed_ = ::tcsetattr(0, TCSANOW, &quiet) == 0;
    }
    (void)write("\x1b[?1049h\x1b[?25l");
  }
  ~Terminal() {
    std::string_view left = "\x1b[?25h\x1b[?1049l";
    for (int attempt = 0; attempt < 100 && !left.empty(); ++attempt) {
      const ssize_t written = ::write(fd(), left.data(), left.size());
      if (written > 0) left.remove_prefix(static_cast<size_t>(written));
      if (written > 0 || errno == EINTR) continue;
      // The terminal takes no output. What it has not read is part of a screen that nobody will see.
      if (errno != EAGAIN || ::tcflush(fd(), TCOFLUSH) != 0) break;
    }
    if (changed_) (void)::tcsetattr(0, TCSANOW, &before_);
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  bool has_keys() const { return changed_; }

  Result<void> draw(std::string_view text) const {
    std::string out = "\x1b[H";
    for (const char c : text) out += c == '\n' ? std::string("\x1b[K\r\n") : std::string(1, c);
    return write(out + "\x1b[J");
  }

 private:
  int fd() const { return out_ ? out_.get() : 1; }

  Result<void> write(std::string_view text) const {
    while (!text.empty() && !is_leaving_) {
      const ssize_t written = ::write(fd(), text.data(), text.size());
      if (written > 0) text.remove_prefix(static_cast<size_t>(written));
      if (written > 0 || errno == EINTR) continue;
      if (errno != EAGAIN) return errno_error("write to the terminal");
      pollfd room{fd(), POLLOUT, 0};
      (void)::poll(&room, 1, 50);  // is_leaving_ wakes no thread
    }
    return {};
  }

  const std::atomic<bool>& is_leaving_;
  Fd out_;
  termios before_{};
  bool changed_ = false;
};

/// A thread that ends the program at a signal, or at q on a terminal, also while a call to the conductor is under way.
/// The terminal is then as it was before. Open the watch before any other thread starts.
class ExitWatch {
 public:
  static Result<std::unique_ptr<ExitWatch>> open() {
    MC_TRY(signals, host::Signals::open());
    MC_TRY(changed, EventFd::open());
    return std::unique_ptr<ExitWatch>(new ExitWatch(std::move(signals), std::move(changed)));
  }
  ~ExitWatch() {
    is_over_ = true;
    changed_.signal();
    thread_.join();
  }
  ExitWatch(const ExitWatch&) = delete;
  ExitWatch& operator=(const ExitWatch&) = delete;

  /// From here on the terminal shows screens, and q is a key.
  void take_terminal() {
    {
      const std::lock_guard lock(mutex_);
      terminal_.emplace(is_leaving_);
      keys_ = terminal_->has_keys();
    }
    changed_.signal();
  }
  /// Writes a screen to the terminal if it was taken, else the text to stdout.
  Result<void> put(std::string_view text) {
    const std::lock_guard lock(mutex_);
    return terminal_ ? terminal_->draw(text) : write_all(1, text);
  }
  void wait_until(TimePoint when) {
    std::unique_lock lock(mutex_);
    never_.wait_until(lock, when, [] { return false; });
  }

 private:
  ExitWatch(host::Signals signals, EventFd changed)
      : signals_(std::move(signals)), changed_(std::move(changed)), thread_([this] { watch(); }) {}

  /// Takes no lock before it leaves: a draw that the terminal does not take holds the mutex.
  void watch() {
    for (;;) {
      pollfd fds[3] = {{changed_.fd(), POLLIN, 0}, {signals_.fd(), POLLIN, 0}, {keys_ ? 0 : -1, POLLIN, 0}};
      if (::poll(fds, 3, -1) < 0) continue;
      if (fds[0].revents != 0) {
        changed_.drain();
        if (is_over_) return;
      }
      if (fds[1].revents != 0 && signals_.next()) leave(kExitInterrupted);
      char key = 0;
      if (fds[2].revents != 0 && (::read(0, &key, 1) != 1 || key == 'q')) leave(kExitOk);
    }
  }

  [[noreturn]] void leave(int code) {
    // The other thread ends a draw soon. It holds the mutex for long only when the reader of a pipe has stalled.
    is_leaving_ = true;
    const std::unique_lock lock(mutex_, 3s);
    if (lock.owns_lock()) terminal_.reset();
    std::_Exit(code);
  }

  host::Signals signals_;
  EventFd changed_;
  std::timed_mutex mutex_;
  std::condition_variable_any never_;
  std::optional<Terminal> terminal_;
  std::atomic<bool> is_over_{false}, is_leaving_{false}, keys_{false};
  std::thread thread_;  // the last member, because the thread uses the other members
};

/// Looks at the cluster again: what was seen before becomes the past.
Result<void> look(const cli::Args& args, TopSample& sample, TimePoint& looked) {
  MC_TRY(now, ask_conductor(args, http::Method::get, "/cluster", "", soon(5s)));
  const TimePoint at = SystemClock::instance().now();
  MC_TRY(requests, ask_conductor(args, http::Method::get, "/requests", "", soon(5s)));
  sample.seconds = sample.now.is_null() ? 0 : to_seconds(at - looked);
  sample.before = std::exchange(sample.now, std::move(now));
  sample.requests = requests["requests"];
  looked = at;
  return {};
}

}  // namespace

Json TopSample::json() const {
  Json out = Json::object({{"type", "sample"}, {"seconds", seconds}, {"model", now["model"]}, {"url", now["url"]}});
  out.set("nodes", now["nodes"].size()).set("requests_unfinished", now["requests_unfinished"]).set("held", now["held"]);
  for (const auto& [key, total] : {std::pair{"requests_per_s", "finished"},
                                   {"failed_per_s", "failed"},
                                   {"rejected_per_s", "rejected"},
                                   {"retried_per_s", "retried"},
                                   {"prompt_tokens_per_s", "prompt_tokens"},
                                   {"cached_local_tokens_per_s", "cached_local_tokens"},
                                   {"cached_remote_tokens_per_s", "cached_remote_tokens"},
                                   {"answer_tokens_per_s", "answer_tokens"}})
    out.set(key, known(rate(*this, total)));
  const std::vector<double> ttfts = last_ttfts(requests);
  out.set("ttft_requests", ttfts.size()).set("ttft_p50_ms", ttfts.empty() ? Json() : Json(median(ttfts)));
  return std::move(out.set("ttft_max_ms", ttfts.empty() ? Json() : Json(ttfts.back())));
}

std::string TopSample::screen(size_t columns, size_t rows) const {
  MC_ASSERT(columns > 0 && rows > 0);
  std::string text = cluster_line(now) + rates_text(*this) + "\n" + cluster_table(now, false);
  if (requests.size() > 0) text += "\n" + requests_table(requests, columns);
  return fitted(text, columns, rows);
}

namespace {

Result<int> show_samples(const cli::Args& args) {
  const bool lives = !args.on(flags::kOnce) && !args.on(flags::kJson) && ::isatty(1) == 1;
  MC_TRY(watch, ExitWatch::open());
  TopSample sample;
  TimePoint looked{};
  MC_CHECK(look(args, sample, looked));  // an error before the first screen ends the program
  if (lives) {
    watch->take_terminal();
    MC_CHECK(watch->put(sample.screen(terminal_columns(1), terminal_rows(1) - 1)));
  }
  for (TimePoint next = looked;;) {
    next += args.duration(flags::kTopInterval);
    watch->wait_until(next);
    const auto seen = look(args, sample, looked);
    if (!seen && !lives) return seen.error();
    next = std::max(next, SystemClock::instance().now() - args.duration(flags::kTopInterval));
    if (!seen)
      MC_CHECK(watch->put(fitted(one_line(seen.error()) + "\n", terminal_columns(1), 1)));
    else if (lives)
      MC_CHECK(watch->put(sample.screen(terminal_columns(1), terminal_rows(1) - 1)));
    else if (args.on(flags::kJson))
      MC_CHECK(watch->put(sample.json().dump() + "\n"));
    else
      MC_CHECK(watch->put(sample.screen(terminal_columns(1), kRowsElsewhere) + (args.on(flags::kOnce) ? "" : "\n")));
    if (args.on(flags::kOnce)) return kExitOk;
  }
}

}  // namespace

Result<int> top(const cli::Args& args) {
  auto shown = show_samples(args);
  // The reader of a pipe has what it wants: top | head. Errors of the conductor have numbers.
  if (!shown && shown.error().code == Code::peer_lost && shown.error().mc == 0) return kExitOk;
  return shown;
}

}  // namespace mc::verbs
