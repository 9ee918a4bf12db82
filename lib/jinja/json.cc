// The tojson filter as transformers defines it: json.dumps(x, ensure_ascii=False, indent, separators, sort_keys), with
// Python's spacing. Quotes and commas carry the user bit of the value they belong to.
#include <algorithm>
#include <cmath>

#include "jinja/interpreter.h"

namespace mc::jinja {
namespace {

struct Style {
  bool ascii = false, sort_keys = false, pretty = false;
  Str indent;
  Str item_separator = U", ", key_separator = U": ";
};

class Writer {
 public:
  Writer(Interpreter& run, Style style) : run_(run), style_(std::move(style)) {}

  Result<void> write(const Value& value, int level) {
    MC_CHECK(run_.budget().spend(1));
    const bool user = value.user();
    switch (value.kind()) {
      case Kind::none: add("null", user); return {};
      case Kind::boolean: add(value.integer() != 0 ? "true" : "false", user); return {};
      case Kind::integer: add(std::to_string(value.integer()), user); return {};
      case Kind::real: add(number(value.real()), user); return {};
      case Kind::string: return text(value.chars());
      case Kind::list:
      case Kind::tuple: return items(value, level);
      case Kind::dict: return entries(value, level);
      default: break;
    }
    return type_error("Object of type " + std::string(type_name(value)) + " is not JSON serializable");
  }

  Str take() { return std::move(out_); }

 private:
  void add(StrView text, bool user) {
    for (const char32_t c : text) out_ += user ? c | kUserBit : c;
  }
  void add(std::string_view ascii, bool user) {
    for (const char c : ascii) out_ += static_cast<unsigned char>(c) | (user ? kUserBit : 0);
  }

  static std::string number(double value) {
    if (std::isnan(value)) return "NaN";
    if (std::isinf(value)) return value < 0 ? "-Infinity" : "Infinity";
    return float_repr(value);
  }

  void escape(char32_t code, char32_t mark) {
    constexpr char kDigits[] = "0123456789abcdef";
    const auto unit = [&](char32_t c) {
      (out_ += U'\\' | mark) += U'u' | mark;
      for (int shift = 12; shift >= 0; shift -= 4) out_ += static_cast<char32_t>(kDigits[(c >> shift) & 15]) | mark;
    };
    if (code < 0x10000) return unit(code);
    unit(0xD800 + ((code - 0x10000) >> 10));
    unit(0xDC00 + ((code - 0x10000) & 0x3FF));
  }

  Result<void> text(StrView chars) {
    constexpr StrView kFrom = U"\"\\\n\r\t\f\b", kTo = U"\"\\nrtfb";
    MC_CHECK(run_.budget().make(chars.size()));
    const char32_t first = chars.empty() ? 0 : chars.front() & kUserBit;
    const char32_t last = chars.empty() ? 0 : chars.back() & kUserBit;
    out_ += U'"' | first;
    for (const char32_t marked : chars) {
      const char32_t c = code_of(marked), mark = marked & kUserBit;
      const size_t simple = kFrom.find(c);
      if (simple != StrView::npos)
        (out_ += U'\\' | mark) += kTo[simple] | mark;
      else if (c < 0x20 || (style_.ascii && c > 0x7E))
        escape(c, mark);
      else
        out_ += marked;
    }
    out_ += U'"' | last;
    return {};
  }

  void line(int level, bool user) {
    add("\n", user);
    for (int i = 0; i < level; ++i) add(StrView(style_.indent), user);
  }

  Result<void> items(const Value& value, int level) {
    const bool user = value.user();
    if (value.items().empty()) {
      add("[]", user);
      return {};
    }
    add("[", user);
    for (size_t i = 0; i < value.items().size(); ++i) {
      if (i > 0) add(StrView(style_.item_separator), user);
      if (style_.pretty) line(level + 1, user);
      MC_CHECK(write(value.items()[i], level + 1));
    }
    if (style_.pretty) line(level, user);
    add("]", user);
    return {};
  }

  Result<void> key(const Value& key) {
    switch (key.kind()) {
      case Kind::string: return text(key.chars());
      case Kind::none: return text(U"null");
      case Kind::boolean: return text(key.integer() != 0 ? U"true" : U"false");
      case Kind::integer: return text(widen(std::to_string(key.integer()), key.user()));
      case Kind::real: return text(widen(number(key.real()), key.user()));
      default: break;
    }
    return type_error("keys must be str, int, float, bool or None, not " + std::string(type_name(key)));
  }

  Result<void> entries(const Value& value, int level) {
    const bool user = value.user();
    auto entries = value.entries();
    MC_CHECK(run_.budget().make(entries.size() * 16));
    if (style_.sort_keys) {
      Error failed;
      bool broken = false;
      std::stable_sort(entries.begin(), entries.end(), [&](const auto& a, const auto& b) {
        auto below = less(run_, a.first, b.first);
        if (below) return *below;
        if (!broken) failed = below.error();
        broken = true;
        return false;
      });
      if (broken) return failed;
    }
    if (entries.empty()) {
      add("{}", user);
      return {};
    }
    add("{", user);
    for (size_t i = 0; i < entries.size(); ++i) {
      if (i > 0) add(StrView(style_.item_separator), user);
      if (style_.pretty) line(level + 1, user);
      MC_CHECK(key(entries[i].first));
      add(StrView(style_.key_separator), user);
      MC_CHECK(write(entries[i].second, level + 1));
    }
    if (style_.pretty) line(level, user);
    add("}", user);
    return {};
  }

  Interpreter& run_;
  Style style_;
  Str out_;
};

}  // namespace

Result<Value> to_json(Interpreter& run, const Value& value, Args& args) {
  std::array<Value, 4> a;
  MC_CHECK(bind_arguments("tojson", args, {"ensure_ascii", "indent", "separators", "sort_keys"}, 0, a));
  Style style;
  style.ascii = truth(a[0]);
  style.sort_keys = truth(a[3]);
  if (!a[1].is(Kind::missing) && !a[1].is(Kind::none)) {
    style.pretty = true;
    style.item_separator = std::u32string(1, U',');  // assigning U"," draws a false warning of GCC 12
    if (a[1].is(Kind::string)) {
      style.indent = a[1].chars();
    } else {
      MC_TRY(width, whole(a[1]));
      MC_TRY(blanks, repeat(run, U" ", width));
      style.indent = std::move(blanks);
    }
    if (style.indent.size() > 64) return failure("LimitError", "tojson with an indent of more than 64 characters");
  }
  if (!a[2].is(Kind::missing) && !a[2].is(Kind::none)) {
    MC_TRY(pair, run.items_of(a[2]));
    if (pair.size() != 2) return failure("ValueError", "tojson: separators are two texts");
    if (!pair[0].is(Kind::string) || !pair[1].is(Kind::string)) return type_error("tojson: separators are two texts");
    style.item_separator = pair[0].chars();
    style.key_separator = pair[1].chars();
    if (style.item_separator.size() + style.key_separator.size() > 64)
      return failure("LimitError", "tojson with separators of more than 64 characters");
  }
  Writer writer(run, std::move(style));
  MC_CHECK(writer.write(value, 0));
  return Value(writer.take());
}

}  // namespace mc::jinja
