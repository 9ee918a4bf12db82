// The reader of a JSON object's members. It reads them one by one and keeps the first error, so a parser is a list of
// fields with their bounds (private to lib/http). null counts as absent. ignored() returns the members that the parser
// never reads.
#pragma once

#include <concepts>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/errors.h"
#include "base/json.h"

namespace mc::http {

class Fields {
 public:
  /// `prefix`, such as "mc.", precedes names in errors. The JSON object must outlive the reader.
  Fields(const Json& object, std::string prefix = {});

  /// The value, or nullptr if it is absent or null. The name counts as known from then on.
  const Json* take(std::string_view name);
  void real(std::string_view name, double low, double high, std::optional<double>& out);
  template <std::integral T>
  void integer(std::string_view name, int64_t low, int64_t high, std::optional<T>& out) {
    if (const auto value = read_integer(name, low, high)) out = static_cast<T>(*value);
  }
  template <std::integral T>
  void integer(std::string_view name, int64_t low, int64_t high, T& out) {
    if (const auto value = read_integer(name, low, high)) out = static_cast<T>(*value);
  }
  void boolean(std::string_view name, bool& out);
  void boolean(std::string_view name, std::optional<bool>& out);
  void string(std::string_view name, size_t bytes_max, std::string& out);
  /// One string or a list of them; each 1..bytes_max bytes.
  void strings(std::string_view name, size_t count_max, size_t bytes_max, std::vector<std::string>& out);
  /// A list of token ids below `limit` (0: below 2^31).
  void token_ids(std::string_view name, size_t count_max, uint32_t limit, std::vector<uint32_t>& out);
  /// An object or absent.
  const Json* object(std::string_view name);
  /// An array or absent.
  const Json* array(std::string_view name);
  /// Marks fields as known that have no effect here and need no mention in a log.
  void accept(std::initializer_list<std::string_view> names);
  /// Refuses the field unless it is absent, null, false, 0 or empty.
  void refuse(std::string_view name, std::string_view why);

  void fail(std::string_view name, std::string_view what);
  void fail_unsupported(std::string_view name, std::string_view what);
  /// Adopts the error of a member's own fields.
  void adopt(const Fields& inner) {
    if (!error_) error_ = inner.error_;
  }
  bool is_ok() const { return !error_; }
  Result<void> status() const;
  /// Names that were never read, at most 32, shortened and cleaned for logs.
  std::vector<std::string> ignored() const;

 private:
  std::optional<int64_t> read_integer(std::string_view name, int64_t low, int64_t high);

  const Json& object_;
  std::string prefix_;
  std::vector<bool> known_;
  std::optional<Error> error_;
};

/// One list of token ids; `name` is for the error.
bool read_token_ids(const Json& list, size_t count_max, uint32_t limit, std::vector<uint32_t>& out);

}  // namespace mc::http
