// What turning one text into tokens may cost, counted while it happens: processor time of the tokenizer's patterns,
// steps of the search for added tokens, tokens made. Texts come from users and tokenizer.json from strangers; each
// bound grows with the text alone, so that no pair of them is worse than linear. Between pieces of work the caller's
// `stop` is asked, so that nobody tokenises for a client that is gone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>

#include "base/clock.h"
#include "base/result.h"

namespace mc::text {

struct EncodeLimits {
  size_t tokens_max = SIZE_MAX;     // more are MC4005
  std::function<bool()> stop = {};  // asked now and then, on the caller's thread; true ends it with `cancelled`
};

class Work {
 public:
  /// `patterns`: how many regular expressions the text goes through. `limits` outlives it.
  Work(size_t text_bytes, size_t patterns, const EncodeLimits& limits);

  /// After each match: false when the time is used up. Reads the clock once in a while.
  bool may_match() { return ++matches_ % kMatchesUnseen != 0 || may_spend(Duration{}); }
  /// Whether there is time for a match that takes so long.
  bool may_spend(Duration next) { return spent() + next <= allowed_; }
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
  static constexpr uint32_t kMatchesUnseen = 2048;

  const EncodeLimits& limits_;
  Duration allowed_;
  std::optional<Duration> began_;  // by the thread's clock; a short text never reads it
  uint32_t matches_ = 0;
  size_t steps_left_;
  bool gave_up_ = false;
};

}  // namespace mc::text
