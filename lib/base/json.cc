// The fence around nlohmann's parser: it drives a builder of our values through its SAX interface,
// which is iterative, so nesting costs no stack. Printing is ours (order, number format).
#include "base/json.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <new>
#include <nlohmann/json.hpp>

namespace mc {
namespace {

const Json kNull;

/// Receives parse events and grows the tree. `open_` holds the path from the root to the container
/// being filled; containers are moved into their parent when they close, so no pointer goes stale.
class TreeBuilder {
 public:
  explicit TreeBuilder(const JsonLimits& limits) : limits_(limits) {}

  bool null() { return add(Json()); }
  bool boolean(bool value) { return add(Json(value)); }
  bool number_integer(int64_t value) { return add(Json(value)); }
  bool number_unsigned(uint64_t value) {
    if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
      return add(Json(static_cast<double>(value)));
    return add(Json(static_cast<int64_t>(value)));
  }
  bool number_float(double value, const std::string&) { return add(Json(value)); }
  bool string(std::string& value) { return add(Json(std::move(value))); }
  bool binary(std::vector<uint8_t>&) { return fail("binary values do not exist in JSON"); }
  bool start_object(size_t) { return open(false); }
  bool start_array(size_t) { return open(true); }
  bool key(std::string& name) {
    open_.back().key = std::move(name);
    return true;
  }
  bool end_object() {
    Frame frame = std::move(open_.back());
    open_.pop_back();
    if (!check_duplicates(frame.members)) return false;
    frame.members.shrink_to_fit();
    return place(Json(std::move(frame.members)));
  }
  bool end_array() {
    Frame frame = std::move(open_.back());
    open_.pop_back();
    frame.items.shrink_to_fit();
    return place(Json(std::move(frame.items)));
  }
  bool parse_error(size_t position, const std::string& token, const nlohmann::detail::exception& e) {
    (void)token;
    // "[json.exception.parse_error.101] parse error at line 1, column 2: syntax error while ..."
    std::string text = e.what();
    if (const size_t cut = text.find("] "); cut != std::string::npos) text.erase(0, cut + 2);
    if (const size_t cut = text.find(": "); cut != std::string::npos && text.starts_with("parse error at"))
      text.erase(0, cut + 2);
    constexpr size_t kTextMax = 200;  // the text quotes the input
    if (text.size() > kTextMax) text = text.substr(0, kTextMax) + "...";
    return fail("byte " + std::to_string(position) + ": " + text);
  }

  void give_up() {
    open_.clear();
    root_ = Json();
  }
  Json take_root() { return std::move(root_); }
  std::string& error() { return error_; }

 private:
  struct Frame {
    bool is_array = false;
    std::string key;  // of the member whose value comes next
    Json::Array items;
    Json::Object members;
  };

  bool fail(std::string text) {
    error_ = std::move(text);
    return false;
  }
  bool count() {
    if (++values_ > limits_.values) return fail("more than " + std::to_string(limits_.values) + " values");
    return true;
  }
  bool open(bool is_array) {
    if (!count()) return false;
    if (open_.size() >= limits_.depth) return fail("nested deeper than " + std::to_string(limits_.depth) + " levels");
    open_.emplace_back().is_array = is_array;
    return true;
  }
  bool add(Json value) { return count() && place(std::move(value)); }
  bool place(Json value) {
    if (open_.empty()) {
      root_ = std::move(value);
    } else if (Frame& top = open_.back(); top.is_array) {
      top.items.push_back(std::move(value));
    } else {
      top.members.push_back({std::move(top.key), std::move(value)});
      top.key.clear();
    }
    return true;
  }
  bool check_duplicates(const Json::Object& members) {
    std::vector<std::string_view> keys;
    keys.reserve(members.size());
    for (const JsonMember& member : members) keys.push_back(member.key);
    std::sort(keys.begin(), keys.end());
    const auto twice = std::adjacent_find(keys.begin(), keys.end());
    if (twice == keys.end()) return true;
    return fail("key \"" + std::string(twice->substr(0, 100)) + "\" occurs twice in one object");
  }

  const JsonLimits& limits_;
  std::vector<Frame> open_;
  Json root_;
  size_t values_ = 0;
  std::string error_;
};

/// Bytes of the well-formed UTF-8 character at text[0], or 0 (Unicode 15, table 3-7).
size_t utf8_char_bytes(std::string_view text) {
  const auto at = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const auto between = [&](size_t i, uint8_t low, uint8_t high) {
    return i < text.size() && at(i) >= low && at(i) <= high;
  };
  const uint8_t lead = at(0);
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead <= 0xDF) return between(1, 0x80, 0xBF) ? 2 : 0;
  if (lead >= 0xE0 && lead <= 0xEF) {
    const uint8_t low = lead == 0xE0 ? 0xA0 : 0x80, high = lead == 0xED ? 0x9F : 0xBF;
    return between(1, low, high) && between(2, 0x80, 0xBF) ? 3 : 0;
  }
  if (lead >= 0xF0 && lead <= 0xF4) {
    const uint8_t low = lead == 0xF0 ? 0x90 : 0x80, high = lead == 0xF4 ? 0x8F : 0xBF;
    return between(1, low, high) && between(2, 0x80, 0xBF) && between(3, 0x80, 0xBF) ? 4 : 0;
  }
  return 0;
}

}  // namespace

Json::Json() = default;
Json::Json(Json&& other) noexcept = default;
Json& Json::operator=(Json&& other) noexcept = default;
Json::~Json() = default;
Json::Json(std::nullptr_t) {}
Json::Json(double value) : value_(std::in_place_index<3>, value) {}
Json::Json(const char* value) : value_(std::in_place_index<4>, value) {}
Json::Json(std::string_view value) : value_(std::in_place_index<4>, value) {}
Json::Json(std::string value) : value_(std::in_place_index<4>, std::move(value)) {}
Json::Json(Array value) : value_(std::in_place_index<5>, std::move(value)) {}
Json::Json(Object value) : value_(std::in_place_index<6>, std::move(value)) {}
// Not the variant's own: libstdc++ 12 takes a variant of strings and vectors for never empty, so when a copy runs out
// of memory, the destructor of the half-made variant destroys an alternative that was never made.
Json::Json(const Json& other)
    : value_(
          std::visit([](const auto& value) { return Value(std::in_place_type<std::decay_t<decltype(value)>>, value); },
                     other.value_)) {}
Json& Json::operator=(const Json& other) {
  Json copy(other);
  return *this = std::move(copy);
}
Json Json::array(std::initializer_list<Json> items) {
  return Json(Array(items));
}
Json Json::object(std::initializer_list<JsonMember> members) {
  return Json(Object(members));
}

Result<Json> Json::parse(std::string_view text, const JsonLimits& limits) {
  if (text.size() > limits.bytes)
    return {Code::invalid,
            "the text has " + std::to_string(text.size()) + " bytes, the limit is " + std::to_string(limits.bytes)};
  if (const auto bad = find_invalid_utf8(text)) return {Code::invalid, "invalid UTF-8 at byte " + std::to_string(*bad)};
  TreeBuilder builder(limits);
  try {
    if (nlohmann::json::sax_parse(text.begin(), text.end(), &builder)) return builder.take_root();
  } catch (const std::bad_alloc&) {
    builder.give_up();  // what was built makes room for the error
    return {Code::no_space,
            "there is not enough memory for the values of " + std::to_string(text.size()) + " bytes of text"};
  }
  return {Code::invalid, builder.error()};
}

std::string_view Json::kind_name() const {
  static constexpr std::string_view kNames[] = {"null", "boolean", "integer", "number", "string", "array", "object"};
  return kNames[value_.index()];
}

bool Json::as_bool(bool fallback) const {
  const bool* value = std::get_if<bool>(&value_);
  return value ? *value : fallback;
}

int64_t Json::as_int(int64_t fallback) const {
  if (const int64_t* value = std::get_if<int64_t>(&value_)) return *value;
  if (const double* value = std::get_if<double>(&value_))
    if (*value >= -0x1p63 && *value < 0x1p63 && *value == std::trunc(*value)) return static_cast<int64_t>(*value);
  return fallback;
}

double Json::as_double(double fallback) const {
  if (const double* value = std::get_if<double>(&value_)) return *value;
  if (const int64_t* value = std::get_if<int64_t>(&value_)) return static_cast<double>(*value);
  return fallback;
}

std::string_view Json::as_string(std::string_view fallback) const {
  const std::string* value = std::get_if<std::string>(&value_);
  return value ? std::string_view(*value) : fallback;
}

std::span<const Json> Json::items() const {
  const Array* value = std::get_if<Array>(&value_);
  return value ? std::span<const Json>(*value) : std::span<const Json>();
}

JsonMember::JsonMember(const char* key, Json value) : key(key), value(std::move(value)) {}
JsonMember::JsonMember(std::string_view key, Json value) : key(key), value(std::move(value)) {}
JsonMember::JsonMember(std::string key, Json value) : key(std::move(key)), value(std::move(value)) {}
JsonMember::JsonMember(const JsonMember& other) = default;
JsonMember::JsonMember(JsonMember&& other) noexcept = default;
JsonMember& JsonMember::operator=(const JsonMember& other) = default;
JsonMember& JsonMember::operator=(JsonMember&& other) noexcept = default;
JsonMember::~JsonMember() = default;
bool JsonMember::operator==(const JsonMember& other) const = default;

std::span<const JsonMember> Json::members() const {
  const Object* value = std::get_if<Object>(&value_);
  return value ? std::span<const JsonMember>(*value) : std::span<const JsonMember>();
}

size_t Json::size() const {
  return is_array() ? items().size() : members().size();
}

const Json* Json::find(std::string_view key) const {
  for (const JsonMember& member : members())
    if (member.key == key) return &member.value;
  return nullptr;
}

const Json& Json::operator[](std::string_view key) const {
  const Json* value = find(key);
  return value ? *value : kNull;
}

const Json& Json::item(size_t index) const {
  return index < items().size() ? items()[index] : kNull;
}

Json& Json::set(std::string_view key, Json value) {
  if (is_null()) value_ = Object();
  Object& object = std::get<Object>(value_);
  for (JsonMember& member : object)
    if (member.key == key) {
      member.value = std::move(value);
      return *this;
    }
  object.push_back({std::string(key), std::move(value)});
  return *this;
}

Json& Json::push(Json value) {
  if (is_null()) value_ = Array();
  std::get<Array>(value_).push_back(std::move(value));
  return *this;
}

bool Json::operator==(const Json& other) const {
  return value_ == other.value_;
}

std::string Json::dump() const {
  std::string out;
  dump_to(out);
  return out;
}

void Json::dump_to(std::string& out) const {
  switch (kind()) {
    case Kind::null: out += "null"; return;
    case Kind::boolean: out += std::get<bool>(value_) ? "true" : "false"; return;
    case Kind::integer: {
      char text[24];
      out.append(text, std::to_chars(text, text + sizeof text, std::get<int64_t>(value_)).ptr);
      return;
    }
    case Kind::real: append_json_number(out, std::get<double>(value_)); return;
    case Kind::string: append_json_string(out, std::get<std::string>(value_)); return;
    case Kind::array: {
      char separator = '[';
      for (const Json& item : items()) {
        out += std::exchange(separator, ',');
        item.dump_to(out);
      }
      out += separator == '[' ? "[]" : "]";
      return;
    }
    case Kind::object: {
      char separator = '{';
      for (const JsonMember& member : members()) {
        out += std::exchange(separator, ',');
        append_json_string(out, member.key);
        out += ':';
        member.value.dump_to(out);
      }
      out += separator == '{' ? "{}" : "}";
      return;
    }
  }
}

void append_json_string(std::string& out, std::string_view text) {
  static constexpr char kHex[] = "0123456789abcdef";
  out += '"';
  size_t done = 0;  // everything before it is in `out`
  for (size_t i = 0; i < text.size();) {
    const uint8_t c = static_cast<uint8_t>(text[i]);
    const size_t bytes = c < 0x80 ? 1 : utf8_char_bytes(text.substr(i));
    // U+0080 to U+009F are control characters, too: a terminal takes U+009B as the start of a sequence.
    const bool is_c1 = bytes == 2 && c == 0xC2 && static_cast<uint8_t>(text[i + 1]) < 0xA0;
    if ((bytes > 1 && !is_c1) || (bytes == 1 && c >= 0x20 && c != 0x7F && c != '"' && c != '\\')) {
      i += bytes;
      continue;
    }
    out.append(text, done, i - done);
    if (bytes == 0) {
      out += "\xEF\xBF\xBD";
    } else if (c == '"' || c == '\\') {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (c == '\r') {
      out += "\\r";
    } else {
      if (is_c1) ++i;
      const auto control = static_cast<uint8_t>(text[i]);  // the last byte of a C1 character is its code
      out += "\\u00";
      out += kHex[control >> 4];
      out += kHex[control & 15];
    }
    done = ++i;
  }
  out.append(text, done, text.size() - done);
  out += '"';
}

void append_json_number(std::string& out, double value) {
  if (!std::isfinite(value)) {
    out += "null";
    return;
  }
  char text[40];
  const std::string_view digits(text, static_cast<size_t>(std::to_chars(text, text + sizeof text, value).ptr - text));
  out += digits;
  // A double stays a double when it is read back.
  if (digits.find_first_of(".e") == std::string_view::npos) out += ".0";
}

std::optional<size_t> find_invalid_utf8(std::string_view text) {
  size_t i = 0;
  while (i < text.size()) {
    uint64_t word;
    if (i + sizeof word <= text.size()) {
      std::memcpy(&word, text.data() + i, sizeof word);
      if ((word & 0x8080808080808080u) == 0) {
        i += sizeof word;
        continue;
      }
    }
    const size_t bytes = utf8_char_bytes(text.substr(i));
    if (bytes == 0) return i;
    i += bytes;
  }
  return std::nullopt;
}

}  // namespace mc
