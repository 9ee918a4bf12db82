// Values of the template language, which behave as Python's do. Text is a sequence of code points, and one bit of each
// code point says whether it came from a user. So the bit travels through slicing, trimming, joining and replacing
// without any code for it. Numbers and containers carry the same bit for the characters that print them. The sandbox
// forbids changes of containers, so a container never changes once it is made. Namespaces do change and may hold
// themselves; the interpreter owns them and empties them at the end, so cycles do not leak. The depth of a container
// is bounded, and so is recursion over values.
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/result.h"

namespace mc::jinja {

constexpr char32_t kUserBit = 0x80000000;
using Str = std::u32string;  // characters may carry kUserBit
using StrView = std::u32string_view;

inline char32_t code_of(char32_t c) {
  return c & ~kUserBit;
}

enum class Kind : uint8_t {
  missing,  // no value: an argument that was not given, an unbound name
  undefined,
  none,
  boolean,
  integer,
  real,
  string,
  list,
  tuple,
  dict,
  range,
  view,      // dict.keys(), values(), items()
  iterator,  // the result of a lazy filter such as map: it can be walked once, has no length and is always true
  space,     // namespace()
  loop,
  macro,
  method,
  function,
  cycler,
  joiner,
};

class Value;
class Interpreter;
struct Scope;
struct Node;
struct StringMethod;
using Values = std::vector<Value>;

struct Args {
  Values positional;
  std::vector<std::pair<std::string, Value>> named;
};

struct Text {
  Str chars;
  bool markup = false;  // the result of |safe or |escape: + escapes a plain text that is added to it
};
struct Items;
struct Dict;

/// The size of a value: the depth of its containers, and the number of values in them, counted as often as they are
/// reached. Both are bounded, and so is the time to print, compare or free a value. A loop, cycler or joiner counts as
/// one value, because printing and comparing do not look at the values that it holds.
struct Extent {
  uint32_t depth = 0;
  uint32_t size = 1;
};
constexpr Extent kExtentMax = {100, 4u << 20};

/// The cost of comparisons: one for each value and one for each character. A comparison that would cost more than
/// `most` ends early, and its answer means nothing, so the caller checks over() afterwards.
struct Effort {
  size_t most = 0;
  size_t used = 0;
  bool over() const { return used > most; }
  bool take(size_t cost) {
    used += cost;
    return !over();
  }
};

class Value {
 public:
  Value() = default;
  Value(std::nullptr_t) : kind_(Kind::none) {}
  template <std::same_as<bool> T>
  Value(T value) : kind_(Kind::boolean), integer_(value) {}
  template <std::integral T>
  requires(!std::same_as<T, bool>) Value(T value) : kind_(Kind::integer), integer_(static_cast<int64_t>(value)) {}
  Value(double value) : kind_(Kind::real), real_(value) {}
  Value(Str chars, bool markup = false);
  explicit Value(std::string_view utf8);
  template <class T>
  Value(Kind kind, std::shared_ptr<T> object) : kind_(kind), object_(std::move(object)) {}
  /// An undefined value that fails with `message` when it is used.
  static Value undefined(std::string message, bool unsafe = false);
  static Value list(Values items, bool user = false);
  static Value tuple(Values items, bool user = false);
  static Value dict(std::vector<std::pair<Value, Value>> entries, bool user = false);
  /// `user`: every text and number in the value carries the user bit.
  static Value from_json(const Json& json, bool user);

  Kind kind() const { return kind_; }
  bool is(Kind kind) const { return kind_ == kind; }
  bool is_number() const { return kind_ == Kind::integer || kind_ == Kind::real || kind_ == Kind::boolean; }
  bool is_whole() const { return kind_ == Kind::integer || kind_ == Kind::boolean; }
  bool user() const { return user_; }
  Value with_user(bool user) && {
    user_ = user_ || user;
    return std::move(*this);
  }

  int64_t integer() const { return integer_; }  // boolean or integer
  double real() const { return kind_ == Kind::real ? real_ : static_cast<double>(integer_); }
  const Str& chars() const { return as<Text>().chars; }
  const Values& items() const;  // list or tuple
  const std::vector<std::pair<Value, Value>>& entries() const;
  /// nullptr when a dict has no such key (a template's text).
  const Value* find(std::string_view key, Effort& effort) const;
  const Value* find(const Value& key, Effort& effort) const;
  template <class T>
  T& as() const {
    return *static_cast<T*>(object_.get());
  }
  const std::shared_ptr<void>& object() const { return object_; }
  /// The characters for a change in place; nullptr when another value shares them.
  Str* own_chars() { return kind_ == Kind::string && object_.use_count() == 1 ? &as<Text>().chars : nullptr; }
  Extent extent() const;

 private:
  Kind kind_ = Kind::missing;
  bool user_ = false;
  union {
    int64_t integer_ = 0;
    double real_;
  };
  std::shared_ptr<void> object_;
};

struct Items {
  Values items;
  Extent extent;
  bool group = false;  // an item of groupby: a tuple whose parts are also named grouper and list
};
struct Dict {
  std::vector<std::pair<Value, Value>> entries;
  Extent extent;
};
struct Undefined {
  std::string message;
  bool unsafe = false;  // SecurityError instead of UndefinedError
};
struct Range {
  int64_t start = 0, stop = 0, step = 1;
  int64_t size() const;
  int64_t at(int64_t index) const { return start + index * step; }
};
struct View {
  enum class Of : uint8_t { keys, values, items };
  Value dict;
  Of of = Of::items;
};
struct Iterator {
  std::function<Result<Values>(Interpreter&)> make;  // makes `items` at the first step; empty afterwards
  Values items;
  size_t next = 0;
  Extent extent;
  std::string_view type = "generator";
};
struct Space {
  std::vector<std::pair<std::string, Value>> attributes;
};
struct Macro {
  const Node* node = nullptr;  // macro or call block; outlives the interpreter
  std::shared_ptr<Scope> scope;
};
struct Method {
  Value self;
  std::string_view name;
  Result<Value> (*call)(Interpreter&, const Value& self, Args&) = nullptr;
};
struct Function {
  std::string_view name;
  Result<Value> (*call)(Interpreter&, Args&) = nullptr;
};
struct Loop {
  Values items;
  size_t index0 = 0;
  int64_t depth0 = 0;
  const Node* recursive = nullptr;
  std::shared_ptr<Scope> scope;  // the scope around the loop, in which a recursive call renders
  Value changed;
  bool sized = true;
  Extent extent;  // of the items
};
struct Cycler {
  Values items;
  size_t at = 0;
  Extent extent;
};
struct Joiner {
  Value separator;
  bool used = false;
};

Str widen(std::string_view utf8, bool user = false);
/// UTF-8; surrogates become U+FFFD.
std::string narrow(StrView text);
/// Whether the characters are equal; the user bit does not count.
bool same(StrView a, StrView b);
bool same(StrView a, std::string_view ascii);
int compare(StrView a, StrView b, Effort& effort);
/// The position of the first `needle` at or after `from`, or npos, in linear time.
size_t find_in(StrView text, StrView needle, size_t from = 0);
size_t find_last_in(StrView text, StrView needle, size_t end);

/// Python's name of the type: "str", "NoneType".
std::string_view type_name(const Value& value);
/// Whether a loop may walk a value of this kind.
bool iterates(Kind kind);
/// A value's name in jinja2's messages: "dict object", "None".
std::string object_name(const Value& value);
bool truth(const Value& value);
bool equal(const Value& a, const Value& b, Effort& effort);
/// The extent of a container of these values.
Extent extent_of(const Values& items);
/// repr() stops at this many characters.
constexpr size_t kReprMax = 32u << 20;
/// Python's str(), which {{ }} prints.
Str to_str(const Value& value);
Str to_repr(const Value& value);
void append_repr(Str& out, StrView text);
std::string repr_of(std::string_view utf8);
std::string float_repr(double value);

/// "TypeError: unhashable type"; the class name is Python's.
Error failure(std::string_view type, std::string message);
Error type_error(std::string message);
/// The error of an undefined value that is used.
Error undefined_error(const Value& value);

}  // namespace mc::jinja
