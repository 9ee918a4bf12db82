// Cuts text into the words that BPE works on: a chain of splits by regular expression, each working on
// the pieces of the one before, with Hugging Face's rules of what becomes of the matches; and the two
// steps that rewrite their pieces, a space in front (ByteLevel) and spaces as marks (Metaspace).
#pragma once

#include <cstdint>
#include <optional>
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

  /// The words of `text`, in order, as ranges of `text` or, where a step has rewritten it, of
  /// `rewritten`; the returned view is the one they count in. `first`: nothing of the whole input stands
  /// in front of `text`. Any thread.
  Result<std::string_view> split(std::string_view text, bool first, std::string& rewritten,
                                 std::vector<Span>& words) const;

 private:
  struct Step {
    PreStep spec;
    std::optional<Regex> regex;  // of a split, and of a metaspace that cuts before its marks
  };
  PreTokenizer() = default;

  std::vector<Step> steps_;
};

}  // namespace mc::text
