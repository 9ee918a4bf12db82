// Flags whose words stand for values of a type. One table gives the flag its choices and the reader of the flag its
// value, so that no reader compares words:
//
//   constexpr FlagWord<FetchRule> kFetchRules[] = {{"cost", FetchRule::cost}, {"threshold", FetchRule::threshold}};
//
//   constexpr ChoiceFlag<FetchRule> kFetchRule = with_choices<kFetchRules>({.name = "fetch-rule", ...});
//
//   out.fetch_rule = choice_of(args, kFetchRule);
//
// A flag of another kind may have such words too: `--hold off` beside `--hold 300ms`. word_of() reads them.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <string_view>

#include "base/assert.h"
#include "base/cli.h"

namespace mc {

template <class T>
struct FlagWord {
  std::string_view word;
  T value{};
};

/// A flag with the values of its words. Flag::choices lists the same words.
template <class T>
struct ChoiceFlag : Flag {
  std::span<const FlagWord<T>> values;
};

/// "cost|threshold": the words of a table.
template <const auto& kTable>
inline constexpr auto kJoinedWords = [] {
  constexpr size_t kSize = [] {
    size_t size = std::size(kTable) - 1;
    for (const auto& choice : kTable) size += choice.word.size();
    return size;
  }();
  std::array<char, kSize> out{};
  size_t at = 0;
  for (const auto& choice : kTable) {
    if (at > 0) out[at++] = '|';
    for (const char c : choice.word) out[at++] = c;
  }
  return out;
}();

template <const auto& kTable>
constexpr auto with_choices(Flag flag) {
  flag.choices = std::string_view(kJoinedWords<kTable>.data(), kJoinedWords<kTable>.size());
  return ChoiceFlag<decltype(kTable[0].value)>{flag, kTable};
}

/// The value of a word; nullopt: the table has no such word.
template <class T>
constexpr std::optional<T> find_choice(std::span<const FlagWord<T>> table, std::string_view word) {
  for (const FlagWord<T>& choice : table)
    if (choice.word == word) return choice.value;
  return std::nullopt;
}

/// The value for which the flag's word stands.
template <class T>
T choice_of(const cli::Args& args, const ChoiceFlag<T>& flag) {
  const std::optional<T> found = find_choice(flag.values, args.text(flag));
  MC_ASSERT(found.has_value());  // parse() accepted the word
  return *found;
}

/// As choice_of() for a flag that has words beside values of its kind; nullopt: the setting is such a value.
template <class T>
std::optional<T> word_of(const cli::Args& args, const ChoiceFlag<T>& flag) {
  return find_choice(flag.values, args.text(flag));
}

/// The word of a value.
template <class T>
constexpr std::string_view word_for(const ChoiceFlag<T>& flag, T value) {
  for (const FlagWord<T>& choice : flag.values)
    if (choice.value == value) return choice.word;
  MC_ASSERT(!"a value without a word");
  return {};
}

/// True when the setting is one of the words of Flag::choices, false when it is a value of the flag's kind.
bool is_word(const cli::Args& args, const Flag& flag);

}  // namespace mc
