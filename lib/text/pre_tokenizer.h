// Cuts text into the words that BPE works on: a chain of splits by regular expression, each working on
// the pieces of the one before, with Hugging Face's rules of what becomes of the matches; and the two
// steps that rewrite their pieces, a space in front (ByteLevel) and spaces as marks (Metaspace).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/regex.h"
#include "text/spec.h"
#include "text/work.h"

namespace mc::text {

class PreTokenizer {
 public:
  static Result<PreTokenizer> build(const TokenizerSpec& spec);

  /// Words, in order, as ranges of `source`.
  using Sink = std::function<Result<void>(std::string_view source, std::span<const Span> words)>;

  /// Gives out the words of `text` in batches, so that a long text needs no list of all of them; in one batch where
  /// the first step joins its pieces. `first`: nothing of the whole input stands in front of `text`. Ends at the
  /// sink's first error. MC4028: a pattern takes too long. Any thread.
  Result<void> split(std::string_view text, bool first, Work& work, const Sink& sink) const;
  /// Steps that match a pattern.
  size_t patterns() const { return steps_.size(); }

 private:
  struct Step {
    PreStep spec;
    std::optional<Regex> regex;  // of a split, and of a metaspace that cuts before its marks
  };
  struct Batch {
    std::vector<Span> words, next;
    std::string rewritten, other;  // a step reads one buffer and writes the other
  };
  PreTokenizer() = default;
  /// Takes the words of `batch`, ranges of `text`, through the steps from `step` on.
  Result<std::string_view> run(size_t step, std::string_view text, bool first, Batch& batch, Work& work) const;

  std::vector<Step> steps_;
};

}  // namespace mc::text
