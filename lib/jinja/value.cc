#include "jinja/value.h"

#include <algorithm>

#include "unicode/utf8.h"

namespace mc::jinja {
namespace {

/// Adds one more value to the extent of a container.
void grow(Extent& extent, const Value& item) {
  const Extent inner = item.extent();
  extent.depth = std::max(extent.depth, inner.depth + 1);
  extent.size = std::min(extent.size + inner.size, kExtentMax.size * 2);
}

/// The entries of a dict ordered by key, so that two dicts compare in n log n however large a user makes them.
std::vector<const std::pair<Value, Value>*> by_key(const Value& dict, Effort& effort) {
  std::vector<const std::pair<Value, Value>*> out;
  for (const auto& entry : dict.entries()) out.push_back(&entry);
  std::stable_sort(out.begin(), out.end(), [&](const auto* x, const auto* y) {
    const bool texts = x->first.is(Kind::string) && y->first.is(Kind::string);
    return texts ? compare(x->first.chars(), y->first.chars(), effort) < 0 : x->first.kind() < y->first.kind();
  });
  return out;
}

bool equal_dicts(const Value& a, const Value& b, Effort& effort) {
  if (a.entries().size() != b.entries().size()) return false;
  const auto text_keys = [](const Value& dict) {
    return std::all_of(dict.entries().begin(), dict.entries().end(),
                       [](const auto& entry) { return entry.first.is(Kind::string); });
  };
  if (!text_keys(a) || !text_keys(b))
    return std::all_of(a.entries().begin(), a.entries().end(), [&](const auto& entry) {
      const Value* other = b.find(entry.first, effort);
      return other != nullptr && equal(entry.second, *other, effort);
    });
  const auto left = by_key(a, effort), right = by_key(b, effort);
  return std::equal(left.begin(), left.end(), right.begin(), [&](const auto* x, const auto* y) {
    return equal(x->first, y->first, effort) && equal(x->second, y->second, effort);
  });
}

/// The length of the common beginning of two texts.
size_t alike(StrView a, StrView b) {
  const size_t size = std::min(a.size(), b.size());
  size_t i = 0;
  while (i < size && code_of(a[i]) == code_of(b[i])) ++i;
  return i;
}

}  // namespace

Value::Value(Str chars, bool markup)
    : kind_(Kind::string), object_(std::make_shared<Text>(Text{std::move(chars), markup})) {}

Value::Value(std::string_view utf8) : Value(widen(utf8)) {}

Value Value::undefined(std::string message, bool unsafe) {
  return {Kind::undefined, std::make_shared<Undefined>(Undefined{std::move(message), unsafe})};
}

Value Value::list(Values items, bool user) {
  const Extent extent = extent_of(items);
  return Value(Kind::list, std::make_shared<Items>(Items{std::move(items), extent})).with_user(user);
}

Value Value::tuple(Values items, bool user) {
  const Extent extent = extent_of(items);
  return Value(Kind::tuple, std::make_shared<Items>(Items{std::move(items), extent})).with_user(user);
}

Value Value::dict(std::vector<std::pair<Value, Value>> entries, bool user) {
  Extent extent{1, 1};
  for (const auto& [key, value] : entries) {
    grow(extent, key);
    grow(extent, value);
  }
  return Value(Kind::dict, std::make_shared<Dict>(Dict{std::move(entries), extent})).with_user(user);
}

Value Value::from_json(const Json& json, bool user) {
  switch (json.kind()) {
    case Json::Kind::null: return nullptr;
    case Json::Kind::boolean: return Value(json.as_bool()).with_user(user);
    case Json::Kind::integer: return Value(json.as_int()).with_user(user);
    case Json::Kind::real: return Value(json.as_double()).with_user(user);
    case Json::Kind::string: return widen(json.as_string(), user);
    case Json::Kind::array: {
      Values items;
      items.reserve(json.size());
      for (const Json& item : json.items()) items.push_back(from_json(item, user));
      return list(std::move(items), user);
    }
    case Json::Kind::object: break;
  }
  std::vector<std::pair<Value, Value>> entries;
  entries.reserve(json.size());
  for (const auto& [key, value] : json.members()) entries.emplace_back(widen(key, user), from_json(value, user));
  return dict(std::move(entries), user);
}

const Values& Value::items() const {
  return as<Items>().items;
}

const std::vector<std::pair<Value, Value>>& Value::entries() const {
  return as<Dict>().entries;
}

const Value* Value::find(std::string_view key, Effort& effort) const {
  for (const auto& [name, value] : entries()) {
    const bool likely = name.is(Kind::string) && name.chars().size() == key.size();
    if (!effort.take(likely ? 1 + key.size() : 1)) return nullptr;
    if (likely && same(name.chars(), key)) return &value;
  }
  return nullptr;
}

const Value* Value::find(const Value& key, Effort& effort) const {
  for (const auto& [name, value] : entries()) {
    if (equal(name, key, effort)) return &value;
    if (effort.over()) return nullptr;
  }
  return nullptr;
}

Extent Value::extent() const {
  Extent out;
  switch (kind_) {
    case Kind::list:
    case Kind::tuple: return as<Items>().extent;
    case Kind::dict: return as<Dict>().extent;
    case Kind::iterator: return as<Iterator>().extent;
    case Kind::view: grow(out, as<View>().dict); return out;
    case Kind::method: grow(out, as<Method>().self); return out;
    case Kind::loop: return {as<Loop>().extent.depth, 1};
    case Kind::cycler: return {as<Cycler>().extent.depth, 1};
    case Kind::joiner: return {as<Joiner>().separator.extent().depth + 1, 1};
    default: return out;
  }
}

Extent extent_of(const Values& items) {
  Extent extent{1, 1};
  for (const Value& item : items) grow(extent, item);
  return extent;
}

int64_t Range::size() const {
  // The arithmetic is unsigned, because the bounds and the step of a slice may be any integers, INT64_MIN included.
  const auto from = static_cast<uint64_t>(start), to = static_cast<uint64_t>(stop), by = static_cast<uint64_t>(step);
  if (step > 0) return stop > start ? static_cast<int64_t>((to - from - 1) / by + 1) : 0;
  return start > stop ? static_cast<int64_t>((from - to - 1) / (0 - by) + 1) : 0;
}

Str widen(std::string_view utf8, bool user) {
  const char32_t mark = user ? kUserBit : 0;
  Str out;
  out.reserve(utf8.size());
  for (size_t at = 0; at < utf8.size();) {
    if (static_cast<uint8_t>(utf8[at]) < 0x80) {
      out += static_cast<char32_t>(utf8[at++]) | mark;
      continue;
    }
    const unicode::CodePoint c = unicode::decode_utf8(utf8.substr(at));
    out += c.value | mark;
    at += c.bytes;
  }
  return out;
}

std::string narrow(StrView text) {
  std::string out;
  out.reserve(text.size());
  for (const char32_t marked : text) {
    const char32_t c = code_of(marked);
    if (c < 0x80)
      out += static_cast<char>(c);
    else
      unicode::append_utf8(out, (c >= 0xD800 && c < 0xE000) || c > 0x10FFFF ? 0xFFFD : c);
  }
  return out;
}

bool same(StrView a, StrView b) {
  return a.size() == b.size() &&
         std::equal(a.begin(), a.end(), b.begin(), [](char32_t x, char32_t y) { return code_of(x) == code_of(y); });
}

bool same(StrView a, std::string_view ascii) {
  return a.size() == ascii.size() && std::equal(a.begin(), a.end(), ascii.begin(), [](char32_t x, char y) {
           return code_of(x) == static_cast<unsigned char>(y);
         });
}

int compare(StrView a, StrView b, Effort& effort) {
  if (effort.over()) return 0;
  const size_t i = alike(a, b);
  effort.take(i + 1);
  if (i < std::min(a.size(), b.size())) return code_of(a[i]) < code_of(b[i]) ? -1 : 1;
  return a.size() == b.size() ? 0 : a.size() < b.size() ? -1 : 1;
}

size_t find_in(StrView text, StrView needle, size_t from) {
  if (from > text.size() || needle.size() > text.size() - from) return StrView::npos;
  if (needle.empty()) return from;
  const auto equal = [](char32_t x, char32_t y) { return code_of(x) == code_of(y); };
  constexpr size_t kShort = 16;
  if (needle.size() <= kShort) {
    const auto found = std::search(text.begin() + from, text.end(), needle.begin(), needle.end(), equal);
    return found == text.end() ? StrView::npos : static_cast<size_t>(found - text.begin());
  }
  // The algorithm of Knuth, Morris and Pratt is linear. Users may choose both texts, and a quadratic search would let
  // them stop the server.
  std::vector<uint32_t> border(needle.size());
  for (size_t i = 1, k = 0; i < needle.size(); ++i) {
    while (k > 0 && !equal(needle[i], needle[k])) k = border[k - 1];
    if (equal(needle[i], needle[k])) ++k;
    border[i] = static_cast<uint32_t>(k);
  }
  for (size_t i = from, k = 0; i < text.size(); ++i) {
    while (k > 0 && !equal(text[i], needle[k])) k = border[k - 1];
    if (equal(text[i], needle[k])) ++k;
    if (k == needle.size()) return i + 1 - k;
  }
  return StrView::npos;
}

size_t find_last_in(StrView text, StrView needle, size_t end) {
  const Str reversed(text.substr(0, end).rbegin(), text.substr(0, end).rend());
  const Str wanted(needle.rbegin(), needle.rend());
  const size_t found = find_in(reversed, wanted);
  return found == StrView::npos ? found : end - found - needle.size();
}

bool iterates(Kind kind) {
  switch (kind) {
    case Kind::none:
    case Kind::boolean:
    case Kind::integer:
    case Kind::real:
    case Kind::space:
    case Kind::macro:
    case Kind::method:
    case Kind::function:
    case Kind::cycler:
    case Kind::joiner: return false;
    default: return true;
  }
}

std::string_view type_name(const Value& value) {
  switch (value.kind()) {
    case Kind::missing:
    case Kind::undefined: return "Undefined";
    case Kind::none: return "NoneType";
    case Kind::boolean: return "bool";
    case Kind::integer: return "int";
    case Kind::real: return "float";
    case Kind::string: return value.as<Text>().markup ? "Markup" : "str";
    case Kind::list: return "list";
    case Kind::tuple: return value.as<Items>().group ? "_GroupTuple" : "tuple";
    case Kind::dict: return "dict";
    case Kind::range: return "range";
    case Kind::view: {
      constexpr std::string_view kNames[] = {"dict_keys", "dict_values", "dict_items"};
      return kNames[static_cast<size_t>(value.as<View>().of)];
    }
    case Kind::iterator: return value.as<Iterator>().type;
    case Kind::space: return "TemplateNamespace";
    case Kind::loop: return "LoopContext";
    case Kind::macro: return "Macro";
    case Kind::method: return "builtin_function_or_method";
    case Kind::function: return "function";
    case Kind::cycler: return "Cycler";
    case Kind::joiner: return "Joiner";
  }
  return "object";
}

std::string object_name(const Value& value) {
  if (value.is(Kind::none)) return "None";
  std::string name(type_name(value));
  switch (value.kind()) {
    case Kind::undefined:
    case Kind::loop:
    case Kind::macro: name = "jinja2.runtime." + name; break;
    case Kind::cycler:
    case Kind::joiner: name = "jinja2.utils." + name; break;
    case Kind::space: name = "transformers.utils.chat_template_utils." + name; break;
    default: break;
  }
  return name + " object";
}

bool truth(const Value& value) {
  switch (value.kind()) {
    case Kind::missing:
    case Kind::undefined:
    case Kind::none: return false;
    case Kind::boolean:
    case Kind::integer: return value.integer() != 0;
    case Kind::real: return value.real() != 0;
    case Kind::string: return !value.chars().empty();
    case Kind::list:
    case Kind::tuple: return !value.items().empty();
    case Kind::dict: return !value.entries().empty();
    case Kind::range: return value.as<Range>().size() != 0;
    case Kind::view: return !value.as<View>().dict.entries().empty();
    case Kind::loop: return !value.as<Loop>().items.empty();
    default: return true;
  }
}

bool equal(const Value& a, const Value& b, Effort& effort) {
  if (!effort.take(1)) return false;
  if (a.is_number() && b.is_number()) {
    if (a.is_whole() && b.is_whole()) return a.integer() == b.integer();
    return a.real() == b.real();
  }
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Kind::missing:
    case Kind::undefined:
    case Kind::none: return true;
    case Kind::string:
      if (a.object() == b.object()) return true;
      return a.chars().size() == b.chars().size() && compare(a.chars(), b.chars(), effort) == 0;
    case Kind::list:
    case Kind::tuple:
      return a.object() == b.object() ||
             std::equal(a.items().begin(), a.items().end(), b.items().begin(), b.items().end(),
                        [&](const Value& x, const Value& y) { return equal(x, y, effort); });
    case Kind::dict: return a.object() == b.object() || equal_dicts(a, b, effort);
    case Kind::range: {
      const Range &x = a.as<Range>(), &y = b.as<Range>();
      return x.size() == y.size() && (x.size() == 0 || (x.start == y.start && (x.size() == 1 || x.step == y.step)));
    }
    case Kind::method:
      return a.as<Method>().name == b.as<Method>().name && a.as<Method>().self.object() == b.as<Method>().self.object();
    default: return a.object() == b.object();
  }
}

Error failure(std::string_view type, std::string message) {
  return {Code::invalid, std::string(type) + ": " + std::move(message)};
}

Error type_error(std::string message) {
  return failure("TypeError", std::move(message));
}

Error undefined_error(const Value& value) {
  if (!value.is(Kind::undefined)) return failure("UndefinedError", "the value is undefined");
  const Undefined& undefined = value.as<Undefined>();
  return failure(undefined.unsafe ? "SecurityError" : "UndefinedError", undefined.message);
}

}  // namespace mc::jinja
