// Methods of Python's str, list, tuple, dict and of jinja2's own objects. Methods that return bytes or need tables
// (encode, translate, maketrans) are refused by name.
#include <algorithm>

#include "jinja/filters.h"
#include "jinja/interpreter.h"
#include "jinja/lex.h"
#include "unicode/unicode.h"

namespace mc::jinja {
namespace {

using Call = Result<Value> (*)(Interpreter&, const Value&, Args&);
struct TextMethod {
  std::string_view name;
  Call call;
};

Result<StrView> text_of(const Value& value, std::string_view function) {
  if (value.is(Kind::string)) return StrView(value.chars());
  return type_error(std::string(function) + "() argument must be str, not " + std::string(type_name(value)));
}

Error not_given(std::string_view what) {
  const std::string text = std::string(what) + " is not supported in templates here";
  return failure("NotSupported", text);  // a copy: g++ 12 warns of array bounds without a cause where it is moved
}

// --- looking ---

/// text[start:end] with the bounds of find, count, startswith and endswith. `from` receives the first index.
Result<StrView> window(StrView text, const Value& start, const Value& end, size_t& from, bool& inside) {
  const auto size = static_cast<int64_t>(text.size());
  const auto bound = [&](const Value& value, int64_t fallback) -> Result<int64_t> {
    if (value.is(Kind::missing) || value.is(Kind::none)) return fallback;
    MC_TRY(at, whole(value));
    return std::max<int64_t>(at < 0 ? at + size : at, 0);
  };
  MC_TRY(first, bound(start, 0));
  MC_TRY(last, bound(end, size));
  last = std::min(last, size);
  inside = first <= last && first <= size;
  if (!inside) return StrView();
  from = static_cast<size_t>(first);
  return text.substr(from, static_cast<size_t>(last - first));
}

Result<int64_t> position(Args& args, const Value& self, std::string_view name, bool backwards) {
  std::array<Value, 3> a;
  MC_CHECK(bind_arguments(name, args, {"sub", "start", "end"}, 1, a));
  MC_TRY(needle, text_of(a[0], name));
  size_t from = 0;
  bool inside = false;
  MC_TRY(text, window(self.chars(), a[1], a[2], from, inside));
  if (!inside) return -1;
  const size_t found = backwards ? find_last_in(text, needle, text.size()) : find_in(text, needle);
  return found == StrView::npos ? -1 : static_cast<int64_t>(from + found);
}

template <bool backwards>
Result<Value> find_method(Interpreter& run, const Value& self, Args& args) {
  MC_CHECK(run.budget().read(self.chars().size()));
  MC_TRY(at, position(args, self, backwards ? "rfind" : "find", backwards));
  return Value(at);
}
template <bool backwards>
Result<Value> index_method(Interpreter& run, const Value& self, Args& args) {
  MC_CHECK(run.budget().read(self.chars().size()));
  MC_TRY(at, position(args, self, backwards ? "rindex" : "index", backwards));
  if (at < 0) return failure("ValueError", "substring not found");
  return Value(at);
}

Result<Value> count_method(Interpreter& run, const Value& self, Args& args) {
  MC_CHECK(run.budget().read(self.chars().size()));
  std::array<Value, 3> a;
  MC_CHECK(bind_arguments("count", args, {"sub", "start", "end"}, 1, a));
  MC_TRY(needle, text_of(a[0], "count"));
  size_t from = 0;
  bool inside = false;
  MC_TRY(text, window(self.chars(), a[1], a[2], from, inside));
  if (!inside) return Value(0);
  if (needle.empty()) return Value(text.size() + 1);
  int64_t count = 0;
  for (size_t at = find_in(text, needle); at != StrView::npos; at = find_in(text, needle, at + needle.size())) ++count;
  return Value(count);
}

template <bool at_end>
Result<Value> ends_method(Interpreter& run, const Value& self, Args& args) {
  const std::string_view name = at_end ? "endswith" : "startswith";
  std::array<Value, 3> a;
  MC_CHECK(bind_arguments(name, args, {"affix", "start", "end"}, 1, a));
  size_t from = 0;
  bool inside = false;
  MC_TRY(text, window(self.chars(), a[1], a[2], from, inside));
  const bool many = a[0].is(Kind::tuple);
  if (!many && !a[0].is(Kind::string)) {
    if (a[0].is(Kind::undefined))
      return type_error(std::string(name) + " first arg must be str or a tuple of str, not Undefined");
    return type_error(std::string(name) + " first arg must be str or a tuple of str, not " +
                      std::string(type_name(a[0])));
  }
  for (const Value& affix : many ? a[0].items() : Values{a[0]}) {
    MC_TRY(wanted, text_of(affix, name));
    MC_CHECK(run.budget().read(wanted.size()));
    if (!inside || wanted.size() > text.size()) continue;
    if (same(at_end ? text.substr(text.size() - wanted.size()) : text.substr(0, wanted.size()), wanted))
      return Value(true);
  }
  return Value(false);
}

// --- cutting ---

template <bool left, bool right>
Result<Value> strip_method(Interpreter& run, const Value& self, Args& args) {
  MC_CHECK(run.budget().read(self.chars().size()));
  std::array<Value, 1> a;
  MC_CHECK(bind_arguments("strip", args, {"chars"}, 0, a));
  if (a[0].is(Kind::none)) a[0] = Value();
  if (!a[0].is(Kind::missing) && !a[0].is(Kind::string)) return type_error("strip arg must be None or str");
  const StrView out = trimmed(self.chars(), a[0], left, right);
  if (out.size() == self.chars().size()) return self;
  return Value(Str(out));
}

void split_space(StrView text, int64_t limit, Values& out) {
  size_t at = 0;
  while (true) {
    while (at < text.size() && is_python_space(code_of(text[at]))) ++at;
    if (at == text.size()) return;
    if (limit-- == 0) {
      out.push_back(Value(Str(text.substr(at))));
      return;
    }
    const size_t begin = at;
    while (at < text.size() && !is_python_space(code_of(text[at]))) ++at;
    out.push_back(Value(Str(text.substr(begin, at - begin))));
  }
}

void rsplit_space(StrView text, int64_t limit, Values& out) {
  size_t end = text.size();
  while (true) {
    while (end > 0 && is_python_space(code_of(text[end - 1]))) --end;
    if (end == 0) break;
    if (limit-- == 0) {
      out.push_back(Value(Str(text.substr(0, end))));
      break;
    }
    const size_t stop = end;
    while (end > 0 && !is_python_space(code_of(text[end - 1]))) --end;
    out.push_back(Value(Str(text.substr(end, stop - end))));
  }
  std::reverse(out.begin(), out.end());
}

template <bool backwards>
Result<Value> split_method(Interpreter& run, const Value& self, Args& args) {
  std::array<Value, 2> a;
  MC_CHECK(bind_arguments("split", args, {"sep", "maxsplit"}, 0, a));
  int64_t limit = -1;
  if (!a[1].is(Kind::missing)) {
    MC_TRY(given, whole(a[1]));
    limit = given;
  }
  const StrView text = self.chars();
  Values out;
  MC_CHECK(run.budget().make(text.size()));
  if (a[0].is(Kind::missing) || a[0].is(Kind::none)) {
    backwards ? rsplit_space(text, limit, out) : split_space(text, limit, out);
  } else {
    if (!a[0].is(Kind::string)) return type_error("must be str or None, not " + std::string(type_name(a[0])));
    const StrView separator = a[0].chars();
    if (separator.empty()) return failure("ValueError", "empty separator");
    size_t begin = 0, end = text.size();
    while (limit-- != 0) {
      MC_CHECK(run.budget().spend(1));
      const size_t at = backwards ? find_last_in(text, separator, end) : find_in(text, separator, begin);
      if (at == StrView::npos) break;
      if (backwards) {
        MC_CHECK(run.budget().read(end));
        out.push_back(Value(Str(text.substr(at + separator.size(), end - at - separator.size()))));
        end = at;
      } else {
        out.push_back(Value(Str(text.substr(begin, at - begin))));
        begin = at + separator.size();
      }
    }
    out.push_back(Value(Str(text.substr(begin, end - begin))));
    if (backwards) std::reverse(out.begin(), out.end());
  }
  MC_CHECK(run.budget().make(out.size() * 24));
  return Value::list(std::move(out));
}

Result<Value> splitlines(Interpreter& run, const Value& self, Args& args) {
  std::array<Value, 1> a;
  MC_CHECK(bind_arguments("splitlines", args, {"keepends"}, 0, a));
  const StrView text = self.chars();
  MC_CHECK(run.budget().make(text.size()));
  constexpr StrView kBreaks = U"\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029";
  Values out;
  for (size_t at = 0; at < text.size();) {
    size_t end = at;
    while (end < text.size() && kBreaks.find(code_of(text[end])) == StrView::npos) ++end;
    size_t next = std::min(end + 1, text.size());
    if (end + 1 < text.size() && code_of(text[end]) == U'\r' && code_of(text[end + 1]) == U'\n') ++next;
    out.push_back(Value(Str(text.substr(at, (truth(a[0]) ? next : end) - at))));
    at = next;
  }
  MC_CHECK(run.budget().make(out.size() * 24));
  return Value::list(std::move(out));
}

template <bool backwards>
Result<Value> partition(Interpreter& run, const Value& self, Args& args) {
  std::array<Value, 1> a;
  MC_CHECK(bind_arguments("partition", args, {"sep"}, 1, a));
  MC_TRY(separator, text_of(a[0], "partition"));
  if (separator.empty()) return failure("ValueError", "empty separator");
  const StrView text = self.chars();
  MC_CHECK(run.budget().make(text.size()));
  const size_t at = backwards ? find_last_in(text, separator, text.size()) : find_in(text, separator);
  if (at == StrView::npos) {
    const Value empty{Str()};
    return backwards ? Value::tuple({empty, empty, self}) : Value::tuple({self, empty, empty});
  }
  return Value::tuple({Value(Str(text.substr(0, at))), Value(Str(text.substr(at, separator.size()))),
                       Value(Str(text.substr(at + separator.size())))});
}

template <bool suffix>
Result<Value> remove_affix(Interpreter& run, const Value& self, Args& args) {
  std::array<Value, 1> a;
  MC_CHECK(bind_arguments(suffix ? "removesuffix" : "removeprefix", args, {"affix"}, 1, a));
  MC_TRY(affix, text_of(a[0], "removeprefix"));
  const StrView text = self.chars();
  if (affix.size() > text.size() || affix.empty()) return self;
  const size_t rest = text.size() - affix.size();
  if (!same(suffix ? text.substr(rest) : text.substr(0, affix.size()), affix)) return self;
  return Value(Str(suffix ? text.substr(0, rest) : text.substr(affix.size())));
}

// --- making ---

template <Str (*change)(StrView)>
Result<Value> changed(Interpreter& run, const Value& self, Args& args) {
  MC_CHECK(bind_arguments("this method", args, {}, 0, {}));
  return Value(change(self.chars()));
}

Str capitalized(StrView text) {
  if (text.empty()) return {};
  Str out;
  for (const char32_t c : unicode::title_of(code_of(text[0]))) out += c | (text[0] & kUserBit);
  return out + lower(text).substr(lower(text.substr(0, 1)).size());
}

Str titled(StrView text) {
  const auto is_cased = [](char32_t c) {
    return unicode::is_upper(c) || unicode::is_lower(c) || unicode::is_titlecase(c);
  };
  Str out;
  for (size_t at = 0; at < text.size();) {  // runs of cased characters
    size_t end = at;
    while (end < text.size() && is_cased(code_of(text[end])) == is_cased(code_of(text[at]))) ++end;
    const StrView run = text.substr(at, end - at);
    if (is_cased(code_of(text[at]))) {
      // lower() gets the whole run, because a sigma at the end of a word has a lower case of its own.
      for (const char32_t c : unicode::title_of(code_of(run[0]))) out += c | (run[0] & kUserBit);
      out += lower(run).substr(lower(run.substr(0, 1)).size());
    } else {
      out += run;
    }
    at = end;
  }
  return out;
}

Str swapped(StrView text) {
  Str out;
  for (const char32_t marked : text) {
    const char32_t c = code_of(marked);
    for (const char32_t to : unicode::is_upper(c)   ? unicode::lower_of(c)
                             : unicode::is_lower(c) ? unicode::upper_of(c)
                                                    : std::u32string(1, c))
      out += to | (marked & kUserBit);
  }
  return out;
}

Result<Value> replace_method(Interpreter& run, const Value& self, Args& args) {
  std::array<Value, 3> a;
  if (!args.named.empty()) return type_error("str.replace() takes no keyword arguments");
  MC_CHECK(bind_arguments("replace", args, {"old", "new", "count"}, 2, a));
  return find_filter("replace")->apply(run, self, args);
}

Result<Value> join_method(Interpreter& run, const Value& self, Args& args) {
  std::array<Value, 1> a;
  MC_CHECK(bind_arguments("join", args, {"iterable"}, 1, a));
  MC_TRY(items, run.items_of(a[0]));
  Str out;
  for (size_t i = 0; i < items.size(); ++i) {
    if (!items[i].is(Kind::string))
      return type_error("sequence item " + std::to_string(i) + ": expected str instance, " +
                        std::string(type_name(items[i])) + " found");
    MC_CHECK(run.budget().make(items[i].chars().size() + self.chars().size()));
    if (i > 0) out += self.chars();
    out += items[i].chars();
  }
  return Value(std::move(out));
}

enum class Side : uint8_t { left, right, both };

template <Side side>
Result<Value> pad(Interpreter& run, const Value& self, Args& args) {
  std::array<Value, 2> a;
  MC_CHECK(bind_arguments("center", args, {"width", "fillchar"}, 1, a));
  MC_TRY(width, whole(a[0]));
  char32_t fill = U' ';
  if (!a[1].is(Kind::missing)) {
    if (!a[1].is(Kind::string) || a[1].chars().size() != 1)
      return type_error("The fill character must be exactly one character long");
    fill = a[1].chars()[0];
  }
  const auto size = static_cast<int64_t>(self.chars().size());
  if (width <= size) return self;
  const int64_t margin = width - size;
  const int64_t left = side == Side::left ? 0 : side == Side::right ? margin : margin / 2 + (margin & width & 1);
  MC_TRY(before, repeat(run, StrView(&fill, 1), left));
  MC_TRY(after, repeat(run, StrView(&fill, 1), margin - left));
  return Value(before + self.chars() + after);
}

Result<Value> zfill(Interpreter& run, const Value& self, Args& args) {
  std::array<Value, 1> a;
  MC_CHECK(bind_arguments("zfill", args, {"width"}, 1, a));
  MC_TRY(width, whole(a[0]));
  const Str& text = self.chars();
  if (width <= static_cast<int64_t>(text.size())) return self;
  const bool sign = !text.empty() && (code_of(text[0]) == U'+' || code_of(text[0]) == U'-');
  MC_TRY(zeros, repeat(run, U"0", width - static_cast<int64_t>(text.size())));
  return Value(text.substr(0, sign) + zeros + text.substr(sign));
}

Result<Value> expandtabs(Interpreter& run, const Value& self, Args& args) {
  std::array<Value, 1> a;
  MC_CHECK(bind_arguments("expandtabs", args, {"tabsize"}, 0, a));
  int64_t size = 8;
  if (!a[0].is(Kind::missing)) {
    MC_TRY(given, whole(a[0]));
    size = given;
  }
  Str out;
  int64_t column = 0;
  for (const char32_t c : self.chars()) {
    if (code_of(c) == U'\t') {
      const int64_t blanks = size > 0 ? size - column % size : 0;
      const char32_t blank = U' ' | (c & kUserBit);
      MC_TRY(gap, repeat(run, StrView(&blank, 1), blanks));
      out += gap;
      column += blanks;
    } else {
      out += c;
      column = code_of(c) == U'\n' || code_of(c) == U'\r' ? 0 : column + 1;
    }
  }
  return Value(std::move(out));
}

Result<Value> format_method(Interpreter& run, const Value& self, Args& args) {
  return format_braces(run, self, args);
}
Result<Value> no_bytes(Interpreter&, const Value&, Args&) {
  return not_given("str.encode, translate and maketrans");
}

// --- asking ---

template <bool (*holds)(char32_t)>
Result<Value> all_are(Interpreter& run, const Value& self, Args& args) {
  const Str& text = self.chars();
  return Value(!text.empty() && std::all_of(text.begin(), text.end(), [](char32_t c) { return holds(code_of(c)); }));
}
bool is_alnum(char32_t c) {
  return unicode::is_letter(c) || unicode::is_numeric(c);
}
bool is_digit(char32_t c) {
  return unicode::is_decimal(c) || c == 0xB2 || c == 0xB3 || c == 0xB9 || c == 0x2070 || (c >= 0x2074 && c <= 0x2079) ||
         (c >= 0x2080 && c <= 0x2089) || (c >= 0x2460 && c <= 0x2468);
}
bool is_ascii(char32_t c) {
  return c < 0x80;
}

template <bool upper>
Result<Value> cased(Interpreter& run, const Value& self, Args& args) {
  bool found = false;
  for (const char32_t marked : self.chars()) {
    const char32_t c = code_of(marked);
    if ((upper ? unicode::is_lower(c) : unicode::is_upper(c)) || unicode::is_titlecase(c)) return Value(false);
    found |= upper ? unicode::is_upper(c) : unicode::is_lower(c);
  }
  return Value(found);
}

Result<Value> istitle(Interpreter& run, const Value& self, Args& args) {
  bool before = false, found = false;
  for (const char32_t marked : self.chars()) {
    const char32_t c = code_of(marked);
    const bool up = unicode::is_upper(c) || unicode::is_titlecase(c), low = unicode::is_lower(c);
    if ((up && before) || (low && !before)) return Value(false);
    before = up || low;
    found |= before;
  }
  return Value(found);
}

Result<Value> isprintable(Interpreter& run, const Value& self, Args& args) {
  return Value(std::all_of(self.chars().begin(), self.chars().end(),
                           [](char32_t c) { return unicode::is_printable(code_of(c)); }));
}
Result<Value> isascii(Interpreter& run, const Value& self, Args& args) {
  return Value(std::all_of(self.chars().begin(), self.chars().end(), [](char32_t c) { return is_ascii(code_of(c)); }));
}
Result<Value> isidentifier(Interpreter& run, const Value& self, Args& args) {
  const Str& text = self.chars();
  if (text.empty() || unicode::is_decimal(code_of(text[0]))) return Value(false);
  return Value(std::all_of(text.begin(), text.end(), [](char32_t c) { return unicode::is_word(code_of(c)); }));
}

constexpr TextMethod kTextMethods[] = {
    {"capitalize", changed<capitalized>},
    {"casefold", changed<lower>},
    {"center", pad<Side::both>},
    {"count", count_method},
    {"encode", no_bytes},
    {"endswith", ends_method<true>},
    {"expandtabs", expandtabs},
    {"find", find_method<false>},
    {"format", format_method},
    {"index", index_method<false>},
    {"isalnum", all_are<is_alnum>},
    {"isalpha", all_are<unicode::is_letter>},
    {"isascii", isascii},
    {"isdecimal", all_are<unicode::is_decimal>},
    {"isdigit", all_are<is_digit>},
    {"isidentifier", isidentifier},
    {"islower", cased<false>},
    {"isnumeric", all_are<unicode::is_numeric>},
    {"isprintable", isprintable},
    {"isspace", all_are<is_python_space>},
    {"istitle", istitle},
    {"isupper", cased<true>},
    {"join", join_method},
    {"ljust", pad<Side::left>},
    {"lower", changed<lower>},
    {"lstrip", strip_method<true, false>},
    {"maketrans", no_bytes},
    {"partition", partition<false>},
    {"removeprefix", remove_affix<false>},
    {"removesuffix", remove_affix<true>},
    {"replace", replace_method},
    {"rfind", find_method<true>},
    {"rindex", index_method<true>},
    {"rjust", pad<Side::right>},
    {"rpartition", partition<true>},
    {"rsplit", split_method<true>},
    {"rstrip", strip_method<false, true>},
    {"split", split_method<false>},
    {"splitlines", splitlines},
    {"startswith", ends_method<false>},
    {"strip", strip_method<true, true>},
    {"swapcase", changed<swapped>},
    {"title", changed<titled>},
    {"translate", no_bytes},
    {"upper", changed<upper>},
    {"zfill", zfill},
};

}  // namespace

/// The methods of the other types: methods_object.cc.
Value find_object_method(const Value& self, std::string_view name);

Value find_method(const Value& self, std::string_view name) {
  if (!self.is(Kind::string)) return find_object_method(self, name);
  const auto* found = std::lower_bound(std::begin(kTextMethods), std::end(kTextMethods), name,
                                       [](const TextMethod& entry, std::string_view key) { return entry.name < key; });
  if (found == std::end(kTextMethods) || found->name != name) return {};
  return Value(Kind::method, std::make_shared<Method>(Method{self, found->name, found->call}));
}

}  // namespace mc::jinja
