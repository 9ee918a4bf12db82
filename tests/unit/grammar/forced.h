// Answers that a grammar forces: tokens drawn at random, or the worst ones, from its masks.
#pragma once

#include <algorithm>
#include <iterator>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/rng.h"
#include "grammar/grammar.h"
#include "test.h"

namespace mc::grammar::test {

using mc::test::seed;

/// All bytes, pieces of JSON that cross the borders of its parts, words, and halves of characters.
inline std::vector<std::string> piece_texts() {
  std::vector<std::string> out;
  for (int byte = 0; byte < 256; ++byte) out.emplace_back(1, static_cast<char>(byte));
  for (const char* piece :
       {"{\"",   "\":",      "\": ",        "\",\"",       "\", \"",   "},{",      "}}",
        "]]",    "[[",       "[{\"",        "\"}",         "\"]",      "\"},",     "true",
        "false", "null",     " \"",         ": \"",        "name",     "a",        "b",
        "value", "id",       "arguments",   "12",          "345",      "-1",       ".5",
        "e9",    "0.",       "\\\"",        "\\u",         "00",       "\\n",      "\n  ",
        "\n",    "  ",       "    ",        "\xC3\xA9",    "\xE2\x82", "\x82\xAC", "\xF0\x9F\x98\x80",
        "x\"",   "é\",",     "a\":1",       "\":{\"",      "[]",       "{}",       "\"\"",
        "\":\"", "tool",     "<tool_call>", "</think>",    "th",       "ink>",     "red",
        "green", "\xF0\x9F", "\x98\x80\"",  "hello world", " the",     "ing\"",    "}\n",
        "[1,",   "2,3]",     "20",          "24-",         "-0",       "-12",      "T1",
        "Z\""})
    out.emplace_back(piece);
  return out;
}

inline Vocabulary piece_vocabulary() {
  const auto texts = piece_texts();
  return Vocabulary::build(texts, std::vector<bool>(texts.size()));
}

inline std::vector<uint32_t> allowed_ids(std::span<const uint64_t> mask, size_t count) {
  std::vector<uint32_t> out;
  for (uint32_t id = 0; id < count; ++id)
    if (is_allowed(mask, id)) out.push_back(id);
  return out;
}

/// How the wild steps of an answer draw: at random, or mostly the token after which an answer has most left to close:
/// brackets and strings that it opens, and a character of which it has a part.
enum class Draw : uint8_t { random, worst };

inline uint32_t drawn(const std::vector<uint32_t>& ids, const Vocabulary& vocabulary, Rng& rng, Draw draw) {
  if (draw == Draw::random || rng.below(4) == 0) return ids[rng.below(ids.size())];
  const auto left_open = [&](uint32_t id) {
    const std::string_view text = vocabulary.text_of(id);
    const auto opened = std::count_if(text.begin(), text.end(), [](char c) { return c == '[' || c == '{'; });
    const auto quotes = std::count(text.begin(), text.end(), '"');
    return 4 * opened + quotes % 2 + (find_invalid_utf8(text).has_value() ? 2 : 0);
  };
  const auto most = left_open(
      *std::max_element(ids.begin(), ids.end(), [&](uint32_t a, uint32_t b) { return left_open(a) < left_open(b); }));
  std::vector<uint32_t> worst;
  std::copy_if(ids.begin(), ids.end(), std::back_inserter(worst), [&](uint32_t id) { return left_open(id) == most; });
  return worst[rng.below(worst.size())];
}

struct Forced {
  std::string text;
  bool is_complete = false;
  size_t steps = 0;
};

/// Draws allowed tokens: as `draw` says for `wild` steps, then the shortest way out that bytes alone show.
inline Forced force(Masks& masks, Rng& rng, size_t wild, size_t steps_max, Draw draw = Draw::random) {
  static constexpr std::string_view kOut = "\"}]0123456789-tfn:,{[eulrsa.";
  Matcher matcher(masks);
  const Vocabulary& vocabulary = masks.vocabulary();
  std::vector<uint64_t> mask((vocabulary.size() + 63) / 64);
  Forced out;
  for (; out.steps < steps_max; ++out.steps) {
    out.is_complete = matcher.is_complete();
    if (out.is_complete && (out.steps >= wild || rng.below(8) == 0)) return out;
    matcher.fill(mask);
    const auto ids = allowed_ids(mask, vocabulary.size());
    if (ids.empty()) {
      REQUIRE_MESSAGE(out.is_complete, "the masks end in a dead end after: " << out.text);
      return out;
    }
    uint32_t chosen = drawn(ids, vocabulary, rng, out.steps < wild ? draw : Draw::random);
    if (out.steps >= wild)
      for (const char c : kOut)
        if (is_allowed(mask, static_cast<uint8_t>(c))) {
          chosen = static_cast<uint8_t>(c);
          break;
        }
    REQUIRE(matcher.accept(chosen));
    out.text += vocabulary.text_of(chosen);
  }
  out.is_complete = matcher.is_complete();
  return out;
}

inline std::shared_ptr<const Grammar> compiled(const std::string& text) {
  auto grammar = Grammar::compile(text);
  INFO(text);
  REQUIRE_OK(grammar);
  return *grammar;
}

/// Whether the grammar takes the whole text, byte by byte.
inline bool takes(const std::string& grammar, std::string_view text) {
  const Vocabulary vocabulary = piece_vocabulary();
  MaskStore shared;
  Masks masks(compiled(grammar), vocabulary, shared);
  Matcher matcher(masks);
  for (const char c : text)
    if (!matcher.accept(static_cast<uint8_t>(c))) return false;
  return matcher.is_complete();
}

}  // namespace mc::grammar::test
