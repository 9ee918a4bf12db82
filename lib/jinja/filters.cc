#include "jinja/filters.h"

#include <algorithm>

#include "jinja/lex.h"
#include "unicode/unicode.h"

namespace mc::jinja {

const Filter* find_filter(std::string_view name) {
  for (const auto table : {text_filters(), sequence_filters(), value_filters()}) {
    const auto found = std::find_if(table.begin(), table.end(), [&](const Filter& f) { return f.name == name; });
    if (found != table.end()) return &*found;
  }
  return nullptr;
}

StrView trimmed(StrView text, const Value& chars, bool left, bool right) {
  const auto stripped = [&](char32_t marked) {
    const char32_t c = code_of(marked);
    if (!chars.is(Kind::string)) return is_python_space(c);
    const Str& set = chars.chars();
    return std::any_of(set.begin(), set.end(), [&](char32_t other) { return code_of(other) == c; });
  };
  while (left && !text.empty() && stripped(text.front())) text.remove_prefix(1);
  while (right && !text.empty() && stripped(text.back())) text.remove_suffix(1);
  return text;
}

Str upper(StrView text) {
  Str out;
  out.reserve(text.size());
  for (const char32_t marked : text) {
    const char32_t c = code_of(marked), mark = marked & kUserBit;
    if (c < 0x80)
      out += (c >= U'a' && c <= U'z' ? c - 32 : c) | mark;
    else
      for (const char32_t to : unicode::upper_of(c)) out += to | mark;
  }
  return out;
}

Str lower(StrView text) {
  constexpr char32_t kSigma = 0x3A3, kFinalSigma = 0x3C2;
  const auto is_cased = [](char32_t c) {
    return unicode::is_upper(c) || unicode::is_lower(c) || unicode::is_titlecase(c);
  };
  Str out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    const char32_t c = code_of(text[i]), mark = text[i] & kUserBit;
    if (c < 0x80) {
      out += (c >= U'A' && c <= U'Z' ? c + 32 : c) | mark;
      continue;
    }
    const bool final_sigma = c == kSigma && i > 0 && is_cased(code_of(text[i - 1])) &&
                             (i + 1 == text.size() || !is_cased(code_of(text[i + 1])));
    if (final_sigma)
      out += kFinalSigma | mark;
    else
      for (const char32_t to : unicode::lower_of(c)) out += to | mark;
  }
  return out;
}

Str replaced(StrView text, StrView from, StrView to, int64_t count) {
  Str out;
  if (from.empty()) {  // Python puts `to` before every character and at the end
    for (const char32_t c : text) {
      if (count-- != 0)
        out.append(to);
      else
        count = 0;
      out += c;
    }
    if (count != 0) out.append(to);
    return out;
  }
  size_t at = 0;
  for (size_t found = find_in(text, from); found != StrView::npos && count-- != 0; found = find_in(text, from, at)) {
    out.append(text.substr(at, found - at)).append(to);
    at = found + from.size();
  }
  return out.append(text.substr(at));
}

Result<Value> ignoring_case(Interpreter& run, const Value& value) {
  if (!value.is(Kind::string)) return value;
  MC_CHECK(run.budget().make(value.chars().size()));
  return Value(lower(value.chars()));
}

Result<void> sort_by_key(Interpreter& run, std::vector<std::pair<Value, Value>>& keyed, bool reverse) {
  MC_CHECK(run.budget().spend(keyed.size() * 8));
  // A failed comparison makes the sort fail. Until the sort ends, all keys count as equal, which is a valid order.
  Error failed;
  bool broken = false;
  const auto below = [&](const Value& a, const Value& b) {
    if (broken) return false;
    auto result = less(run, a, b);
    if (result) return *result;
    failed = std::move(result).error();
    broken = true;
    return false;
  };
  // Python compares the second item with the first one, so its error message names the types in this order.
  if (keyed.size() > 1) below(keyed[1].first, keyed[0].first);
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) {
    return reverse ? below(b.first, a.first) : below(a.first, b.first);
  });
  if (broken) return failed;
  return {};
}

// --- tests -------------------------------------------------------------------------------------------

namespace {

using Check = Result<bool>;

template <Kind kind>
Check is_kind(Interpreter&, const Value& value, Args&) {
  return value.is(kind);
}

Check defined(Interpreter&, const Value& value, Args&) {
  return !value.is(Kind::undefined);
}
Check is_true(Interpreter&, const Value& value, Args&) {
  return value.is(Kind::boolean) && truth(value);
}
Check is_false(Interpreter&, const Value& value, Args&) {
  return value.is(Kind::boolean) && !truth(value);
}
Check number(Interpreter&, const Value& value, Args&) {
  return value.is_number();
}
Check sequence(Interpreter&, const Value& value, Args&) {
  switch (value.kind()) {
    case Kind::string:
    case Kind::list:
    case Kind::tuple:
    case Kind::dict:
    case Kind::range:
    case Kind::undefined: return true;  // an undefined value has the length 0
    default: return false;
  }
}
Check iterable(Interpreter&, const Value& value, Args&) {
  return iterates(value.kind());
}
Check callable(Interpreter&, const Value& value, Args&) {
  switch (value.kind()) {
    case Kind::undefined:
    case Kind::macro:
    case Kind::method:
    case Kind::function:
    case Kind::loop:
    case Kind::joiner: return true;
    default: return false;
  }
}

Result<int64_t> remainder(Interpreter& run, const Value& value, const Value& by) {
  if (value.is(Kind::string)) {
    // Python's % formats a string: '5' % 2 fails because an argument is left over.
    MC_TRY(text, operate(run, Op::mod, value, by));
    return text.chars().empty() ? 0 : 1;
  }
  MC_TRY(rest, operate(run, Op::mod, value, by));
  return rest.is(Kind::real) ? (rest.real() == 0 ? 0 : rest.real() == 1 ? 1 : 2) : rest.integer();
}
template <int64_t wanted>
Check parity(Interpreter& run, const Value& value, Args&) {
  MC_TRY(rest, remainder(run, value, Value(2)));
  return rest == wanted;
}
Check divisible(Interpreter& run, const Value& value, Args& args) {
  std::array<Value, 1> a;
  MC_CHECK(bind_arguments("test_divisibleby", args, {"num"}, 1, a));
  MC_TRY(rest, remainder(run, value, a[0]));
  return rest == 0;
}

template <bool upper_case>
Check in_case(Interpreter&, const Value& value, Args&) {
  bool found = false;
  for (const char32_t marked : to_str(value)) {
    const char32_t c = code_of(marked);
    if ((upper_case ? unicode::is_lower(c) : unicode::is_upper(c)) || unicode::is_titlecase(c)) return false;
    found |= upper_case ? unicode::is_upper(c) : unicode::is_lower(c);
  }
  return found;
}

template <Op op>
Check ordered(Interpreter& run, const Value& value, Args& args) {
  std::array<Value, 1> a;
  MC_CHECK(bind_arguments("this test", args, {"other"}, 1, a));
  return compare_values(run, op, value, a[0]);
}
Check same_as(Interpreter& run, const Value& value, Args& args) {
  std::array<Value, 1> a;
  MC_CHECK(bind_arguments("test_sameas", args, {"other"}, 1, a));
  if (value.kind() != a[0].kind()) return false;
  if (value.object()) return value.object() == a[0].object();
  return run.equals(value, a[0]);
}
Check escaped(Interpreter&, const Value& value, Args&) {
  return value.is(Kind::string) && value.as<Text>().markup;
}
/// The name for `value in environment.filters`. TypeError: a value that cannot be a key.
Result<std::string> name_of(const Value& value) {
  if (value.is(Kind::list) || value.is(Kind::dict))
    return type_error("unhashable type: '" + std::string(type_name(value)) + "'");
  return value.is(Kind::string) ? narrow(value.chars()) : std::string();
}
Check names_filter(Interpreter&, const Value& value, Args&) {
  MC_TRY(name, name_of(value));
  return find_filter(name) != nullptr;
}
Check names_test(Interpreter&, const Value& value, Args&) {
  MC_TRY(name, name_of(value));
  return find_test(name) != nullptr;
}

constexpr Test kTests[] = {
    {"odd", parity<1>},
    {"even", parity<0>},
    {"divisibleby", divisible},
    {"defined", defined},
    {"undefined", is_kind<Kind::undefined>},
    {"filter", names_filter},
    {"test", names_test},
    {"none", is_kind<Kind::none>},
    {"boolean", is_kind<Kind::boolean>},
    {"false", is_false},
    {"true", is_true},
    {"integer", is_kind<Kind::integer>},
    {"float", is_kind<Kind::real>},
    {"lower", in_case<false>},
    {"upper", in_case<true>},
    {"string", is_kind<Kind::string>},
    {"mapping", is_kind<Kind::dict>},
    {"number", number},
    {"sequence", sequence},
    {"iterable", iterable},
    {"callable", callable},
    {"sameas", same_as},
    {"escaped", escaped},
    {"in", ordered<Op::in>},
    {"==", ordered<Op::eq>},
    {"eq", ordered<Op::eq>},
    {"equalto", ordered<Op::eq>},
    {"!=", ordered<Op::ne>},
    {"ne", ordered<Op::ne>},
    {">", ordered<Op::gt>},
    {"gt", ordered<Op::gt>},
    {"greaterthan", ordered<Op::gt>},
    {"ge", ordered<Op::ge>},
    {">=", ordered<Op::ge>},
    {"<", ordered<Op::lt>},
    {"lt", ordered<Op::lt>},
    {"lessthan", ordered<Op::lt>},
    {"<=", ordered<Op::le>},
    {"le", ordered<Op::le>},
};

}  // namespace

const Test* find_test(std::string_view name) {
  const auto* found = std::find_if(std::begin(kTests), std::end(kTests), [&](const Test& t) { return t.name == name; });
  return found == std::end(kTests) ? nullptr : found;
}

}  // namespace mc::jinja
