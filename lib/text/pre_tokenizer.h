// The pre-tokenizer cuts text into the words that BPE merges. It is a chain of splits by regular expression, each of
// which works on the pieces of the step before and treats matches by Hugging Face's rules. Two steps rewrite their
// pieces: ByteLevel puts a space in front, Metaspace writes spaces as marks.
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

  /// Passes the words of `text` to the sink in batches, so that a long text needs no list of all its words. Where the
  /// first step joins its pieces, there is one batch. `first`: `text` is the start of the whole input. The first error
  /// of the sink ends the split. MC4028: a pattern takes too long. Any thread.
  Result<void> split(std::string_view text, bool first, Work& work, const Sink& sink) const;
  /// Steps that match a pattern.
  size_t patterns() const { return steps_.size(); }

 private:
  struct Step {
    PreStep spec;
    std::optional<Regex> regex;  // for a split, and for a metaspace that cuts before its marks
  };
  /// The text that no step has rewritten, as a step's pattern sees it; made once for all batches.
  struct Subject {
    std::string buffer;
    std::optional<std::string_view> view;
  };
  struct Batch {
    std::vector<Span> words, next;
    std::string rewritten, other;   // a step reads one buffer and writes the other
    std::vector<Subject> subjects;  // by step
    explicit Batch(size_t steps) : subjects(steps) {}
  };
  PreTokenizer() = default;
  std::string_view subject(size_t step, std::string_view text, bool is_rewritten, Batch& batch) const;
  /// Applies the steps from `step` on to the words of `batch`, which are ranges of `text`.
  Result<std::string_view> run(size_t step, std::string_view text, bool first, Batch& batch, Work& work) const;

  std::vector<Step> steps_;
};

}  // namespace mc::text
