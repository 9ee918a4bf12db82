#include "base/assert.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "base/fd.h"
#include "base/last_words.h"
#include "base/log.h"

namespace mc {
namespace {

constexpr Duration kLastWords = 1s;

}  // namespace

void print_last_words(std::string_view text) {
  if (!log_flush(kLastWords)) return;  // the reader of stderr has stopped: it would not take these words either
  if (!wait_fd(STDERR_FILENO, POLLOUT, after(SystemClock::instance().now(), kLastWords))) return;
  (void)!::write(STDERR_FILENO, text.data(), text.size());
}

void assert_failed(const char* file, int line, const char* expr) {
  assert_failed(file, line, expr, {});
}

void assert_failed(const char* file, int line, const char* expr, const std::string& values) {
  char text[2048];
  const int n = std::snprintf(text, sizeof text, "%s:%d: assertion failed: %s%s%s\n", file, line, expr,
                              values.empty() ? "" : ": ", values.c_str());
  print_last_words({text, std::min(static_cast<size_t>(std::max(n, 0)), sizeof text - 1)});
  std::abort();
}

void abort_on_exception() {
  const char* what = "no exception";
  try {
    if (const auto current = std::current_exception()) std::rethrow_exception(current);
  } catch (const std::exception& error) {
    what = error.what();
  } catch (...) {
    what = "an unknown exception";
  }
  char text[512];
  const int n = std::snprintf(text, sizeof text, "ended by an exception that nothing caught: %s\n", what);
  print_last_words({text, std::min(static_cast<size_t>(std::max(n, 0)), sizeof text - 1)});
  std::abort();
}

}  // namespace mc
