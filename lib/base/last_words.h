// Messages of a process before it aborts. Nothing here waits for a reader of stderr that has stopped.
#pragma once

#include <string_view>

namespace mc {

/// Writes to stderr behind the log lines that are still queued, at most two seconds long.
void print_last_words(std::string_view text);
/// A std::terminate_handler: prints what the exception says, then aborts.
[[noreturn]] void abort_on_exception();

}  // namespace mc
