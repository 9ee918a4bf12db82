// Errors are values. `Result<T>` holds a T or an `Error{Code, what}`; member names follow
// std::expected so that an alias can replace this file when C++23 arrives (nvcc 13.0 and g++ 12
// both lack it). Codes say what the *caller* can do; the text names the thing and the number.
//
//   Result<Fd> open_log(path);
//   MC_TRY(fd, open_log(path));     // declares fd, or returns the error
//   MC_CHECK(write_all(fd, bytes)); // Result<void>: returns the error
#pragma once

#include <concepts>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
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

/// The members of an Error are defined in result.cc: inline ones would be compiled again in every function that may
/// fail.
struct Error {
  Error();
  Error(Code code, std::string what);
  Error(Code code, std::string what, int mc, std::string where = {}, std::string next = {});
  Error(const Error& other);
  Error(Error&& other) noexcept;
  Error& operator=(const Error& other);
  Error& operator=(Error&& other) noexcept;
  ~Error();

  Code code = Code::invalid;
  std::string what;
  int mc = 0;               // MC#### number of base/errors.h when a user should see it, else 0
  std::string where, next;  // second and third line of what the user sees; empty = from the table
};

/// The error of a failed Result, in memory of its own, or none. A KeptError that was moved from still counts as an
/// error, and its text is empty.
class KeptError {
 public:
  KeptError() = default;
  explicit KeptError(Error&& error);
  explicit KeptError(const Error& error);
  KeptError(Code code, std::string&& what);
  KeptError(Code code, std::string_view what);
  KeptError(const KeptError& other) : error_(other.error_ ? copy(*other.error_) : nullptr) {}
  KeptError(KeptError&& other) noexcept : error_(other.error_) {
    if (error_) other.error_ = moved_from();
  }
  KeptError& operator=(KeptError other) noexcept {
    std::swap(error_, other.error_);
    return *this;
  }
  ~KeptError() {
    if (error_) drop(error_);
  }

  explicit operator bool() const { return error_ != nullptr; }
  Error& get() const {
    if (!error_) [[unlikely]]
      no_error();
    return *error_;
  }

 private:
  static Error* copy(const Error& error);
  static Error* moved_from() noexcept;
  static void drop(Error* error) noexcept;
  [[noreturn, gnu::cold]] static void no_error();

  Error* error_ = nullptr;
};

/// Ends the program, because the value of a failed Result was asked for.
[[noreturn, gnu::cold]] void no_value(const Error& error);

template <class T>
class [[nodiscard]] Result {
 public:
  using value_type = T;
  Result(T value) : value_(std::move(value)) {}
  Result(Error&& error) : error_(std::move(error)) {}
  Result(const Error& error) : error_(error) {}
  Result(Code code, std::string&& what) : error_(code, std::move(what)) {}
  Result(Code code, std::string_view what) : error_(code, what) {}
  Result(Code code, const char* what) : error_(code, std::string_view(what)) {}
  Result(const Result& other) requires std::copy_constructible<T> : error_(other.error_) {
    if (!error_) std::construct_at(&value_, other.value_);
  }
  Result(Result&& other) noexcept(std::is_nothrow_move_constructible_v<T>) : error_(std::move(other.error_)) {
    if (!error_) std::construct_at(&value_, std::move(other.value_));
  }
  Result& operator=(Result other) noexcept {
    if (!error_) std::destroy_at(&value_);
    error_ = std::move(other.error_);
    if (!error_) std::construct_at(&value_, std::move(other.value_));
    return *this;
  }
  ~Result() {
    if (!error_) std::destroy_at(&value_);
  }

  bool has_value() const { return !error_; }
  explicit operator bool() const { return has_value(); }
  T& value() & {
    check();
    return value_;
  }
  const T& value() const& {
    check();
    return value_;
  }
  T&& value() && {
    check();
    return std::move(value_);
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  Error& error() & { return error_.get(); }
  const Error& error() const& { return error_.get(); }
  Error&& error() && { return std::move(error_.get()); }
  T value_or(T fallback) && { return has_value() ? std::move(*this).value() : std::move(fallback); }

 private:
  void check() const {
    if (error_) [[unlikely]]
      no_value(error_.get());
  }

  KeptError error_;
  union {
    T value_;  // alive while there is no error
  };
};

template <>
class [[nodiscard]] Result<void> {
 public:
  using value_type = void;
  Result() = default;
  Result(Error&& error) : error_(std::move(error)) {}
  Result(const Error& error) : error_(error) {}
  Result(Code code, std::string&& what) : error_(code, std::move(what)) {}
  Result(Code code, std::string_view what) : error_(code, what) {}
  Result(Code code, const char* what) : error_(code, std::string_view(what)) {}

  bool has_value() const { return !error_; }
  explicit operator bool() const { return has_value(); }
  void value() const {}
  Error& error() & { return error_.get(); }
  const Error& error() const& { return error_.get(); }
  Error&& error() && { return std::move(error_.get()); }

 private:
  KeptError error_;
};

/// Adds "context: " in front of the text; the code stays.
Error within(std::string_view context, Error error);

}  // namespace mc

#define MC_CONCAT_(a, b) a##b
#define MC_CONCAT(a, b) MC_CONCAT_(a, b)
#define MC_TRY_(tmp, var, ...)                         \
  auto tmp = (__VA_ARGS__);                            \
  if (!tmp.has_value()) return std::move(tmp).error(); \
  auto var = std::move(tmp).value()
/// Declares `var` with the value of the expression, or returns its error.
#define MC_TRY(var, ...) MC_TRY_(MC_CONCAT(mc_try_, __LINE__), var, __VA_ARGS__)
/// Evaluates a Result<void> (or any Result whose value is not needed); returns its error.
#define MC_CHECK(...)                                                                             \
  do {                                                                                            \
    if (auto mc_check = (__VA_ARGS__); !mc_check.has_value()) return std::move(mc_check).error(); \
  } while (0)
