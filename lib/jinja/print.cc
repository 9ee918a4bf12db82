// How values are printed: Python's str() and repr(). The characters of a user's number, and the brackets and commas of
// a user's list, carry the user bit.
#include <charconv>
#include <cmath>

#include "jinja/value.h"
#include "unicode/unicode.h"

namespace mc::jinja {
namespace {

void append(Str& out, std::string_view ascii, bool user = false) {
  for (const char c : ascii) out += static_cast<unsigned char>(c) | (user ? kUserBit : 0);
}

void append_hex(Str& out, char32_t c, char32_t mark) {
  constexpr char kDigits[] = "0123456789abcdef";
  const int digits = c < 0x100 ? 2 : c < 0x10000 ? 4 : 8;
  (out += U'\\' | mark) += (digits == 2 ? U'x' : digits == 4 ? U'u' : U'U') | mark;
  for (int shift = (digits - 1) * 4; shift >= 0; shift -= 4)
    out += static_cast<char32_t>(kDigits[(c >> shift) & 15]) | mark;
}

void append_value(Str& out, const Value& value, uint32_t depth);

void append_items(Str& out, const Values& items, bool user, uint32_t depth) {
  bool first = true;
  for (const Value& item : items) {
    if (!first) append(out, ", ", user);
    first = false;
    append_value(out, item, depth + 1);
  }
}

void append_entries(Str& out, const Value& dict, bool user, uint32_t depth) {
  append(out, "{", user);
  bool first = true;
  for (const auto& [key, value] : dict.entries()) {
    if (!first) append(out, ", ", user);
    first = false;
    append_value(out, key, depth + 1);
    append(out, ": ", user);
    append_value(out, value, depth + 1);
  }
  append(out, "}", user);
}

void append_view(Str& out, const Value& value, uint32_t depth) {
  const View& view = value.as<View>();
  const bool user = view.dict.user();
  append(out, type_name(value), user);
  append(out, "([", user);
  bool first = true;
  for (const auto& [key, item] : view.dict.entries()) {
    if (!first) append(out, ", ", user);
    first = false;
    if (view.of == View::Of::items) append(out, "(", user);
    if (view.of != View::Of::values) append_value(out, key, depth + 1);
    if (view.of == View::Of::items) append(out, ", ", user);
    if (view.of != View::Of::keys) append_value(out, item, depth + 1);
    if (view.of == View::Of::items) append(out, ")", user);
  }
  append(out, "])", user);
}

void append_space(Str& out, const Space& space, uint32_t depth) {
  append(out, "<Namespace {");
  bool first = true;
  for (const auto& [name, value] : space.attributes) {
    if (!first) append(out, ", ");
    first = false;
    append_repr(out, widen(name));
    append(out, ": ");
    append_value(out, value, depth + 1);
  }
  append(out, "}>");
}

/// The text of a value that Python prints with its address.
void append_opaque(Str& out, const Value& value) {
  switch (value.kind()) {
    case Kind::loop: {
      const Loop& loop = value.as<Loop>();
      append(out, "<LoopContext " + std::to_string(loop.index0 + 1) + "/" + std::to_string(loop.items.size()) + ">");
      return;
    }
    case Kind::function: return append(out, "<function " + std::string(value.as<Function>().name) + ">");
    case Kind::method: return append(out, "<built-in method " + std::string(value.as<Method>().name) + ">");
    default: append(out, "<" + std::string(type_name(value)) + " object>");
  }
}

void append_range(Str& out, const Range& range, bool user) {
  std::string text = "range(" + std::to_string(range.start) + ", " + std::to_string(range.stop);
  if (range.step != 1) text += ", " + std::to_string(range.step);
  append(out, text + ")", user);
}

void append_value(Str& out, const Value& value, uint32_t depth) {
  // A namespace may hold itself, or hold others whose number doubles with each level. Printing stops at limits that no
  // output reaches.
  if (depth > 2 * kExtentMax.depth || out.size() >= kReprMax) return append(out, "...");
  const bool user = value.user();
  switch (value.kind()) {
    case Kind::missing:
    case Kind::undefined: return append(out, "Undefined", user);
    case Kind::none: return append(out, "None", user);
    case Kind::boolean: return append(out, value.integer() != 0 ? "True" : "False", user);
    case Kind::integer: return append(out, std::to_string(value.integer()), user);
    case Kind::real: return append(out, float_repr(value.real()), user);
    case Kind::string: return append_repr(out, value.chars());
    case Kind::list:
      append(out, "[", user);
      append_items(out, value.items(), user, depth);
      return append(out, "]", user);
    case Kind::tuple:
      append(out, "(", user);
      append_items(out, value.items(), user, depth);
      return append(out, value.items().size() == 1 ? ",)" : ")", user);
    case Kind::dict: return append_entries(out, value, user, depth);
    case Kind::range: return append_range(out, value.as<Range>(), user);
    case Kind::view: return append_view(out, value, depth);
    case Kind::space: return append_space(out, value.as<Space>(), depth);
    default: return append_opaque(out, value);
  }
}

}  // namespace

void append_repr(Str& out, StrView text) {
  bool single = false, twofold = false;
  for (const char32_t c : text) {
    single |= code_of(c) == U'\'';
    twofold |= code_of(c) == U'"';
  }
  const char32_t quote = single && !twofold ? U'"' : U'\'';
  // A quote carries the user bit of the character beside it.
  const char32_t first = text.empty() ? 0 : text.front() & kUserBit;
  const char32_t last = text.empty() ? 0 : text.back() & kUserBit;
  out += quote | first;
  for (const char32_t marked : text) {
    const char32_t c = code_of(marked), mark = marked & kUserBit;
    if (c == quote || c == U'\\')
      (out += U'\\' | mark) += marked;
    else if (c == U'\n')
      (out += U'\\' | mark) += U'n' | mark;
    else if (c == U'\r')
      (out += U'\\' | mark) += U'r' | mark;
    else if (c == U'\t')
      (out += U'\\' | mark) += U't' | mark;
    else if (!unicode::is_printable(c))
      append_hex(out, c, mark);
    else
      out += marked;
  }
  out += quote | last;
}

std::string repr_of(std::string_view utf8) {
  Str out;
  append_repr(out, widen(utf8));
  return narrow(out);
}

std::string float_repr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char digits[32];
  const auto [end, error] = std::to_chars(digits, digits + sizeof(digits), value, std::chars_format::scientific);
  std::string_view text(digits, static_cast<size_t>(end - digits));
  const size_t e = text.find('e');
  const int exponent = std::stoi(std::string(text.substr(e + 1)));
  std::string out;
  if (exponent < -4 || exponent >= 16) {
    out = text.substr(0, e + 2);
    const std::string power = std::to_string(std::abs(exponent));
    return out + (power.size() < 2 ? "0" : "") + power;
  }
  const bool negative = text.starts_with('-');
  std::string mantissa;
  for (const char c : text.substr(0, e))
    if (c >= '0' && c <= '9') mantissa += c;
  if (exponent < 0) {
    out = "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + mantissa;
  } else {
    const auto whole = static_cast<size_t>(exponent) + 1;
    if (mantissa.size() < whole) mantissa.append(whole - mantissa.size(), '0');
    out = mantissa.substr(0, whole) + "." + (mantissa.size() > whole ? mantissa.substr(whole) : "0");
  }
  return (negative ? "-" : "") + out;
}

Str to_repr(const Value& value) {
  Str out;
  append_value(out, value, 0);
  return out;
}

Str to_str(const Value& value) {
  if (value.is(Kind::string)) return value.chars();
  if (value.is(Kind::undefined) || value.is(Kind::missing)) return {};
  return to_repr(value);
}

}  // namespace mc::jinja
