// Python's two ways to format: "%5.2f" % x and "{:>8}".format(x).
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "jinja/interpreter.h"

namespace mc::jinja {
namespace {

constexpr int64_t kWidthMax = 1 << 20;

/// The options of one conversion, from either syntax.
struct Spec {
  char32_t fill = U' ';
  char align = 0;  // < > = ^
  char sign = '-';
  bool alternate = false, zero = false;
  char group = 0;  // , or _
  int64_t width = 0, precision = -1;
  char type = 0;
};

std::string grouped(const std::string& digits, char separator) {
  if (separator == 0) return digits;
  const size_t whole = std::min(digits.find_first_not_of("0123456789"), digits.size());
  std::string out;
  for (size_t i = 0; i < whole; ++i) {
    if (i > 0 && (whole - i) % 3 == 0) out += separator;
    out += digits[i];
  }
  return out + digits.substr(whole);
}

/// The number without sign: "3.14", "1e+10", "ff".
Result<std::string> digits_of(const Value& value, const Spec& spec) {
  const int precision = static_cast<int>(std::min<int64_t>(spec.precision, 400));
  char type = spec.type;
  if (value.is_whole() && (type == 0 || StrView(U"dixXobn").find(static_cast<char32_t>(type)) != StrView::npos)) {
    uint64_t rest = static_cast<uint64_t>(value.integer());
    if (value.integer() < 0) rest = 0 - rest;
    const unsigned base = type == 'x' || type == 'X' ? 16 : type == 'o' ? 8 : type == 'b' ? 2 : 10;
    // GCC 12 with UBSan takes a wrong element where `?:` chooses the string inside of the subscript.
    const char* const digits = type == 'X' ? "0123456789ABCDEF" : "0123456789abcdef";
    std::string out;
    for (; rest > 0 || out.empty(); rest /= base) out += digits[rest % base];
    std::reverse(out.begin(), out.end());
    if (spec.alternate && base != 10) out = (type == 'X' ? "0X" : base == 16 ? "0x" : base == 8 ? "0o" : "0b") + out;
    return out;
  }
  const double number = std::fabs(value.real());
  std::string out;
  if (!std::isfinite(number)) {
    out = std::isnan(number) ? "nan" : "inf";
    if (type == 'E' || type == 'F' || type == 'G')
      for (char& c : out) c = static_cast<char>(c - 32);
    return out;
  }
  if (type == 0 && precision < 0) return float_repr(number);
  if (type == '%') {
    char text[800];
    std::snprintf(text, sizeof(text), "%.*f%%", precision < 0 ? 6 : precision, number * 100);
    return std::string(text);
  }
  const std::string format = (spec.alternate ? "%#.*" : "%.*") + std::string(1, type == 0 || type == 'n' ? 'g' : type);
  char text[800];
  std::snprintf(text, sizeof(text), format.c_str(), precision < 0 ? 6 : precision, number);
  out = text;
  // Without a type, Python writes str(x) to so many digits: it always has a fraction, and the exponent begins one
  // digit sooner.
  if (type == 0 && out.find_first_of(".e") == std::string::npos)
    out = static_cast<int64_t>(out.size()) >= spec.precision && spec.precision > 0 ? out + "e+00" : out + ".0";
  if (type == 0 && out.ends_with("e+00")) {
    std::snprintf(text, sizeof(text), "%.*e", std::max(precision - 1, 0), number);
    out = text;
  }
  return out;
}

Result<Str> padded(Interpreter& run, Str body, const Spec& spec, size_t sign_size, char fallback_align) {
  const auto size = static_cast<int64_t>(body.size());
  if (spec.width > kWidthMax) return failure("LimitError", "a format wider than " + std::to_string(kWidthMax));
  if (spec.width <= size) return body;
  const char align = spec.align != 0 ? spec.align : fallback_align;
  const int64_t margin = spec.width - size;
  const int64_t left = align == '<' ? 0 : align == '^' ? margin / 2 : margin;
  MC_TRY(before, repeat(run, StrView(&spec.fill, 1), left));
  MC_TRY(after, repeat(run, StrView(&spec.fill, 1), margin - left));
  if (align == '=') return body.substr(0, sign_size) + before + body.substr(sign_size);
  return before + body + after;
}

bool is_negative(const Value& value) {
  return value.is(Kind::real) ? std::signbit(value.real()) && !std::isnan(value.real()) : value.integer() < 0;
}

Result<Str> number(Interpreter& run, const Value& value, Spec spec) {
  MC_TRY(digits, digits_of(value, spec));
  std::string sign = is_negative(value) ? "-" : spec.sign == '-' ? "" : std::string(1, spec.sign);
  if (spec.zero && spec.align == 0) {
    spec.align = '=';
    spec.fill = U'0';
  }
  const std::string text = sign + grouped(digits, spec.group);
  const bool prefixed = spec.alternate && digits.size() > 2 && digits[0] == '0' && (digits[1] | 32) >= 'a';
  return padded(run, widen(text, value.user()), spec, sign.size() + (prefixed ? 2 : 0), '>');
}

// --- % -----------------------------------------------------------------------------------------------

class Percent {
 public:
  Percent(Interpreter& run, const Value& format, const Value& values)
      : run_(run), format_(format.chars()), values_(values), tuple_(values.is(Kind::tuple)) {}

  Result<Value> format() {
    Str out;
    while (at_ < format_.size()) {
      if (code_of(format_[at_]) != U'%') {
        out += format_[at_++];
        continue;
      }
      if (++at_ == format_.size()) return failure("ValueError", "incomplete format");
      MC_TRY(piece, conversion());
      MC_CHECK(run_.budget().make(piece.size()));
      out += piece;
    }
    // A value with subscripts counts as a mapping. The format need not use all of a mapping.
    const bool mapping =
        values_.is(Kind::dict) || values_.is(Kind::list) || values_.is(Kind::range) || values_.is(Kind::undefined);
    const bool all = tuple_ ? used_ == values_.items().size() : used_ > 0 || mapping;
    if (!all) return type_error("not all arguments converted during string formatting");
    return Value(std::move(out));
  }

 private:
  char peek() const {
    const char32_t c = at_ < format_.size() ? code_of(format_[at_]) : 0;
    return c < 0x80 ? static_cast<char>(c) : '\x7f';
  }

  Result<Value> next() {
    if (tuple_ ? used_ >= values_.items().size() : used_ > 0)
      return type_error("not enough arguments for format string");
    return tuple_ ? values_.items()[used_++] : (++used_, values_);
  }

  Result<int64_t> count() {
    if (peek() == '*') {
      ++at_;
      MC_TRY(value, next());
      if (!value.is_whole()) return type_error("* wants int");
      return value.integer();
    }
    int64_t out = 0;
    for (; peek() >= '0' && peek() <= '9'; ++at_) out = std::min<int64_t>(out * 10 + (peek() - '0'), kWidthMax + 1);
    return out;
  }

  Result<Str> conversion() {
    Value value;
    if (peek() == '(') {
      if (!values_.is(Kind::dict)) return type_error("format requires a mapping");
      const size_t end = find_in(format_, U")", at_);
      if (end == StrView::npos) return failure("ValueError", "incomplete format key");
      const Value key(Str(StrView(format_).substr(at_ + 1, end - at_ - 1)));
      MC_TRY(found, run_.find(values_, key));
      if (found == nullptr) return failure("KeyError", narrow(to_repr(key)));
      value = *found;
      at_ = end + 1;
    }
    Spec spec;
    for (; at_ < format_.size() && std::string_view("-+ #0").find(peek()) != std::string_view::npos; ++at_) {
      if (peek() == '-') spec.align = '<';
      if (peek() == '+') spec.sign = '+';
      if (peek() == ' ' && spec.sign == '-') spec.sign = ' ';
      if (peek() == '#') spec.alternate = true;
      if (peek() == '0') spec.zero = true;
    }
    MC_TRY(width, count());
    spec.width = width;
    if (width < 0) {
      spec.align = '<';
      spec.width = -width;
    }
    if (peek() == '.') {
      ++at_;
      MC_TRY(precision, count());
      spec.precision = std::max<int64_t>(precision, 0);
    }
    while (peek() == 'l' || peek() == 'h' || peek() == 'L') ++at_;
    if (at_ == format_.size()) return failure("ValueError", "incomplete format");
    spec.type = peek();
    ++at_;
    if (spec.type == '%') return Str(U"%");
    if (value.is(Kind::missing)) {
      MC_TRY(taken, next());
      value = std::move(taken);
    }
    return convert(value, spec);
  }

  Result<Str> convert(const Value& value, Spec spec) {
    switch (spec.type) {
      case 's':
      case 'r':
      case 'a': {
        Str text = spec.type == 's' ? to_str(value) : to_repr(value);
        if (spec.precision >= 0 && spec.precision < static_cast<int64_t>(text.size()))
          text.resize(static_cast<size_t>(spec.precision));
        return padded(run_, std::move(text), spec, 0, '>');
      }
      case 'c':
        if (value.is(Kind::string) && value.chars().size() == 1) return padded(run_, value.chars(), spec, 0, '>');
        if (value.is_whole() && value.integer() >= 0 && value.integer() < 0x110000)
          return padded(run_, Str(1, static_cast<char32_t>(value.integer()) | (value.user() ? kUserBit : 0)), spec, 0,
                        '>');
        return type_error("%c requires int or char");
      case 'd':
      case 'i':
      case 'u':
      case 'x':
      case 'X':
      case 'o': return whole_number(value, spec);
      case 'e':
      case 'E':
      case 'f':
      case 'F':
      case 'g':
      case 'G':
        if (value.is(Kind::undefined)) return undefined_error(value);
        if (!value.is_number()) return type_error("must be real number, not " + std::string(type_name(value)));
        if (spec.align == '<') spec.zero = false;
        return number(run_, Value(value.real()).with_user(value.user()), spec);
      default:
        return failure("ValueError", std::string("unsupported format character '") + spec.type + "' at index " +
                                         std::to_string(at_ - 1));
    }
  }

  Result<Str> whole_number(const Value& value, Spec spec) {
    if (value.is(Kind::undefined) && spec.type != 'x' && spec.type != 'X' && spec.type != 'o')
      return undefined_error(value);
    const bool real = value.is(Kind::real) && (spec.type == 'd' || spec.type == 'i' || spec.type == 'u');
    if (!value.is_whole() && !real)
      return type_error(std::string("%") + spec.type + " format: " +
                        (spec.type == 'd' || spec.type == 'i' || spec.type == 'u' ? "a real number" : "an integer") +
                        " is required, not " + std::string(type_name(value)));
    Value whole = value;
    if (real) {
      if (!(std::fabs(value.real()) < 9.2e18)) return failure("OverflowError", "cannot convert float to integer");
      whole = Value(static_cast<int64_t>(value.real()));
    }
    if (spec.type == 'u' || spec.type == 'i') spec.type = 'd';
    if (spec.align == '<') spec.zero = false;
    if (spec.precision > kWidthMax) return failure("LimitError", "a format wider than " + std::to_string(kWidthMax));
    Value digits = std::move(whole).with_user(value.user());
    if (spec.precision < 0) return number(run_, digits, spec);
    Spec inner = spec;  // the precision of an integer is its least number of digits
    inner.width = 0;
    inner.sign = '-';
    MC_TRY(text, number(run_, digits, inner));
    const bool negative = is_negative(digits);
    const StrView body = StrView(text).substr(negative ? 1 : 0);
    MC_TRY(zeros, repeat(run_, U"0", spec.precision - static_cast<int64_t>(body.size())));
    Str out = negative ? Str(U"-") : spec.sign == '-' ? Str() : Str(1, static_cast<char32_t>(spec.sign));
    const size_t sign_size = out.size();
    out.append(zeros).append(body);
    return padded(run_, std::move(out), spec, sign_size, '>');
  }

  Interpreter& run_;
  const Str& format_;
  const Value& values_;
  const bool tuple_;
  size_t at_ = 0, used_ = 0;
};

// --- {} ----------------------------------------------------------------------------------------------

class Braces {
 public:
  Braces(Interpreter& run, const Args& args) : run_(run), args_(args) {}

  Result<Str> format(StrView text, int depth) {
    if (depth > 1) return failure("ValueError", "Max string recursion exceeded");
    Str out;
    for (size_t at = 0; at < text.size();) {
      const char32_t c = code_of(text[at]);
      if ((c == U'{' || c == U'}') && at + 1 < text.size() && code_of(text[at + 1]) == c) {
        out += text[at];
        at += 2;
      } else if (c == U'}') {
        return failure("ValueError", "Single '}' encountered in format string");
      } else if (c == U'{') {
        const size_t end = closing(text, at);
        if (end == StrView::npos)
          return failure("ValueError", at + 1 == text.size() ? "Single '{' encountered in format string"
                                                             : "expected '}' before end of string");
        MC_TRY(piece, field(text.substr(at + 1, end - at - 1), depth));
        MC_CHECK(run_.budget().make(piece.size()));
        out += piece;
        at = end + 1;
      } else {
        out += text[at++];
      }
    }
    return out;
  }

 private:
  static size_t closing(StrView text, size_t open) {
    int depth = 0;
    for (size_t i = open; i < text.size(); ++i) {
      if (code_of(text[i]) == U'{') ++depth;
      if (code_of(text[i]) == U'}' && --depth == 0) return i;
    }
    return StrView::npos;
  }

  Result<Str> field(StrView text, int depth) {
    size_t end = 0;
    while (end < text.size() && code_of(text[end]) != U':' && code_of(text[end]) != U'!') {
      if (code_of(text[end]) == U'[')
        while (end + 1 < text.size() && code_of(text[end]) != U']') ++end;
      ++end;
    }
    MC_TRY(value, lookup(narrow(text.substr(0, end))));
    char conversion = 0;
    if (end < text.size() && code_of(text[end]) == U'!') {
      conversion = end + 1 < text.size() ? static_cast<char>(code_of(text[end + 1])) : '\0';
      end += 2;
      if (conversion != 's' && conversion != 'r' && conversion != 'a')
        return failure("ValueError", "Unknown conversion specifier");
    }
    if (conversion != 0) value = Value(conversion == 's' ? to_str(value) : to_repr(value));
    StrView spec_text = end < text.size() ? text.substr(end + 1) : StrView();
    MC_TRY(spec, format(spec_text, depth + 1));
    return apply(value, spec);
  }

  Result<Value> lookup(std::string_view path) {
    const size_t end = std::min(path.find_first_of(".["), path.size());
    const std::string_view first = path.substr(0, end);
    const bool digits = !first.empty() && first.size() < 9 && first.find_first_not_of("0123456789") == first.npos;
    Value value;
    if (first.empty() || digits) {
      if ((first.empty() ? manual_ : automatic_ > 0))
        return failure("ValueError",
                       first.empty() ? "cannot switch from manual field specification to automatic field numbering"
                                     : "cannot switch from automatic field numbering to manual field specification");
      const size_t index = digits ? std::stoul(std::string(first)) : automatic_++;
      manual_ |= digits;
      if (index >= args_.positional.size())
        return failure("IndexError",
                       "Replacement index " + std::to_string(index) + " out of range for positional args tuple");
      value = args_.positional[index];
    } else {
      const auto found =
          std::find_if(args_.named.begin(), args_.named.end(), [&](const auto& a) { return a.first == first; });
      if (found == args_.named.end()) return failure("KeyError", repr_of(first));
      value = found->second;
    }
    for (std::string_view rest = path.substr(end); !rest.empty();) {
      const bool item = rest[0] == '[';
      const size_t stop = item ? rest.find(']') : std::min(rest.find_first_of(".[", 1), rest.size());
      if (stop == rest.npos) return failure("ValueError", "Missing ']' in format string");
      const std::string_view name = rest.substr(1, stop - 1);
      if (name.empty()) return failure("ValueError", "Empty attribute in format string");
      const bool number = item && name.size() < 18 && name.find_first_not_of("0123456789") == name.npos;
      MC_TRY(next, item ? run_.item(value, number ? Value(std::stoll(std::string(name))) : Value(name))
                        : run_.attribute(value, name));
      value = std::move(next);
      rest = rest.substr(item ? stop + 1 : stop);
    }
    return value;
  }

  static Result<Spec> parse(StrView text) {
    Spec spec;
    size_t at = 0;
    const auto peek = [&](size_t ahead = 0) -> char32_t {
      return at + ahead < text.size() ? code_of(text[at + ahead]) : 0;
    };
    const auto is_align = [](char32_t c) { return c == U'<' || c == U'>' || c == U'=' || c == U'^'; };
    if (text.size() > 1 && is_align(peek(1))) {
      spec.fill = text[0];
      spec.align = static_cast<char>(peek(1));
      at = 2;
    } else if (is_align(peek())) {
      spec.align = static_cast<char>(peek());
      at = 1;
    }
    if (peek() == U'+' || peek() == U'-' || peek() == U' ') spec.sign = static_cast<char>(code_of(text[at++]));
    if (peek() == U'#') ++at, spec.alternate = true;
    if (peek() == U'0') ++at, spec.zero = true;
    const auto digits = [&] {
      int64_t out = 0;
      for (; peek() >= U'0' && peek() <= U'9'; ++at) out = std::min<int64_t>(out * 10 + (peek() - U'0'), kWidthMax + 1);
      return out;
    };
    spec.width = digits();
    if (peek() == U',' || peek() == U'_') spec.group = static_cast<char>(code_of(text[at++]));
    if (peek() == U'.') {
      ++at;
      if (peek() < U'0' || peek() > U'9') return failure("ValueError", "Format specifier missing precision");
      spec.precision = digits();
    }
    if (at < text.size()) spec.type = static_cast<char>(peek() < 0x80 ? code_of(text[at++]) : 0x7f);
    if (at < text.size()) return failure("ValueError", "Invalid format specifier");
    return spec;
  }

  Result<Str> apply(const Value& value, const Str& text) {
    if (text.empty()) return to_str(value);
    MC_TRY(spec, parse(text));
    const auto unknown = [&] {
      return failure("ValueError", std::string("Unknown format code '") + spec.type + "' for object of type '" +
                                       std::string(type_name(value)) + "'");
    };
    if (value.is(Kind::string)) {
      if (spec.type != 0 && spec.type != 's') return unknown();
      if (spec.sign != '-' || spec.alternate || spec.align == '=' || spec.group != 0)
        return failure("ValueError", "Sign, '=' alignment or grouping not allowed in string format specifier");
      if (spec.zero && spec.align == 0) spec.fill = U'0';
      Str body = value.chars();
      if (spec.precision >= 0 && spec.precision < static_cast<int64_t>(body.size()))
        body.resize(static_cast<size_t>(spec.precision));
      return padded(run_, std::move(body), spec, 0, '<');
    }
    if (!value.is_number())
      return type_error("unsupported format string passed to " + std::string(type_name(value)) + ".__format__");
    const std::string_view allowed = value.is_whole() ? "bcdeEfFgGnoxX%" : "eEfFgGn%";
    if (spec.type != 0 && allowed.find(spec.type) == std::string_view::npos) return unknown();
    if (spec.type == 'c')
      return padded(run_, Str(1, static_cast<char32_t>(std::clamp<int64_t>(value.integer(), 0, 0x10FFFF))), spec, 0,
                    '<');
    const bool whole =
        value.is_whole() && (spec.type == 0 || std::string_view("bdnoxX").find(spec.type) != std::string_view::npos);
    if (whole && spec.precision >= 0) return failure("ValueError", "Precision not allowed in integer format specifier");
    return number(run_, value, spec);
  }

  Interpreter& run_;
  const Args& args_;
  size_t automatic_ = 0;
  bool manual_ = false;
};

}  // namespace

Result<Value> format_percent(Interpreter& run, const Value& format, const Value& values) {
  return Percent(run, format, values).format();
}

Result<Value> format_braces(Interpreter& run, const Value& format, const Args& args) {
  MC_TRY(out, Braces(run, args).format(format.chars(), 0));
  return Value(std::move(out));
}

}  // namespace mc::jinja
