// Filters over sequences. A filter that is a generator in Python is lazy here too: its value is always true, has no
// length, and fails only when it is walked.
#include <algorithm>

#include "jinja/filters.h"

namespace mc::jinja {
namespace {

using Out = Result<Value>;

Values values_of(const Args& args) {
  Values out = args.positional;
  for (const auto& [name, value] : args.named) out.push_back(value);
  return out;
}

/// Looks up an attribute path of a value, as map(attribute=...) does: "a.b", 0, or the value itself.
class Getter {
 public:
  explicit Getter(const Value& path) {
    if (path.is(Kind::missing) || path.is(Kind::none)) return;
    if (!path.is(Kind::string)) {
      parts_.push_back(path);
      return;
    }
    const std::string text = narrow(path.chars());
    for (size_t at = 0;;) {
      const size_t end = std::min(text.find('.', at), text.size());
      const std::string_view part = std::string_view(text).substr(at, end - at);
      const bool digits = !part.empty() && part.size() < 18 &&
                          std::all_of(part.begin(), part.end(), [](char c) { return c >= '0' && c <= '9'; });
      parts_.push_back(digits ? Value(std::stoll(std::string(part))) : Value(part));
      if (end == text.size()) return;
      at = end + 1;
    }
  }

  Out get(Interpreter& run, Value item, const Value& fallback = {}) const {
    for (const Value& part : parts_) {
      MC_TRY(found, run.item(item, part));
      item = std::move(found);
      if (item.is(Kind::undefined) && !fallback.is(Kind::missing) && !fallback.is(Kind::none)) item = fallback;
    }
    return item;
  }

 private:
  Values parts_;
};

Out length(Interpreter&, const Value& value, Args&) {
  switch (value.kind()) {
    case Kind::undefined: return Value(0);
    case Kind::string: return Value(value.chars().size());
    case Kind::list:
    case Kind::tuple: return Value(value.items().size());
    case Kind::dict: return Value(value.entries().size());
    case Kind::range: return Value(value.as<Range>().size());
    case Kind::view: return Value(value.as<View>().dict.entries().size());
    case Kind::loop: return Value(value.as<Loop>().items.size());
    default: return type_error("object of type '" + std::string(type_name(value)) + "' has no len()");
  }
}

Out list(Interpreter& run, const Value& value, Args&) {
  MC_TRY(items, run.items_of(value));
  return Value::list(std::move(items), value.user());
}

Out first(Interpreter& run, const Value& value, Args&) {
  if (value.is(Kind::string) && !value.chars().empty()) return Value(value.chars().substr(0, 1));
  if ((value.is(Kind::list) || value.is(Kind::tuple)) && !value.items().empty()) return value.items().front();
  if (value.is(Kind::iterator) && !value.as<Iterator>().make &&
      value.as<Iterator>().next < value.as<Iterator>().items.size())
    return value.as<Iterator>().items[value.as<Iterator>().next++];
  MC_TRY(items, run.items_of(value));
  if (items.empty()) return Value::undefined("No first item, sequence was empty.");
  Value taken = items.front();
  if (value.is(Kind::iterator) && items.size() > 1) {  // one item was taken from it
    value.as<Iterator>().items = std::move(items);
    value.as<Iterator>().next = 1;
    run.keep(value);
  }
  return taken;
}

Out last(Interpreter& run, const Value& value, Args&) {
  const bool reversible = value.is(Kind::string) || value.is(Kind::list) || value.is(Kind::tuple) ||
                          value.is(Kind::dict) || value.is(Kind::range) || value.is(Kind::view) ||
                          value.is(Kind::undefined);
  if (!reversible) return type_error("'" + std::string(type_name(value)) + "' object is not reversible");
  if (value.is(Kind::string) && !value.chars().empty()) return Value(value.chars().substr(value.chars().size() - 1));
  MC_TRY(items, run.items_of(value));
  if (items.empty()) return Value::undefined("No last item, sequence was empty.");
  return items.back();
}

Out join(Interpreter& run, const Value& value, Args& args) {
  std::array<Value, 2> a;
  MC_CHECK(bind_arguments("do_join", args, {"d", "attribute"}, 0, a));
  MC_TRY(items, run.items_of(value));
  const Getter getter(a[1]);
  const Str separator = a[0].is(Kind::missing) ? Str() : to_str(a[0]);
  Str out;
  for (size_t i = 0; i < items.size(); ++i) {
    MC_TRY(item, getter.get(run, items[i]));
    const Str text = to_str(item);
    MC_CHECK(run.budget().make(text.size() + separator.size()));
    if (i > 0) out += separator;
    out += text;
  }
  return Value(std::move(out));
}

Out reverse(Interpreter& run, const Value& value, Args&) {
  if (value.is(Kind::string)) return Value(Str(value.chars().rbegin(), value.chars().rend()));
  auto items = run.items_of(value);
  if (!items) return failure("FilterArgumentError", "argument must be iterable");
  std::reverse(items->begin(), items->end());
  constexpr std::pair<Kind, std::string_view> kTypes[] = {{Kind::list, "list_reverseiterator"},
                                                          {Kind::tuple, "reversed"},
                                                          {Kind::dict, "dict_reversekeyiterator"},
                                                          {Kind::view, "dict_reverseitemiterator"},
                                                          {Kind::range, "range_iterator"}};
  for (const auto& [kind, type] : kTypes)
    if (value.is(kind))
      return run.lazy(
          value, {}, [items = std::move(*items)](Interpreter&) -> Result<Values> { return items; }, type);
  return Value::list(std::move(*items), value.user());
}

// --- order ---

Out sort(Interpreter& run, const Value& value, Args& args) {
  std::array<Value, 3> a;
  MC_CHECK(bind_arguments("do_sort", args, {"reverse", "case_sensitive", "attribute"}, 0, a));
  MC_TRY(items, run.items_of(value));
  std::vector<Getter> getters;
  if (a[2].is(Kind::string)) {
    const Str& paths = a[2].chars();
    for (size_t at = 0; at <= paths.size();) {
      size_t end = at;
      while (end < paths.size() && code_of(paths[end]) != U',') ++end;
      getters.emplace_back(Value(paths.substr(at, end - at)));
      at = end + 1;
    }
  } else {
    getters.emplace_back(a[2]);
  }
  std::vector<std::pair<Value, Value>> keyed;
  for (Value& item : items) {
    Values key;
    for (const Getter& getter : getters) {
      MC_TRY(part, getter.get(run, item));
      if (!truth(a[1])) {
        MC_TRY(lowered, ignoring_case(run, part));
        part = std::move(lowered);
      }
      key.push_back(std::move(part));
    }
    keyed.emplace_back(Value::list(std::move(key)), std::move(item));
  }
  MC_CHECK(sort_by_key(run, keyed, truth(a[0])));
  for (size_t i = 0; i < keyed.size(); ++i) items[i] = std::move(keyed[i].second);
  return Value::list(std::move(items), value.user());
}

Out dictsort(Interpreter& run, const Value& value, Args& args) {
  std::array<Value, 3> a;
  MC_CHECK(bind_arguments("do_dictsort", args, {"case_sensitive", "by", "reverse"}, 0, a));
  const std::string by = a[1].is(Kind::missing) ? "key" : narrow(to_str(a[1]));
  if (by != "key" && by != "value")
    return failure("FilterArgumentError", "You can only sort by either \"key\" or \"value\"");
  if (value.is(Kind::undefined)) return undefined_error(value);
  if (!value.is(Kind::dict))
    return failure("AttributeError", "'" + std::string(type_name(value)) + "' object has no attribute 'items'");
  std::vector<std::pair<Value, Value>> keyed;
  for (const auto& [key, item] : value.entries()) {
    const Value& chosen = by == "key" ? key : item;
    MC_TRY(sought, truth(a[0]) ? Result<Value>(chosen) : ignoring_case(run, chosen));
    keyed.emplace_back(std::move(sought), Value::tuple({key, item}, value.user()));
  }
  MC_CHECK(sort_by_key(run, keyed, truth(a[2])));
  Values out;
  for (auto& [key, pair] : keyed) out.push_back(std::move(pair));
  return Value::list(std::move(out), value.user());
}

Out unique(Interpreter& run, const Value& value, Args& args) {
  std::array<Value, 2> a;
  MC_CHECK(bind_arguments("do_unique", args, {"case_sensitive", "attribute"}, 0, a));
  return run.lazy(value, {a.begin(), a.end()}, [value, a](Interpreter& run) -> Result<Values> {
    MC_TRY(items, run.items_of(value));
    const Getter getter(a[1]);
    Values seen, out;
    for (const Value& item : items) {
      MC_TRY(found, getter.get(run, item));
      MC_TRY(key, truth(a[0]) ? Result<Value>(std::move(found)) : ignoring_case(run, found));
      if (key.is(Kind::list) || key.is(Kind::dict))
        return type_error("unhashable type: '" + std::string(type_name(key)) + "'");
      MC_CHECK(run.budget().spend(1 + seen.size() / 4));
      bool known = false;
      for (size_t i = 0; i < seen.size() && !known; ++i) {
        MC_TRY(alike, run.equals(seen[i], key));
        known = alike;
      }
      if (known) continue;
      seen.push_back(std::move(key));
      out.push_back(item);
    }
    return out;
  });
}

template <bool wants_least>
Out extreme(Interpreter& run, const Value& value, Args& args) {
  std::array<Value, 2> a;
  MC_CHECK(bind_arguments("do_min", args, {"case_sensitive", "attribute"}, 0, a));
  MC_TRY(items, run.items_of(value));
  if (items.empty()) return Value::undefined("No aggregated item, sequence was empty.");
  const Getter getter(a[1]);
  Value best_key;
  size_t best = 0;
  for (size_t i = 0; i < items.size(); ++i) {
    MC_TRY(found, getter.get(run, items[i]));
    MC_TRY(key, truth(a[0]) ? Result<Value>(std::move(found)) : ignoring_case(run, found));
    if (i > 0) {
      // Python compares in this order: key < best, or key > best.
      if (key.is(Kind::undefined)) return undefined_error(key);
      auto better = wants_least ? less(run, key, best_key) : less(run, best_key, key);
      if (!better) return std::move(better).error();
      if (!*better) continue;
    }
    best_key = std::move(key);
    best = i;
  }
  return items[best];
}

Out sum(Interpreter& run, const Value& value, Args& args) {
  std::array<Value, 2> a;
  MC_CHECK(bind_arguments("do_sum", args, {"attribute", "start"}, 0, a));
  MC_TRY(items, run.items_of(value));
  const Getter getter(a[0]);
  Value total = a[1].is(Kind::missing) ? Value(0) : a[1];
  if (total.is(Kind::string)) return type_error("sum() can't sum strings [use ''.join(seq) instead]");
  for (const Value& item : items) {
    MC_TRY(part, getter.get(run, item));
    MC_TRY(next, operate(run, Op::add, std::move(total), part));
    total = std::move(next);
  }
  return total;
}

Out groupby(Interpreter& run, const Value& value, Args& args) {
  std::array<Value, 3> a;
  MC_CHECK(bind_arguments("do_groupby", args, {"attribute", "default", "case_sensitive"}, 1, a));
  MC_TRY(items, run.items_of(value));
  const Getter getter(a[0]);
  std::vector<std::pair<Value, Value>> keyed;
  for (Value& item : items) {
    MC_TRY(key, getter.get(run, item, a[1]));
    MC_TRY(sought, truth(a[2]) ? Result<Value>(std::move(key)) : ignoring_case(run, key));
    keyed.emplace_back(std::move(sought), std::move(item));
  }
  MC_CHECK(sort_by_key(run, keyed, false));
  Values out;
  for (size_t i = 0; i < keyed.size();) {
    size_t end = i;
    Values group;
    for (; end < keyed.size(); ++end) {
      MC_TRY(alike, run.equals(keyed[end].first, keyed[i].first));
      if (!alike) break;
      group.push_back(keyed[end].second);
    }
    MC_TRY(name, getter.get(run, group[0], a[1]));  // spelt in upper and lower case as in the group's first item
    Value pair = Value::tuple({std::move(name), Value::list(std::move(group), value.user())}, value.user());
    pair.as<Items>().group = true;
    out.push_back(std::move(pair));
    i = end;
  }
  return Value::list(std::move(out), value.user());
}

// --- choice ---

Result<Value> apply_named(Interpreter& run, const Value& name, const Value& item, Args args) {
  const std::string text = name.is(Kind::string) ? narrow(name.chars()) : std::string();
  const Filter* filter = find_filter(text);
  if (filter == nullptr) return failure("TemplateRuntimeError", "No filter named " + narrow(to_repr(name)) + ".");
  return filter->apply(run, item, args);
}

Out map(Interpreter& run, const Value& value, Args& args) {
  return run.lazy(value, values_of(args), [value, args](Interpreter& run) -> Result<Values> {
    if (!truth(value)) return Values{};
    Args rest = args;
    Values out;
    if (args.positional.empty()) {
      std::array<Value, 2> a;
      const bool by_attribute = std::any_of(args.named.begin(), args.named.end(),
                                            [](const auto& named) { return named.first == "attribute"; });
      if (!by_attribute) return failure("FilterArgumentError", "map requires a filter argument");
      for (const auto& [name, given] : args.named)
        if (name != "attribute" && name != "default")
          return failure("FilterArgumentError", "Unexpected keyword argument " + repr_of(name));
      MC_CHECK(bind_arguments("map", rest, {"attribute", "default"}, 0, a));
      const Getter getter(a[0]);
      MC_TRY(items, run.items_of(value));
      for (Value& item : items) {
        MC_TRY(found, getter.get(run, std::move(item), a[1]));
        out.push_back(std::move(found));
      }
      return out;
    }
    const Value name = args.positional[0];
    rest.positional.erase(rest.positional.begin());
    MC_TRY(items, run.items_of(value));
    for (const Value& item : items) {
      MC_CHECK(run.budget().read(item.is(Kind::string) ? item.chars().size() : 1));
      MC_TRY(changed, apply_named(run, name, item, rest));
      if (changed.is(Kind::string)) MC_CHECK(run.budget().make(changed.chars().size()));
      out.push_back(std::move(changed));
    }
    return out;
  });
}

template <bool wanted, bool by_attribute>
Out choose(Interpreter& run, const Value& value, Args& args) {
  return run.lazy(value, values_of(args), [value, args](Interpreter& run) -> Result<Values> {
    if (!truth(value)) return Values{};
    Args rest = args;
    Value path, name;
    if (by_attribute) {
      if (rest.positional.empty()) return failure("FilterArgumentError", "Missing parameter for attribute name");
      path = rest.positional[0];
      rest.positional.erase(rest.positional.begin());
    }
    const Test* test = nullptr;
    if (!rest.positional.empty()) {
      name = rest.positional[0];
      rest.positional.erase(rest.positional.begin());
      test = name.is(Kind::string) ? find_test(narrow(name.chars())) : nullptr;
    }
    const Getter getter(path);
    MC_TRY(items, run.items_of(value));
    Values out;
    for (Value& item : items) {
      MC_CHECK(run.budget().spend(1));
      if (test == nullptr && !name.is(Kind::missing))
        return failure("TemplateRuntimeError", "No test named " + narrow(to_repr(name)) + ".");
      MC_TRY(subject, getter.get(run, item));
      bool holds = truth(subject);
      if (test != nullptr) {
        Args given = rest;
        MC_TRY(result, test->check(run, subject, given));
        holds = result;
      }
      if (holds == wanted) out.push_back(std::move(item));
    }
    return out;
  });
}

Out items(Interpreter& run, const Value& value, Args&) {
  return run.lazy(value, {}, [value](Interpreter& run) -> Result<Values> {
    if (value.is(Kind::undefined)) return Values{};
    if (!value.is(Kind::dict)) return type_error("Can only get item pairs from a mapping.");
    return run.items_of(Value(Kind::view, std::make_shared<View>(View{value, View::Of::items})));
  });
}

// --- rows ---

Out batch(Interpreter& run, const Value& value, Args& args) {
  std::array<Value, 2> a;
  MC_CHECK(bind_arguments("do_batch", args, {"linecount", "fill_with"}, 1, a));
  MC_TRY(count, whole(a[0]));
  return run.lazy(value, {a.begin(), a.end()}, [value, a, count](Interpreter& run) -> Result<Values> {
    MC_TRY(items, run.items_of(value));
    Values out, row;
    for (Value& item : items) {
      if (static_cast<int64_t>(row.size()) == count) out.push_back(Value::list(std::exchange(row, {})));
      row.push_back(std::move(item));
    }
    if (row.empty()) return out;
    if (!a[1].is(Kind::missing) && !a[1].is(Kind::none) && static_cast<int64_t>(row.size()) < count) {
      MC_CHECK(run.budget().make(static_cast<size_t>(std::min<int64_t>(count, 1 << 30)) * 8));
      row.resize(static_cast<size_t>(count), a[1]);
    }
    out.push_back(Value::list(std::move(row)));
    return out;
  });
}

Out slice_filter(Interpreter& run, const Value& value, Args& args) {
  std::array<Value, 2> a;
  MC_CHECK(bind_arguments("do_slice", args, {"slices", "fill_with"}, 1, a));
  MC_TRY(count, whole(a[0]));
  return run.lazy(value, {a.begin(), a.end()}, [value, a, count](Interpreter& run) -> Result<Values> {
    MC_TRY(items, run.items_of(value));
    if (count == 0) return failure("ZeroDivisionError", "integer division or modulo by zero");
    if (count > 0) MC_CHECK(run.budget().make(static_cast<size_t>(std::min<int64_t>(count, 1 << 30)) * 8));
    const auto size = static_cast<int64_t>(items.size());
    const int64_t per_slice = count > 0 ? size / count : 0, with_extra = count > 0 ? size % count : 0;
    Values out;
    int64_t at = 0;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t end = at + per_slice + (i < with_extra ? 1 : 0);
      Values row(items.begin() + at, items.begin() + end);
      if (!a[1].is(Kind::missing) && !a[1].is(Kind::none) && i >= with_extra) row.push_back(a[1]);
      out.push_back(Value::list(std::move(row)));
      at = end;
    }
    return out;
  });
}

constexpr Filter kSequenceFilters[] = {
    {"length", length, false},
    {"count", length, false},
    {"list", list, false},
    {"first", first, false},
    {"last", last, false},
    {"join", join},
    {"reverse", reverse, false},
    {"sort", sort},
    {"dictsort", dictsort},
    {"unique", unique},
    {"min", extreme<true>},
    {"max", extreme<false>},
    {"sum", sum},
    {"groupby", groupby},
    {"map", map},
    {"select", choose<true, false>},
    {"reject", choose<false, false>},
    {"selectattr", choose<true, true>},
    {"rejectattr", choose<false, true>},
    {"items", items, false},
    {"batch", batch},
    {"slice", slice_filter},
};

}  // namespace

std::span<const Filter> sequence_filters() {
  return kSequenceFilters;
}

}  // namespace mc::jinja
