// Cuts text into the words that BPE works on: a chain of splits by regular expression, each working on
// the pieces of the one before, with Hugging Face's rules of what becomes of the matches.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/regex.h"
#include "text/spec.h"

namespace mc::text {

class PreTokenizer {
 public:
  static Result<PreTokenizer> build(const TokenizerSpec& spec);

  /// The words of `text`, in order, as ranges of `text` or, where a space had to be put in front of a
  /// word (add_prefix_space), of `rewritten`; the returned view is the one they count in. Any thread.
  Result<std::string_view> split(std::string_view text, std::string& rewritten, std::vector<Span>& words) const;

 private:
  struct Step {
    Regex regex;
    SplitBehavior behavior;
    bool invert;
  };
  PreTokenizer() = default;

  std::vector<Step> steps_;
  bool prefix_space_ = false;
  size_t steps_before_prefix_ = 0;  // the prefix is put in front of what these steps leave
};

}  // namespace mc::text
