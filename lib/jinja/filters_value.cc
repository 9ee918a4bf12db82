// Filters over numbers and single values.
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "jinja/filters.h"

namespace mc::jinja {
namespace {

using Out = Result<Value>;

Out fallback(Interpreter&, const Value& value, Args& args) {
  std::array<Value, 2> a;
  MC_CHECK(bind_arguments("do_default", args, {"default_value", "boolean"}, 0, a));
  const bool missing = value.is(Kind::undefined) || (truth(a[1]) && !truth(value));
  if (!missing) return value;
  return a[0].is(Kind::missing) ? Value(Str()) : a[0];
}

Out absolute(Interpreter& run, const Value& value, Args&) {
  if (value.is(Kind::undefined)) return type_error("bad operand type for abs(): 'Undefined'");
  if (!value.is_number()) return type_error("bad operand type for abs(): '" + std::string(type_name(value)) + "'");
  if (value.is(Kind::real)) return Value(std::fabs(value.real())).with_user(value.user());
  return negate(value, value.integer() < 0);
}

Out attribute(Interpreter& run, const Value& value, Args& args) {
  std::array<Value, 1> a;
  MC_CHECK(bind_arguments("do_attr", args, {"name"}, 1, a));
  if (!a[0].is(Kind::string))
    return type_error("attribute name must be string, not '" + std::string(type_name(a[0])) + "'");
  const std::string name = narrow(a[0].chars());
  MC_TRY(found, run.own_attribute(value, name));
  if (!found.is(Kind::missing)) return found;
  return Value::undefined(repr_of(object_name(value)) + " has no attribute " + repr_of(name));
}

/// The text of a number as Python's int() and float() read it: white space at the ends and underscores between digits
/// are dropped.
std::string digits_of(const Value& value) {
  const std::string text = narrow(trimmed(value.chars(), Value()));
  std::string out;
  const auto digit = [&](size_t at) { return at < text.size() && text[at] >= '0' && text[at] <= '9'; };
  for (size_t i = 0; i < text.size(); ++i)
    if (text[i] != '_' || i == 0 || !digit(i - 1) || !digit(i + 1)) out += text[i];
  return out;
}

std::optional<double> float_of(const Value& value) {
  if (value.is_number()) return value.real();
  if (!value.is(Kind::string)) return {};
  std::string text = digits_of(value);
  if (text.empty() || text.find_first_of("xXpP_") != std::string::npos) return {};
  char* end = nullptr;
  const double out = std::strtod(text.c_str(), &end);
  if (end != text.c_str() + text.size() || text.find('(') != std::string::npos) return {};
  return out;
}

std::optional<int64_t> integer_of(const Value& value, int base) {
  if (value.is_whole()) return value.integer();
  if (value.is(Kind::real)) {
    if (!std::isfinite(value.real()) || std::fabs(value.real()) >= 9.2e18) return {};
    return static_cast<int64_t>(value.real());
  }
  if (!value.is(Kind::string)) return {};
  std::string text = digits_of(value);
  bool negative = false;
  if (!text.empty() && (text[0] == '+' || text[0] == '-')) {
    negative = text[0] == '-';
    text.erase(0, 1);
  }
  const char letter = base == 16 ? 'x' : base == 8 ? 'o' : base == 2 ? 'b' : '\0';
  if (letter != '\0' && text.size() > 2 && text[0] == '0' && (text[1] | 32) == letter) text.erase(0, 2);
  int64_t out = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out, base);
  if (text.empty() || text[0] == '-' || error != std::errc{} || end != text.data() + text.size()) return {};
  return negative ? -out : out;
}

Out to_integer(Interpreter&, const Value& value, Args& args) {
  std::array<Value, 2> a;
  MC_CHECK(bind_arguments("do_int", args, {"default", "base"}, 0, a));
  if (value.is(Kind::undefined)) return undefined_error(value);
  int64_t base = 10;
  if (!a[1].is(Kind::missing)) {
    MC_TRY(given, whole(a[1]));
    base = given;
  }
  if (base < 2 || base > 36) return failure("NotSupported", "|int with base " + std::to_string(base));
  if (const auto out = integer_of(value, static_cast<int>(base))) return Value(*out).with_user(value.user());
  if (const auto real = float_of(value);
      real && value.is(Kind::string) && std::isfinite(*real) && std::fabs(*real) < 9.2e18)
    return Value(static_cast<int64_t>(*real));
  return a[0].is(Kind::missing) ? Value(0) : a[0];
}

Out to_float(Interpreter&, const Value& value, Args& args) {
  std::array<Value, 1> a;
  MC_CHECK(bind_arguments("do_float", args, {"default"}, 0, a));
  if (value.is(Kind::undefined)) return undefined_error(value);
  if (const auto out = float_of(value)) return Value(*out).with_user(value.user());
  return a[0].is(Kind::missing) ? Value(0.0) : a[0];
}

Out round(Interpreter&, const Value& value, Args& args) {
  std::array<Value, 2> a;
  MC_CHECK(bind_arguments("do_round", args, {"precision", "method"}, 0, a));
  int64_t precision = 0;
  if (!a[0].is(Kind::missing)) {
    MC_TRY(given, whole(a[0]));
    precision = given;
  }
  const std::string method = a[1].is(Kind::missing) ? "common" : narrow(to_str(a[1]));
  if (method != "common" && method != "ceil" && method != "floor")
    return failure("FilterArgumentError", "method must be common, ceil or floor");
  if (value.is(Kind::undefined) && method != "common") return undefined_error(value);
  if (value.is(Kind::undefined)) return type_error("type Undefined doesn't define __round__ method");
  if (!value.is_number())
    return type_error("type " + std::string(type_name(value)) + " doesn't define __round__ method");
  if (precision < -300 || precision > 300) return failure("NotSupported", "|round with a precision beyond 300");
  if (method == "common") {
    if (value.is_whole() && precision >= 0) return value;
    if (!std::isfinite(value.real())) return value;
    const double scale = std::pow(10.0, static_cast<double>(-precision));
    if (precision < 0) {
      const double out = std::nearbyint(value.real() / scale) * scale;
      return value.is_whole() ? Value(static_cast<int64_t>(out)) : Value(out);
    }
    char text[700];
    std::snprintf(text, sizeof(text), "%.*f", static_cast<int>(precision), value.real());
    return Value(std::strtod(text, nullptr)).with_user(value.user());
  }
  const double scale = std::pow(10.0, static_cast<double>(precision));
  const double scaled = value.real() * scale;
  return Value((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale).with_user(value.user());
}

constexpr Filter kValueFilters[] = {
    {"default", fallback}, {"d", fallback},     {"abs", absolute, false}, {"attr", attribute},
    {"int", to_integer},   {"float", to_float}, {"round", round},         {"tojson", to_json},
};

}  // namespace

std::span<const Filter> value_filters() {
  return kValueFilters;
}

}  // namespace mc::jinja
