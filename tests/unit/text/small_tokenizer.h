// A byte-level tokenizer in the tests' hands: the 256 bytes with their values as ids, then one token a
// merge from id 256 on, then the added tokens.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "test.h"
#include "text/byte_level.h"
#include "text/text.h"

namespace mc::test {

inline Json byte_level_step(bool use_regex) {
  return Json::object(
      {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", use_regex}});
}

/// `merges` in bytes, e.g. {{"t", "h"}, {"th", "e"}}; both parts must be bytes or earlier results.
inline Json small_tokenizer_json(const std::vector<std::pair<std::string, std::string>>& merges = {},
                                 const std::vector<text::AddedToken>& added = {}) {
  Json vocab = Json::object(), merge_list = Json::array(), added_list = Json::array();
  for (int byte = 0; byte < 256; ++byte) vocab.set(text::spell_bytes(std::string(1, static_cast<char>(byte))), byte);
  int next = 256;
  for (const auto& [left, right] : merges) {
    if (const std::string result = text::spell_bytes(left + right); !vocab.has(result)) vocab.set(result, next++);
    merge_list.push(Json::array({text::spell_bytes(left), text::spell_bytes(right)}));
  }
  for (const auto& token : added) {
    const Json* known = vocab.find(token.content);
    added_list.push(Json::object({{"id", known ? known->as_int() : next++},
                                  {"content", token.content},
                                  {"special", token.special},
                                  {"single_word", token.single_word},
                                  {"lstrip", token.lstrip},
                                  {"rstrip", token.rstrip},
                                  {"normalized", token.normalized}}));
  }
  return Json::object(
      {{"version", "1.0"},
       {"added_tokens", std::move(added_list)},
       {"normalizer", nullptr},
       {"pre_tokenizer", byte_level_step(true)},
       {"post_processor", nullptr},
       {"decoder", Json::object({{"type", "ByteLevel"}})},
       {"model", Json::object({{"type", "BPE"}, {"vocab", std::move(vocab)}, {"merges", std::move(merge_list)}})}});
}

inline text::Tokenizer small_tokenizer(const std::vector<std::pair<std::string, std::string>>& merges = {},
                                       const std::vector<text::AddedToken>& added = {}) {
  auto opened = text::Tokenizer::parse({.tokenizer = small_tokenizer_json(merges, added).dump()});
  REQUIRE_OK(opened);
  return std::move(*opened);
}

}  // namespace mc::test
