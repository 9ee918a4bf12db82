// Logs: one event, one line, to stderr only (stdout carries data). An event is lower-case words, its
// facts are key=value fields with the unit in the key:
//
//   log_info("slice retried", {{"slice", id}, {"rail", name}, {"wait_ms", to_ms(wait)}});
//   2026-03-01T12:00:00.123Z info mc-decode d0: slice retried slice=7 rail=mlx5_0 wait_ms=1.25
//
// error = someone must act, warn = we recovered, info = state changed (a handful a minute),
// debug = per request, trace = per slice. A library returns errors; only a tool or a loop logs them.
// Any thread may log. A disabled level costs one relaxed load and building the field list; guard
// expensive values with log_enabled(). Warnings and errors of one event are limited to kLogBurst at
// once and kLogRate a second; the next one that is written says how many were suppressed.
// A command writes its lines itself. A daemon calls log_to_thread(): from then on no line waits for
// the reader of stderr, and lines that the reader does not take are dropped and counted.
#pragma once

#include <atomic>
#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <variant>

#include "base/clock.h"
#include "base/result.h"

namespace mc {

enum class LogLevel : uint8_t { trace = 0, debug, info, warn, error, off };
enum class LogFormat : uint8_t { text = 0, json };

std::string_view to_string(LogLevel level);
/// "trace", "debug", "info", "warn", "error" or "off".
Result<LogLevel> parse_log_level(std::string_view text);
Result<LogFormat> parse_log_format(std::string_view text);

/// A field borrows its strings: it lives no longer than the log() call it is written in.
struct LogField {
  using Value = std::variant<int64_t, uint64_t, double, bool, std::string_view>;

  template <std::signed_integral T>
  LogField(std::string_view k, T v) : key(k), value(static_cast<int64_t>(v)) {}
  template <std::unsigned_integral T>
  LogField(std::string_view k, T v) : key(k), value(static_cast<uint64_t>(v)) {}
  template <std::floating_point T>
  LogField(std::string_view k, T v) : key(k), value(static_cast<double>(v)) {}
  LogField(std::string_view k, bool v) : key(k), value(v) {}
  LogField(std::string_view k, std::string_view v) : key(k), value(v) {}
  LogField(std::string_view k, const std::string& v) : key(k), value(std::string_view(v)) {}
  LogField(std::string_view k, const char* v) : key(k), value(std::string_view(v)) {}

  std::string_view key;
  Value value;
};
using LogFields = std::initializer_list<LogField>;

struct LogOptions {
  LogLevel level = LogLevel::info;
  LogFormat format = LogFormat::text;
  std::string program;  // "mc-decode"
  std::string node;     // "d0"; empty until known
};

inline constexpr double kLogBurst = 50, kLogRate = 5;

/// Call once at start, before other threads log. Without it: info, text, no names.
void log_configure(const LogOptions& options);
/// The node's name is often known only after registration. Thread-safe.
void log_set_node(std::string_view node);
void log_set_level(LogLevel level);
/// SIGHUP: when stderr is a file that was renamed away (logrotate), opens its path again.
Result<void> log_reopen();
/// From now on a thread writes the lines (base/log_writer.h). Once, before other threads log.
Result<void> log_to_thread();
/// Writes text that is no log line (the error that ends a program) behind the lines logged so far.
void log_print(std::string_view text);
/// LogWriter::flush(). Without log_to_thread() no line waits.
bool log_flush(Duration patience);
/// LogWriter::drain(), for the regular end of the process: it may take 20 s longer than `patience`.
bool log_drain(Duration patience);
struct LogLosses {
  uint64_t dropped = 0;     // the reader of stderr was too slow, or its disk is full
  uint64_t suppressed = 0;  // beyond kLogRate
};
LogLosses log_losses();
/// The line that log() would write, without the newline: for tests and for other sinks.
std::string log_format_line(const LogOptions& options, LogLevel level, int64_t unix_ms, std::string_view event,
                            LogFields fields);

inline std::atomic<uint8_t> g_log_level{static_cast<uint8_t>(LogLevel::info)};

inline bool log_enabled(LogLevel level) {
  // relaxed: a level change may be seen a line late, nothing is published through it
  return static_cast<uint8_t>(level) >= g_log_level.load(std::memory_order_relaxed);
}

void log_write(LogLevel level, std::string_view event, LogFields fields);

inline void log(LogLevel level, std::string_view event, LogFields fields = {}) {
  if (log_enabled(level)) log_write(level, event, fields);
}
inline void log_error(std::string_view event, LogFields fields = {}) {
  log(LogLevel::error, event, fields);
}
inline void log_warn(std::string_view event, LogFields fields = {}) {
  log(LogLevel::warn, event, fields);
}
inline void log_info(std::string_view event, LogFields fields = {}) {
  log(LogLevel::info, event, fields);
}
inline void log_debug(std::string_view event, LogFields fields = {}) {
  log(LogLevel::debug, event, fields);
}

}  // namespace mc
