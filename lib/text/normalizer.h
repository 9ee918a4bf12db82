// What a tokenizer does to text before it cuts it into words: a chain of Unicode forms, lower-casing,
// a prefix, replacements.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/regex.h"
#include "text/spec.h"

namespace mc::text {

class Normalizer {
 public:
  static Result<Normalizer> build(const TokenizerSpec& spec);

  bool empty() const { return steps_.empty(); }
  /// invalid: the result would be longer than `bytes_max`. Any thread.
  Result<std::string> apply(std::string_view text, size_t bytes_max) const;

 private:
  struct Step {
    NormalizerStep spec;
    std::optional<Regex> regex;
  };
  std::vector<Step> steps_;
};

}  // namespace mc::text
