// Filters over text.
#include <algorithm>

#include "jinja/filters.h"
#include "jinja/lex.h"
#include "unicode/unicode.h"

namespace mc::jinja {
namespace {

using Out = Result<Value>;

Out string(Interpreter&, const Value& value, Args&) {
  return value.is(Kind::string) ? value : Value(to_str(value));
}
Out upper_filter(Interpreter&, const Value& value, Args&) {
  return Value(upper(to_str(value)));
}
Out lower_filter(Interpreter&, const Value& value, Args&) {
  return Value(lower(to_str(value)));
}

Out capitalize(Interpreter& run, const Value& value, Args&) {
  const Value text(to_str(value));
  return run.call(find_method(text, "capitalize"), {});
}

/// The title filter. Its words begin only after white space and opening brackets, unlike those of str.title.
Out title(Interpreter&, const Value& value, Args&) {
  const Str text = to_str(value);
  Str out;
  const auto separates = [](char32_t c) { return c == U'-' || is_python_space(c) || StrView(U"({[<").find(c) < 4; };
  for (size_t at = 0; at < text.size();) {
    size_t end = at;
    const bool gap = separates(code_of(text[at]));
    while (end < text.size() && separates(code_of(text[end])) == gap) ++end;
    out += upper(StrView(text).substr(at, 1));
    out += lower(StrView(text).substr(at + 1, end - at - 1));
    at = end;
  }
  return Value(std::move(out));
}

Out trim(Interpreter&, const Value& value, Args& args) {
  std::array<Value, 1> a;
  MC_CHECK(bind_arguments("do_trim", args, {"chars"}, 0, a));
  if (!a[0].is(Kind::string) && !a[0].is(Kind::missing) && !a[0].is(Kind::none))
    return type_error("strip arg must be None or str");
  if (value.is(Kind::string)) {
    const StrView out = trimmed(value.chars(), a[0]);
    return out.size() == value.chars().size() ? value : Value(Str(out));
  }
  return Value(Str(trimmed(to_str(value), a[0])));
}

Out replace(Interpreter& run, const Value& value, Args& args) {
  std::array<Value, 3> a;
  MC_CHECK(bind_arguments("do_replace", args, {"old", "new", "count"}, 2, a));
  int64_t count = -1;
  if (!a[2].is(Kind::missing) && !a[2].is(Kind::none)) {
    MC_TRY(given, whole(a[2]));
    count = given < 0 ? -1 : given;
  }
  const Str text = to_str(value), from = to_str(a[0]), to = to_str(a[1]);
  if (to.size() > from.size()) {  // the text may grow, so matches are counted first
    size_t matches = from.empty() ? text.size() + 1 : 0;
    for (size_t at = from.empty() ? StrView::npos : find_in(text, from); at != StrView::npos;
         at = find_in(text, from, at + from.size()))
      ++matches;
    if (to.size() > (1u << 30) / (matches + 1)) return failure("LimitError", "replace makes too long a text");
    MC_CHECK(run.budget().make(matches * to.size()));
  }
  return Value(replaced(text, from, to, count));
}

Out center(Interpreter& run, const Value& value, Args& args) {
  std::array<Value, 1> a;
  MC_CHECK(bind_arguments("do_center", args, {"width"}, 0, a));
  const Value text(to_str(value));
  return run.call(find_method(text, "center"), {{a[0].is(Kind::missing) ? Value(80) : a[0]}, {}});
}

Out indent(Interpreter& run, const Value& value, Args& args) {
  std::array<Value, 3> a;
  MC_CHECK(bind_arguments("do_indent", args, {"width", "first", "blank"}, 0, a));
  Str gap;
  if (a[0].is(Kind::string)) {
    gap = a[0].chars();
  } else {
    int64_t width = 4;
    if (!a[0].is(Kind::missing)) {
      MC_TRY(given, whole(a[0]));
      width = given;
    }
    MC_TRY(blanks, repeat(run, U" ", width));
    gap = std::move(blanks);
  }
  if (value.is(Kind::undefined)) return undefined_error(value);
  if (value.is(Kind::list)) return failure("AttributeError", "'list' object has no attribute 'splitlines'");
  if (!value.is(Kind::string)) return type_error("can only concatenate " + std::string(type_name(value)) + " to str");
  Args keep_ends;
  MC_TRY(lines, run.call(find_method(Value(value.chars() + U"\n"), "splitlines"), std::move(keep_ends)));
  MC_CHECK(run.budget().make(value.chars().size()));
  Str out;
  for (size_t i = 0; i < lines.items().size(); ++i) {
    const Str& line = lines.items()[i].chars();
    const bool indented = i == 0 ? truth(a[1]) : truth(a[2]) || !line.empty();
    if (i > 0) out += U'\n';
    if (indented) MC_CHECK(run.budget().make(gap.size()));
    if (indented) out += gap;
    out += line;
  }
  return Value(std::move(out));
}

Out wordcount(Interpreter&, const Value& value, Args&) {
  int64_t count = 0;
  bool inside = false;
  for (const char32_t c : to_str(value)) {
    const bool word = unicode::is_word(code_of(c));
    count += word && !inside;
    inside = word;
  }
  return Value(count);
}

Out truncate(Interpreter& run, const Value& value, Args& args) {
  std::array<Value, 4> a;
  MC_CHECK(bind_arguments("do_truncate", args, {"length", "killwords", "end", "leeway"}, 0, a));
  int64_t length = 255, leeway = 5;
  if (!a[0].is(Kind::missing)) {
    MC_TRY(given, whole(a[0]));
    length = given;
  }
  if (!a[3].is(Kind::missing) && !a[3].is(Kind::none)) {
    MC_TRY(given, whole(a[3]));
    leeway = given;
  }
  const Str end = a[2].is(Kind::missing) ? Str(U"...") : to_str(a[2]);
  const auto end_size = static_cast<int64_t>(end.size());
  if (length < end_size)
    return failure("AssertionError",
                   "expected length >= " + std::to_string(end_size) + ", got " + std::to_string(length));
  if (leeway < 0) return failure("AssertionError", "expected leeway >= 0, got " + std::to_string(leeway));
  Args none;
  MC_TRY(size, find_filter("length")->apply(run, value, none));
  if (size.integer() <= length + leeway) return value;
  if (!value.is(Kind::string))
    return failure("AttributeError", "'" + std::string(type_name(value)) + "' object has no attribute 'rsplit'");
  const Str& text = value.chars();
  const Str kept = text.substr(0, static_cast<size_t>(length - end_size));
  if (truth(a[1])) return Value(kept + end);
  size_t blank = kept.size();
  while (blank > 0 && code_of(kept[blank - 1]) != U' ') --blank;
  return Value((blank == 0 ? kept : kept.substr(0, blank - 1)) + end);
}

Out escape(Interpreter&, const Value& value, Args&) {
  if (value.is(Kind::string) && value.as<Text>().markup) return value;
  Str out;
  for (const char32_t marked : to_str(value)) {
    constexpr std::pair<char32_t, std::string_view> kEntities[] = {
        {U'&', "&amp;"}, {U'<', "&lt;"}, {U'>', "&gt;"}, {U'\'', "&#39;"}, {U'"', "&#34;"}};
    const auto* found = std::find_if(std::begin(kEntities), std::end(kEntities),
                                     [&](const auto& e) { return e.first == code_of(marked); });
    if (found == std::end(kEntities))
      out += marked;
    else
      for (const char c : found->second) out += static_cast<unsigned char>(c) | (marked & kUserBit);
  }
  return Value(std::move(out), true);
}
Out force_escape(Interpreter& run, const Value& value, Args& args) {
  return escape(run, Value(to_str(value)), args);
}
Out safe(Interpreter&, const Value& value, Args&) {
  return Value(to_str(value), true);
}

Out format(Interpreter& run, const Value& value, Args& args) {
  if (!args.positional.empty() && !args.named.empty())
    return failure("FilterArgumentError", "can't handle positional and keyword arguments at the same time");
  const Value text = value.is(Kind::string) ? value : Value(to_str(value));
  if (args.named.empty()) return format_percent(run, text, Value::tuple(args.positional));
  std::vector<std::pair<Value, Value>> entries;
  for (auto& [name, item] : args.named) entries.emplace_back(Value(std::string_view(name)), item);
  return format_percent(run, text, Value::dict(std::move(entries)));
}

void quote(Str& out, StrView text, bool query) {
  constexpr char kDigits[] = "0123456789ABCDEF";
  for (const char32_t marked : text) {
    const char32_t c = code_of(marked), mark = marked & kUserBit;
    const bool plain = c < 0x80 && (unicode::is_letter(c) || unicode::is_decimal(c) || StrView(U"_.-~").find(c) < 4 ||
                                    (c == U'/' && !query));
    if (plain) {
      out += marked;
    } else if (query && c == U' ') {
      out += U'+' | mark;
    } else {
      for (const char byte : narrow(StrView(&marked, 1))) {
        out += U'%' | mark;
        out += static_cast<char32_t>(kDigits[static_cast<uint8_t>(byte) >> 4]) | mark;
        out += static_cast<char32_t>(kDigits[byte & 15]) | mark;
      }
    }
  }
}

Out urlencode(Interpreter& run, const Value& value, Args&) {
  Str out;
  Values pairs;
  if (value.is(Kind::dict)) {
    for (const auto& [key, item] : value.entries()) pairs.push_back(Value::tuple({key, item}));
  } else {
    auto items = value.is(Kind::string) ? Result<Values>(type_error("")) : run.items_of(value);
    if (!items) {
      quote(out, to_str(value), false);
      return Value(std::move(out));
    }
    pairs = std::move(*items);
  }
  for (const Value& entry : pairs) {
    MC_TRY(pair, run.items_of(entry));
    if (pair.size() != 2) return failure("ValueError", "urlencode takes pairs");
    if (!out.empty()) out += U'&';
    quote(out, to_str(pair[0]), true);
    out += U'=';
    quote(out, to_str(pair[1]), true);
  }
  return Value(std::move(out));
}

/// Filters for web pages and for debugging. No prompt needs them, and a template that uses one gets an error.
Out refused(Interpreter&, const Value&, Args&) {
  return failure("NotSupported", "this filter is not supported in chat templates here");
}

constexpr Filter kTextFilters[] = {
    {"string", string, false},
    {"upper", upper_filter, false},
    {"lower", lower_filter, false},
    {"capitalize", capitalize, false},
    {"title", title, false},
    {"trim", trim},
    {"replace", replace},
    {"center", center},
    {"indent", indent},
    {"wordcount", wordcount, false},
    {"truncate", truncate},
    {"escape", escape, false},
    {"e", escape, false},
    {"forceescape", force_escape, false},
    {"safe", safe, false},
    {"format", format},
    {"urlencode", urlencode},
    {"wordwrap", refused},
    {"striptags", refused},
    {"urlize", refused},
    {"xmlattr", refused},
    {"pprint", refused},
    {"random", refused},
    {"filesizeformat", refused},
};

}  // namespace

std::span<const Filter> text_filters() {
  return kTextFilters;
}

}  // namespace mc::jinja
