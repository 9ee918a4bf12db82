// The tables of filters and tests. The parser looks up the filters and tests of a template.
#pragma once

#include "jinja/interpreter.h"

namespace mc::jinja {

struct Filter {
  std::string_view name;
  Result<Value> (*apply)(Interpreter& run, const Value& value, Args& args);
  bool takes_arguments = true;
};
struct Test {
  std::string_view name;
  Result<bool> (*check)(Interpreter& run, const Value& value, Args& args);
};

const Filter* find_filter(std::string_view name);
const Test* find_test(std::string_view name);

// The parts of the table, each in its own file.
std::span<const Filter> text_filters();      // filters_text.cc
std::span<const Filter> sequence_filters();  // filters_sequence.cc
std::span<const Filter> value_filters();     // filters_value.cc

/// `text` without the characters of `chars` at its ends. White space is removed where `chars` is missing.
StrView trimmed(StrView text, const Value& chars, bool left = true, bool right = true);
Str upper(StrView text);
Str lower(StrView text);
Str replaced(StrView text, StrView from, StrView to, int64_t count);
/// The key by which |sort, |unique and similar filters compare a value: text in lower case.
Result<Value> ignoring_case(Interpreter& run, const Value& value);
/// Sorts pairs of key and value by key. The sort is stable. TypeError: keys that cannot be compared.
Result<void> sort_by_key(Interpreter& run, std::vector<std::pair<Value, Value>>& keyed, bool reverse);

}  // namespace mc::jinja
