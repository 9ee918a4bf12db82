// The errors that users see: a stable MC#### number, its exit code, HTTP status and OpenAI error type, its meaning and
// the next step. The table is errors.inc; --help, `help MC2104`, manual pages and HTTP answers all print from it.
//
//   return user_error(err::kPortInUse, "127.0.0.1:8000 is taken");
//   mc-conductor: error MC5001 port-in-use: 127.0.0.1:8000 is taken
//     where: --http
//     next:  stop that program ..., or port 0 for a free one; details: mc-conductor help MC5001
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "base/exit.h"
#include "base/result.h"

namespace mc {

namespace err {
enum Number : int {
#define MC_ERROR(number, name, ...) name = number,
#include "base/errors.inc"
#undef MC_ERROR
};
}  // namespace err

struct ErrorInfo {
  int number;
  std::string_view slug;  // "kv-layout-mismatch"
  Code code;
  int exit_code;
  int http_status;               // 0: never an HTTP answer of its own
  std::string_view openai_type;  // "invalid_request_error"
  std::string_view openai_code;  // "context_length_exceeded"
  std::string_view meaning;      // one sentence
  std::string_view next;         // what to do, no full stop
};

/// Ordered by number.
std::span<const ErrorInfo> error_table();
/// nullptr for an unknown number.
const ErrorInfo* find_error(int number);
/// Accepts "MC2104", "mc2104", "2104" and the slug.
const ErrorInfo* find_error(std::string_view text);

/// An Error with the table's code; `where` and `next` may be empty (next then comes from the table).
Error user_error(err::Number number, std::string what, std::string_view where = {}, std::string_view next = {});
/// The same error for the same cause, now with a number the user can look up; keeps an existing one.
Error as_user_error(err::Number number, Error error);

/// The three lines (two when `where` is empty), each ended by a newline. Errors without a number
/// print as `program: error: what`.
std::string format_error(std::string_view program, const Error& error);
/// One line for logs: "MC5001 port-in-use: ...".
std::string one_line(const Error& error);
/// Exit code of the error's number; by code (timeout and peer_lost fail as 1) when it has none.
int exit_code_of(const Error& error);
/// HTTP status of the number; by code when it has none: invalid 400, not_found 404, busy 429,
/// timeout 504, unsupported 400, the rest 500 or 503.
int http_status_of(const Error& error);

/// The output of `mc-x help MC2104`: number, slug, meaning, next step, exit code, HTTP answer.
std::string explain_error(const ErrorInfo& info);
/// All numbers with slug and meaning, one a line, for `mc-x help` and mc.7.
std::string list_errors();
/// The same as an mdoc(7) list, with next steps, exit codes and HTTP answers, for mc.7.
std::string man_errors();

}  // namespace mc
