// Errors are values. `Result<T>` holds a T or an `Error{Code, what}`; member names follow
// std::expected so that an alias can replace this file when C++23 arrives (nvcc 13.0 and g++ 12
// both lack it). Codes say what the *caller* can do; the text names the thing and the number.
//
//   Result<Fd> open_log(path);
//   MC_TRY(fd, open_log(path));     // declares fd, or returns the error
//   MC_CHECK(write_all(fd, bytes)); // Result<void>: returns the error
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace mc {

enum class Code : uint8_t {
  ok = 0,
  invalid,      // the input is wrong: fix it, a retry cannot help
  not_found,    // the named thing does not exist (here)
  busy,         // a bounded resource is full now: retry later
  timeout,      // the deadline passed
  peer_lost,    // the other process died or restarted under another instance id
  corrupt,      // bytes fail their checksum, magic or bounds
  no_space,     // memory or disk is exhausted
  unsupported,  // a known feature this build or model does not have
  io,           // the operating system refused
  cancelled,    // the caller asked for it
};

std::string_view to_string(Code code);

struct Error {
  Code code = Code::invalid;
  std::string what;
  int mc = 0;  // MC#### number of base/errors.h when a user should see it, else 0
  std::string where, next;  // second and third line of what the user sees; empty = from the table
};

template <class T>
class [[nodiscard]] Result {
 public:
  using value_type = T;
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}
  Result(Code code, std::string what) : Result(Error{code, std::move(what)}) {}

  bool has_value() const { return state_.index() == 0; }
  explicit operator bool() const { return has_value(); }
  T& value() & { return std::get<0>(state_); }
  const T& value() const& { return std::get<0>(state_); }
  T&& value() && { return std::get<0>(std::move(state_)); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  Error& error() & { return std::get<1>(state_); }
  const Error& error() const& { return std::get<1>(state_); }
  Error&& error() && { return std::get<1>(std::move(state_)); }
  T value_or(T fallback) && { return has_value() ? std::move(*this).value() : std::move(fallback); }

 private:
  std::variant<T, Error> state_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  using value_type = void;
  Result() = default;
  Result(Error error) : error_(std::move(error)) {}
  Result(Code code, std::string what) : Result(Error{code, std::move(what)}) {}

  bool has_value() const { return !error_; }
  explicit operator bool() const { return has_value(); }
  void value() const {}
  Error& error() & { return *error_; }
  const Error& error() const& { return *error_; }
  Error&& error() && { return std::move(*error_); }

 private:
  std::optional<Error> error_;
};

/// Adds "context: " in front of the text; the code stays.
inline Error within(std::string_view context, Error error) {
  error.what = std::string(context) + ": " + error.what;
  return error;
}

}  // namespace mc

#define MC_CONCAT_(a, b) a##b
#define MC_CONCAT(a, b) MC_CONCAT_(a, b)
#define MC_TRY_(tmp, var, ...)                       \
  auto tmp = (__VA_ARGS__);                          \
  if (!tmp.has_value()) return std::move(tmp).error(); \
  auto var = std::move(tmp).value()
/// Declares `var` with the value of the expression, or returns its error.
#define MC_TRY(var, ...) MC_TRY_(MC_CONCAT(mc_try_, __LINE__), var, __VA_ARGS__)
/// Evaluates a Result<void> (or any Result whose value is not needed); returns its error.
#define MC_CHECK(...)                                                        \
  do {                                                                       \
    if (auto mc_check = (__VA_ARGS__); !mc_check.has_value())                \
      return std::move(mc_check).error();                                    \
  } while (0)
