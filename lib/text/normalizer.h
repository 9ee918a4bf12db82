// The normalizer of a tokenizer changes a text before it is cut into words: a chain of Unicode forms, lower-casing,
// stripping, a prefix, replacements and SentencePiece's maps. It keeps the ranges of bytes that a user wrote. Where a
// step mixes a user's characters with others (an accent on a template's letter), the whole text counts as the user's.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/added_tokens.h"
#include "text/charsmap.h"
#include "text/regex.h"
#include "text/spec.h"
#include "text/work.h"

namespace mc::text {

class Normalizer {
 public:
  static Result<Normalizer> build(const TokenizerSpec& spec);

  bool empty() const { return steps_.empty(); }
  /// The number of steps that match a pattern.
  size_t patterns() const;
  /// Applies the steps with a Work of its own, for the tokenizer's own texts.
  Result<std::string> apply(std::string_view text, size_t bytes_max) const;
  /// Applies the steps. `user` holds sorted ranges of `text` and receives those of the result. invalid: the result
  /// would be longer than `bytes_max`. MC4028: a pattern takes too long. Any thread.
  Result<std::string> apply(std::string_view text, size_t bytes_max, std::vector<UserRange>& user, Work& work) const;

 private:
  struct Step {
    NormalizerStep spec;
    std::optional<Regex> regex;
    std::optional<Charsmap> charsmap;
  };
  static Result<std::string> run(const Step& step, std::string_view text, size_t bytes_max, Work& work);
  static Result<bool> carry(const Step& step, std::string_view text, std::string_view result, size_t bytes_max,
                            std::vector<UserRange>& user, Work& work);
  std::vector<Step> steps_;
};

}  // namespace mc::text
