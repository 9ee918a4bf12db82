// The spdlog fence. Lines are rendered here, so that text and JSON carry the same fields; spdlog
// brings the sink with its lock and flush.
#include "base/log.h"

#include <fcntl.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <map>
#include <mutex>
#include <optional>

#include "base/assert.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/log_writer.h"

namespace mc {
namespace {

constexpr size_t kLimitedEventsMax = 1024;
constexpr Duration kReopenPatience = 200ms;  // a regular file takes its lines at once

/// Writes each line with one write(2), so lines of several processes sharing a stderr do not mix.
void write_stderr(std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::write(STDERR_FILENO, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;  // nowhere to complain
    text.remove_prefix(static_cast<size_t>(n));
  }
}

class StderrSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  /// From now on `writer` takes the lines; it is never destroyed.
  void set_writer(LogWriter* writer) { writer_.store(writer, std::memory_order_release); }
  LogWriter* writer() const { return writer_.load(std::memory_order_acquire); }  // pairs with set_writer

 protected:
  void sink_it_(const spdlog::details::log_msg& msg) override {
    const std::string_view line(msg.payload.data(), msg.payload.size());
    if (LogWriter* thread = writer())
      thread->push(line);
    else
      write_stderr(line);
  }
  void flush_() override {}

 private:
  std::atomic<LogWriter*> writer_{nullptr};
};

/// Token bucket of one event.
struct EventLimit {
  double tokens = kLogBurst;
  TimePoint filled{};
  uint64_t suppressed = 0;  // since the last line that was written
};

struct LogState {
  std::mutex mutex;  // guards options, stderr_path, limits and suppressed
  LogOptions options;
  std::string stderr_path;  // empty unless stderr was a regular file at start
  std::map<std::string, EventLimit, std::less<>> limits;
  uint64_t suppressed = 0;
  std::shared_ptr<StderrSink> sink = std::make_shared<StderrSink>();
  spdlog::logger logger{"mc", sink};
  LogState() { logger.set_level(spdlog::level::trace); }
};

// Never destroyed: threads may log while statics are torn down.
LogState& state() {
  static LogState* const s = new LogState();
  return *s;
}

void append_text_string(std::string& out, std::string_view text) {
  bool plain = !text.empty();
  for (const char raw : text) {
    const auto c = static_cast<unsigned char>(raw);
    if (c <= ' ' || c == '"' || c == '=' || c == '\\' || c >= 0x7f) plain = false;
  }
  if (plain)
    out += text;
  else
    append_json_string(out, text);
}

void append_number(std::string& out, double value, bool json) {
  if (json && !std::isfinite(value)) {
    out += "null";
    return;
  }
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, "%.6g", value);
  out += buffer;
}

void append_value(std::string& out, const LogField::Value& value, bool json) {
  if (const auto* i = std::get_if<int64_t>(&value))
    out += std::to_string(*i);
  else if (const auto* u = std::get_if<uint64_t>(&value))
    out += std::to_string(*u);
  else if (const auto* d = std::get_if<double>(&value))
    append_number(out, *d, json);
  else if (const auto* b = std::get_if<bool>(&value))
    out += *b ? "true" : "false";
  else if (json)
    append_json_string(out, std::get<std::string_view>(value));
  else
    append_text_string(out, std::get<std::string_view>(value));
}

void append_time(std::string& out, int64_t unix_ms) {
  const std::time_t seconds = unix_ms / 1000;
  std::tm utc{};
  gmtime_r(&seconds, &utc);
  char buffer[40];
  const size_t n = std::strftime(buffer, sizeof buffer, "%Y-%m-%dT%H:%M:%S", &utc);
  out.append(buffer, n);
  std::snprintf(buffer, sizeof buffer, ".%03dZ", static_cast<int>(unix_ms % 1000));
  out += buffer;
}

/// Where to open the log again after a rotation; the link would show the new name by then.
std::string path_of_stderr() {
  struct stat now {};
  if (::fstat(STDERR_FILENO, &now) != 0 || !S_ISREG(now.st_mode)) return {};
  char path[PATH_MAX];
  const ssize_t n = ::readlink("/proc/self/fd/2", path, sizeof path);
  return n > 0 && n < static_cast<ssize_t>(sizeof path) ? std::string(path, static_cast<size_t>(n)) : std::string();
}

}  // namespace

std::string_view to_string(LogLevel level) {
  static constexpr std::string_view kNames[] = {"trace", "debug", "info", "warn", "error", "off"};
  return kNames[static_cast<size_t>(level)];
}

Result<LogLevel> parse_log_level(std::string_view text) {
  for (int i = 0; i <= static_cast<int>(LogLevel::off); ++i)
    if (to_string(static_cast<LogLevel>(i)) == text) return static_cast<LogLevel>(i);
  return {Code::invalid, "'" + std::string(text) + "' is not a log level: trace, debug, info, warn, error or off"};
}

Result<LogFormat> parse_log_format(std::string_view text) {
  if (text == "text") return LogFormat::text;
  if (text == "json") return LogFormat::json;
  return {Code::invalid, "'" + std::string(text) + "' is not a log format: text or json"};
}

std::string log_format_line(const LogOptions& options, LogLevel level, int64_t unix_ms, std::string_view event,
                            LogFields fields) {
  std::string out;
  out.reserve(160);
  if (options.format == LogFormat::json) {
    out += "{\"ts\":\"";
    append_time(out, unix_ms);
    out += "\",\"level\":\"";
    out += to_string(level);
    out += "\",\"program\":";
    append_json_string(out, options.program);
    if (!options.node.empty()) {
      out += ",\"node\":";
      append_json_string(out, options.node);
    }
    out += ",\"event\":";
    append_json_string(out, event);
    for (const LogField& field : fields) {
      out += ',';
      append_json_string(out, field.key);
      out += ':';
      append_value(out, field.value, true);
    }
    out += '}';
    return out;
  }
  append_time(out, unix_ms);
  out += ' ';
  out += to_string(level);
  if (!options.program.empty()) out += ' ' + options.program;
  if (!options.node.empty()) out += ' ' + options.node;
  out += ": ";
  out += event;
  for (const LogField& field : fields) {
    out += ' ';
    out += field.key;
    out += '=';
    append_value(out, field.value, false);
  }
  return out;
}

void log_configure(const LogOptions& options) {
  LogState& s = state();
  {
    const std::lock_guard lock(s.mutex);
    s.options = options;
    s.stderr_path = path_of_stderr();
  }
  log_set_level(options.level);
}

void log_set_node(std::string_view node) {
  LogState& s = state();
  const std::lock_guard lock(s.mutex);
  s.options.node = node;
}

void log_set_level(LogLevel level) {
  g_log_level.store(static_cast<uint8_t>(level), std::memory_order_relaxed);  // see log_enabled
}

namespace {

/// Lines of this event that were suppressed before this one; nullopt when this one is suppressed too.
std::optional<uint64_t> admit(LogState& s, std::string_view event) {
  auto at = s.limits.find(event);
  if (at == s.limits.end()) {
    if (s.limits.size() >= kLimitedEventsMax) return 0;
    at = s.limits.emplace(std::string(event), EventLimit()).first;
  }
  EventLimit& limit = at->second;
  const TimePoint now = SystemClock::instance().now();
  limit.tokens = std::min(kLogBurst, limit.tokens + to_seconds(now - limit.filled) * kLogRate);
  limit.filled = now;
  if (limit.tokens >= 1) {
    limit.tokens -= 1;
    return std::exchange(limit.suppressed, 0);
  }
  ++limit.suppressed;
  ++s.suppressed;
  return std::nullopt;
}

std::string dropped_notice(uint64_t lines) {
  LogState& s = state();
  const std::lock_guard lock(s.mutex);
  const std::string event = std::to_string(lines) + " log lines were dropped: the reader of stderr is slow";
  return log_format_line(s.options, LogLevel::warn, SystemClock::instance().unix_ms(), event, {{"lines", lines}}) +
         "\n";
}

}  // namespace

void log_write(LogLevel level, std::string_view event, LogFields fields) {
  LogState& s = state();
  LogOptions options;
  uint64_t suppressed = 0;
  {
    const std::lock_guard lock(s.mutex);
    if (level >= LogLevel::warn) {
      const auto admitted = admit(s, event);
      if (!admitted) return;
      suppressed = *admitted;
    }
    options = s.options;
  }
  std::string line = log_format_line(options, level, SystemClock::instance().unix_ms(), event, fields);
  if (suppressed > 0) {
    if (options.format == LogFormat::json)
      line.insert(line.size() - 1, ",\"suppressed\":" + std::to_string(suppressed));
    else
      line += " suppressed=" + std::to_string(suppressed);
  }
  line += '\n';
  s.logger.log(spdlog::level::info, spdlog::string_view_t(line.data(), line.size()));
}

Result<void> log_to_thread() {
  LogState& s = state();
  MC_ASSERT(s.sink->writer() == nullptr);
  auto writer = std::make_unique<LogWriter>(STDERR_FILENO, LogWriter::Options{.notice = dropped_notice});
  MC_CHECK(writer->start());
  s.sink->set_writer(writer.release());  // never destroyed, like the state
  return {};
}

void log_print(std::string_view text) {
  if (LogWriter* writer = state().sink->writer())
    writer->push(text);
  else
    write_stderr(text);
}

bool log_flush(Duration patience) {
  LogWriter* writer = state().sink->writer();
  return writer == nullptr || writer->flush(after(SystemClock::instance().now(), patience));
}

bool log_drain(Duration patience) {
  LogWriter* writer = state().sink->writer();
  return writer == nullptr || writer->drain(after(SystemClock::instance().now(), patience));
}

LogLosses log_losses() {
  LogState& s = state();
  LogLosses losses;
  if (const LogWriter* writer = s.sink->writer()) losses.dropped = writer->dropped();
  const std::lock_guard lock(s.mutex);
  losses.suppressed = s.suppressed;
  return losses;
}

Result<void> log_reopen() {
  LogState& s = state();
  {
    const std::lock_guard lock(s.mutex);
    if (s.stderr_path.empty()) return {};
  }
  if (LogWriter* writer = s.sink->writer())  // lines logged before belong into the old file
    (void)writer->flush(after(SystemClock::instance().now(), kReopenPatience));
  const std::lock_guard lock(s.mutex);
  const int fd = ::open(s.stderr_path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) return {Code::io, "log: open " + s.stderr_path + ": " + std::strerror(errno)};
  const int rc = ::dup2(fd, STDERR_FILENO);
  ::close(fd);
  if (rc < 0) return {Code::io, std::string("log: dup2: ") + std::strerror(errno)};
  return {};
}

}  // namespace mc
