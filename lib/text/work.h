// Bounds on the cost of tokenising the texts of one request: processor time of the tokenizer's patterns, steps of the
// search for added tokens, tokens made. Texts and tokenizer.json are untrusted input. Each bound grows with the bytes
// of the texts alone, so no pair of file and text costs more than linear time. Many short texts have the same bound as
// one text of their total size. The caller's `stop` is called between pieces of work, so that tokenising ends when the
// client has left.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>

#include "base/clock.h"
#include "base/result.h"

namespace mc::text {

struct EncodeLimits {
  size_t tokens_max = SIZE_MAX;  // a text with more tokens fails with MC4005
  // called now and then on the caller's thread; true ends the work with `cancelled`
  std::function<bool()> stop = {};
  Duration matching_max = Duration::max();  // processor time of the patterns; work beyond it ends with `timeout`
};

class Work {
 public:
  /// Counts the cost of several texts in sequence on one thread. `limits` outlives the Work.
  explicit Work(const EncodeLimits& limits);
  /// Counts the cost of one text.
  Work(size_t text_bytes, size_t patterns, const EncodeLimits& limits) : Work(limits) {
    add_text(text_bytes, patterns);
  }
  /// Adds the bounds of one more text. `patterns`: the number of regular expressions that run over it.
  void add_text(size_t bytes, size_t patterns);

  /// Counts the steps of attempts at a match. Returns false when the time is used up or `stop` returns true. `steps`
  /// may be an estimate; the clock is read once in kStepsUnseen steps.
  bool may_match(size_t steps = kStepsPerMatch) {
    unseen_ += steps;
    if (unseen_ < kStepsUnseen) return true;
    unseen_ = 0;
    return may_spend(Duration{});
  }
  /// Whether the bound leaves the time `next` for another match.
  bool may_spend(Duration next);
  /// The reason why the match at this byte was given up: MC4028, or cancelled or timeout by the limits.
  Error match_error(size_t byte) const;
  /// Processor time of this thread since the first call, without the time of Unmeasured.
  Duration spent();

  /// Excludes time from the bound while it exists: merging a long word or a Unicode form, whose time the text's size
  /// bounds. It cannot be nested.
  class Unmeasured {
   public:
    explicit Unmeasured(Work& work);
    ~Unmeasured();
    Unmeasured(const Unmeasured&) = delete;
    Unmeasured& operator=(const Unmeasured&) = delete;

   private:
    Work& work_;
    Duration before_{};
  };

  /// MC4028 when the search for added tokens took too many steps.
  Result<void> scan(size_t steps);
  /// cancelled, or MC4005 when there are too many tokens already.
  Result<void> check(size_t tokens) const;
  /// Whether check() will fail, without an error text, for inner loops.
  bool is_over(size_t tokens) const { return tokens > limits_.tokens_max || (limits_.stop && limits_.stop()); }
  /// Makes check() fail as if there were too many tokens: a word that cannot fit was not merged.
  void give_up() { gave_up_ = true; }

 private:
  static constexpr size_t kStepsPerMatch = 32, kStepsUnseen = size_t{1} << 16;

  const EncodeLimits& limits_;
  Duration allowed_{};
  std::optional<Duration> began_;  // by the thread's clock; a short text never reads it
  size_t bytes_ = 0;               // of all texts
  size_t unseen_ = 0;              // steps of matching since the clock was read
  size_t steps_left_;              // of the search for added tokens
  bool gave_up_ = false;
  std::optional<Code> ended_;  // by the limits, in the middle of matching
};

}  // namespace mc::text
