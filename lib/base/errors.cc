#include "base/errors.h"

#include <algorithm>
#include <cctype>

#include "base/assert.h"
#include "base/foreign_text.h"

namespace mc {
namespace {

constexpr ErrorInfo kErrors[] = {
#define MC_ERROR(number, name, slug, code, exit, http, type, openai_code, meaning, next) \
  {number, slug, Code::code, exit, http, type, openai_code, meaning, next},
#include "base/errors.inc"
#undef MC_ERROR
};

constexpr bool sorted() {
  for (size_t i = 1; i < std::size(kErrors); ++i)
    if (kErrors[i - 1].number >= kErrors[i].number) return false;
  return true;
}
static_assert(sorted(), "errors.inc: numbers ascend, none twice");

std::string name_of(const ErrorInfo& info) {
  return "MC" + std::to_string(info.number) + " " + std::string(info.slug);
}

/// The text in lines of a manual page's source. No line begins with a dot or a quote: mdoc would take it for a macro.
std::string folded(std::string_view text) {
  constexpr size_t kLineMax = 110;
  std::string out;
  while (text.size() > kLineMax) {
    size_t space = text.rfind(' ', kLineMax);
    while (space != std::string_view::npos && (text[space + 1] == '.' || text[space + 1] == '\''))
      space = text.rfind(' ', space - 1);
    if (space == std::string_view::npos) break;
    out += std::string(text.substr(0, space)) + "\n";
    text.remove_prefix(space + 1);
  }
  return out + std::string(text);
}

}  // namespace

std::span<const ErrorInfo> error_table() {
  return kErrors;
}

const ErrorInfo* find_error(int number) {
  const auto* at = std::lower_bound(std::begin(kErrors), std::end(kErrors), number,
                                    [](const ErrorInfo& info, int n) { return info.number < n; });
  return at != std::end(kErrors) && at->number == number ? at : nullptr;
}

const ErrorInfo* find_error(std::string_view text) {
  std::string_view digits = text;
  if (digits.size() == 6 && std::toupper(static_cast<unsigned char>(digits[0])) == 'M' &&
      std::toupper(static_cast<unsigned char>(digits[1])) == 'C')
    digits.remove_prefix(2);
  for (const ErrorInfo& info : kErrors)
    if (info.slug == text || std::to_string(info.number) == digits) return &info;
  return nullptr;
}

Error user_error(err::Number number, std::string what, std::string_view where, std::string_view next) {
  const ErrorInfo* info = find_error(static_cast<int>(number));
  MC_ASSERT(info != nullptr);
  return {info->code, std::move(what), info->number, std::string(where), std::string(next)};
}

Error as_user_error(err::Number number, Error error) {
  if (error.mc == 0) error.mc = static_cast<int>(number);
  return error;
}

std::string format_error(std::string_view program, const Error& error) {
  const std::string name(program), what = show_controls(error.what);  // a server may have told it
  const ErrorInfo* info = find_error(error.mc);
  if (!info) return name + ": error: " + what + "\n";
  std::string out = name + ": error " + name_of(*info) + ": " + what + "\n";
  if (!error.where.empty()) out += "  where: " + show_controls(error.where) + "\n";
  out += "  next:  " + (error.next.empty() ? std::string(info->next) : show_controls(error.next));
  return out + "; details: " + name + " help MC" + std::to_string(info->number) + "\n";
}

std::string one_line(const Error& error) {
  const ErrorInfo* info = find_error(error.mc);
  std::string out = (info ? name_of(*info) + ": " : std::string()) + error.what;
  if (!error.where.empty()) out += " (" + error.where + ")";
  return out;
}

int exit_code_of(const Error& error) {
  if (const ErrorInfo* info = find_error(error.mc)) return info->exit_code;
  return error.code == Code::ok ? kExitOk : kExitFailed;
}

int http_status_of(const Error& error) {
  const ErrorInfo* info = find_error(error.mc);
  if (info && info->http_status != 0) return info->http_status;
  switch (error.code) {
    case Code::ok: return 200;
    case Code::invalid:
    case Code::unsupported: return 400;
    case Code::not_found: return 404;
    case Code::busy: return 429;
    case Code::timeout: return 504;
    case Code::peer_lost:
    case Code::no_space:
    case Code::cancelled: return 503;
    case Code::corrupt:
    case Code::io: return 500;
  }
  return 500;
}

std::string explain_error(const ErrorInfo& info) {
  std::string out = name_of(info) + "\n  " + std::string(info.meaning) + "\n  next: " + std::string(info.next) +
                    "\n  exit code: " + std::to_string(info.exit_code) + "\n";
  if (info.http_status != 0)
    out += "  HTTP: " + std::to_string(info.http_status) + " " + std::string(info.openai_type) + ", code " +
           std::string(info.openai_code) + "\n";
  return out;
}

std::string list_errors() {
  std::string out;
  for (const ErrorInfo& info : kErrors) {
    std::string name = name_of(info);
    name.resize(std::max<size_t>(name.size() + 1, 34), ' ');
    out += name + std::string(info.meaning) + "\n";
  }
  return out;
}

std::string man_errors() {
  std::string out = ".Bl -tag -width Ds\n";
  for (const ErrorInfo& info : kErrors) {
    out += ".It " + name_of(info) + "\n" + folded(info.meaning) + "\n" + folded("Next: " + std::string(info.next)) +
           ".\nExit code " + std::to_string(info.exit_code);
    if (info.http_status != 0)
      out += ", HTTP " + std::to_string(info.http_status) + " " + std::string(info.openai_code);
    out += ".\n";
  }
  return out + ".El\n";
}

}  // namespace mc
