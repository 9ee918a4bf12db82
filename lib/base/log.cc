// The spdlog fence. Lines are rendered here, so that text and JSON carry the same fields; spdlog
// brings the sink with its lock and flush.
#include "base/log.h"

#include <fcntl.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <mutex>

#include "base/clock.h"
#include "base/json.h"

namespace mc {
namespace {

/// Writes each line with one write(2), so lines of several processes sharing a stderr do not mix.
class StderrSink final : public spdlog::sinks::base_sink<std::mutex> {
 protected:
  void sink_it_(const spdlog::details::log_msg& msg) override {
    const char* at = msg.payload.data();
    size_t left = msg.payload.size();
    while (left > 0) {
      const ssize_t n = ::write(STDERR_FILENO, at, left);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return;  // nowhere to complain
      at += n;
      left -= static_cast<size_t>(n);
    }
  }
  void flush_() override {}
};

struct LogState {
  std::mutex mutex;  // guards options
  LogOptions options;
  std::string stderr_path;  // empty unless stderr was a regular file at start
  spdlog::logger logger{"mc", std::make_shared<StderrSink>()};
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

void log_write(LogLevel level, std::string_view event, LogFields fields) {
  LogState& s = state();
  LogOptions options;
  {
    const std::lock_guard lock(s.mutex);
    options = s.options;
  }
  std::string line = log_format_line(options, level, SystemClock::instance().unix_ms(), event, fields);
  line += '\n';
  s.logger.log(spdlog::level::info, spdlog::string_view_t(line.data(), line.size()));
}

Result<void> log_reopen() {
  LogState& s = state();
  const std::lock_guard lock(s.mutex);
  if (s.stderr_path.empty()) return {};
  const int fd = ::open(s.stderr_path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) return {Code::io, "log: open " + s.stderr_path + ": " + std::strerror(errno)};
  const int rc = ::dup2(fd, STDERR_FILENO);
  ::close(fd);
  if (rc < 0) return {Code::io, std::string("log: dup2: ") + std::strerror(errno)};
  return {};
}

}  // namespace mc
