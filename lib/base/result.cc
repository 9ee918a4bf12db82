#include "base/result.h"

#include "base/assert.h"

namespace mc {

std::string_view to_string(Code code) {
  switch (code) {
    case Code::ok: return "ok";
    case Code::invalid: return "invalid";
    case Code::not_found: return "not_found";
    case Code::busy: return "busy";
    case Code::timeout: return "timeout";
    case Code::peer_lost: return "peer_lost";
    case Code::corrupt: return "corrupt";
    case Code::no_space: return "no_space";
    case Code::unsupported: return "unsupported";
    case Code::io: return "io";
    case Code::cancelled: return "cancelled";
  }
  return "unknown";
}

Error::Error() = default;
Error::Error(Code code, std::string what) : code(code), what(std::move(what)) {}
Error::Error(Code code, std::string what, int mc, std::string where, std::string next)
    : code(code), what(std::move(what)), mc(mc), where(std::move(where)), next(std::move(next)) {}
Error::Error(const Error& other) = default;
Error::Error(Error&& other) noexcept = default;
Error& Error::operator=(const Error& other) = default;
Error& Error::operator=(Error&& other) noexcept = default;
Error::~Error() = default;

KeptError::KeptError(Error&& error) : error_(new Error(std::move(error))) {}
KeptError::KeptError(const Error& error) : error_(new Error(error)) {}
KeptError::KeptError(Code code, std::string&& what) : error_(new Error(code, std::move(what))) {}
KeptError::KeptError(Code code, std::string_view what) : error_(new Error(code, std::string(what))) {}

Error* KeptError::copy(const Error& error) {
  return new Error(error);
}

Error* KeptError::moved_from() noexcept {
  static Error mark;
  return &mark;
}

void KeptError::drop(Error* error) noexcept {
  if (error != moved_from()) delete error;
}

void KeptError::no_error() {
  assert_failed(__FILE__, __LINE__, "the Result has no error", {});
}

void no_value(const Error& error) {
  assert_failed(__FILE__, __LINE__, "the Result has a value", error.what);
}

Error within(std::string_view context, Error error) {
  error.what = std::string(context) + ": " + error.what;
  return error;
}

}  // namespace mc
