// JSON values of ours: small, ordered, cheap to include (the parser's header stays in json.cc).
// Objects keep the order in which keys were set, so that what we print is stable and golden.
// Numbers are int64 when they are written as integers and fit, double otherwise.
// Everything that is parsed is hostile: size, depth and number of values are bounded, text must be
// valid UTF-8 (the error names the byte), and a key that occurs twice in one object is an error
// (two readers that pick different ones is how checks are bypassed).
//
//   MC_TRY(config, Json::parse(text));
//   int64_t layers = config["num_hidden_layers"].as_int(0);     // missing or of another kind: 0
//   Json out = Json::object({{"type", "ready"}, {"uri", uri}});
//   out.set("pid", getpid());
//   puts(out.dump().c_str());                                   // {"type":"ready","uri":...}
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/result.h"

namespace mc {

struct JsonMember;

struct JsonLimits {
  size_t bytes = size_t{64} << 20;  // of the text
  size_t depth = 64;                // of nested arrays and objects
  size_t values = size_t{8} << 20;  // in the whole document; one costs 40 bytes
};

class Json {
 public:
  enum class Kind : uint8_t { null, boolean, integer, real, string, array, object };
  using Array = std::vector<Json>;
  using Object = std::vector<JsonMember>;

  // Most are defined in json.cc: inline ones would be compiled again for every use of a Json.
  Json();
  Json(std::nullptr_t);
  template <std::same_as<bool> T>
  Json(T value);
  template <std::integral T>
  requires(!std::same_as<T, bool>) Json(T value);
  Json(double value);
  Json(const char* value);
  Json(std::string_view value);
  Json(std::string value);
  Json(Array value);
  Json(Object value);
  Json(const Json& other);
  Json(Json&& other) noexcept;
  Json& operator=(const Json& other);
  Json& operator=(Json&& other) noexcept;
  ~Json();
  static Json array(std::initializer_list<Json> items = {});
  static Json object(std::initializer_list<JsonMember> members = {});

  /// invalid: not JSON, a duplicate key, invalid UTF-8, or beyond a limit. The text names the byte
  /// offset, or the key, or the limit.
  static Result<Json> parse(std::string_view text, const JsonLimits& limits = {});

  Kind kind() const { return static_cast<Kind>(value_.index()); }
  bool is_null() const { return kind() == Kind::null; }
  bool is_bool() const { return kind() == Kind::boolean; }
  bool is_int() const { return kind() == Kind::integer; }
  bool is_number() const { return kind() == Kind::integer || kind() == Kind::real; }
  bool is_string() const { return kind() == Kind::string; }
  bool is_array() const { return kind() == Kind::array; }
  bool is_object() const { return kind() == Kind::object; }
  /// "null", "boolean", "integer", "number", "string", "array", "object": for error texts.
  std::string_view kind_name() const;

  // The value, or the fallback when it is of another kind. Never fails.
  bool as_bool(bool fallback = false) const;
  /// A double without fraction counts as an integer (JavaScript writes 1e3).
  int64_t as_int(int64_t fallback = 0) const;
  double as_double(double fallback = 0) const;
  /// Lives as long as this value is not changed.
  std::string_view as_string(std::string_view fallback = {}) const;
  std::span<const Json> items() const;          // empty unless an array
  std::span<const JsonMember> members() const;  // empty unless an object; in the order of the text

  /// Elements or members; 0 for other kinds.
  size_t size() const;
  /// nullptr when this is no object or has no such key. Linear: loop over members() for big ones.
  const Json* find(std::string_view key) const;
  bool has(std::string_view key) const { return find(key) != nullptr; }
  /// The member or element, or a null value: lookups chain without checks.
  const Json& operator[](std::string_view key) const;
  const Json& operator[](const char* key) const { return (*this)[std::string_view(key)]; }
  template <std::integral T>
  const Json& operator[](T index) const {
    return item(static_cast<size_t>(index));
  }

  /// Appends the member, or replaces the value of an equal key. A null value becomes an object.
  Json& set(std::string_view key, Json value);
  /// Appends an element. A null value becomes an array.
  Json& push(Json value);

  /// One line, no spaces. Doubles are the shortest text that reads back equal; NaN and infinities
  /// become null. Bytes that are not UTF-8 become U+FFFD, so the output is always valid JSON.
  std::string dump() const;
  void dump_to(std::string& out) const;

  bool operator==(const Json& other) const;

 private:
  const Json& item(size_t index) const;

  using Value = std::variant<std::nullptr_t, bool, int64_t, double, std::string, Array, Object>;
  Value value_;
};

struct JsonMember {
  JsonMember(const char* key, Json value);
  JsonMember(std::string_view key, Json value);
  JsonMember(std::string key, Json value);
  JsonMember(const JsonMember& other);
  JsonMember(JsonMember&& other) noexcept;
  JsonMember& operator=(const JsonMember& other);
  JsonMember& operator=(JsonMember&& other) noexcept;
  ~JsonMember();
  bool operator==(const JsonMember& other) const;

  std::string key;
  Json value;
};

template <std::same_as<bool> T>
Json::Json(T value) : value_(std::in_place_index<1>, value) {}
template <std::integral T>
requires(!std::same_as<T, bool>) Json::Json(T value) : value_(std::in_place_index<2>, static_cast<int64_t>(value)) {}

/// Appends `text` quoted and escaped as Json::dump does; for code that writes JSON without a tree.
void append_json_string(std::string& out, std::string_view text);
void append_json_number(std::string& out, double value);

/// Offset of the first byte that is not part of valid UTF-8 (overlong forms, surrogates and values
/// above U+10FFFF are invalid; so is a character cut off at the end).
std::optional<size_t> find_invalid_utf8(std::string_view text);

}  // namespace mc
