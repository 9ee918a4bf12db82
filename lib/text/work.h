// Bounds on the cost of turning the texts of one request into tokens, counted while it happens: processor time of the
// tokenizer's patterns, steps of the search for added tokens, tokens made. Texts come from users and tokenizer.json
// from strangers. Each bound grows with the bytes of the texts alone, so that no pair of them is worse than linear, and
// many short texts have no more than one text of their size. Between pieces of work the caller's `stop` is asked, so
// that nobody tokenises for a client that is gone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>

#include "base/clock.h"
#include "base/result.h"

namespace mc::text {

struct EncodeLimits {
  size_t tokens_max = SIZE_MAX;             // more are MC4005
  std::function<bool()> stop = {};          // asked now and then, on the caller's thread; true ends it with `cancelled`
  Duration matching_max = Duration::max();  // processor time of the patterns; more ends it with `timeout`
};

class Work {
 public:
  /// For texts that follow one another on one thread. `limits` outlives it.
  explicit Work(const EncodeLimits& limits);
  /// For one text.
  Work(size_t text_bytes, size_t patterns, const EncodeLimits& limits) : Work(limits) {
    add_text(text_bytes, patterns);
  }
  /// `patterns`: how many regular expressions each of the texts goes through.
  void add_text(size_t bytes, size_t patterns);

  /// After attempts at a match: false when the time is used up or `stop` says so. `steps`: about how many those took;
  /// the clock is read once in kStepsUnseen of them.
  bool may_match(size_t steps = kStepsPerMatch) {
    unseen_ += steps;
    if (unseen_ < kStepsUnseen) return true;
    unseen_ = 0;
    return may_spend(Duration{});
  }
  /// Whether there is time for a match that takes so long.
  bool may_spend(Duration next);
  /// Why the match at this byte was given up: MC4028, or cancelled or timeout by the limits.
  Error match_error(size_t byte) const;
  /// Processor time of this thread since the first call, without what was Unmeasured.
  Duration spent();

  /// While it lives, time counts for nothing: that of merging a long word or of a Unicode form, which the text bounds
  /// by itself. Not nested.
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
  /// The same without a word: for inner loops, whose caller will check().
  bool is_over(size_t tokens) const { return tokens > limits_.tokens_max || (limits_.stop && limits_.stop()); }
  /// As if so many tokens were there: a word that cannot fit was not even merged.
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
