#include "text/work.h"

#include <algorithm>
#include <ctime>
#include <string>

#include "base/errors.h"

namespace mc::text {
namespace {

// Released tokenizers take about 30 ns a byte and pattern with PCRE2's JIT, some 300 ns without it.
constexpr Duration kMatchingBase = std::chrono::milliseconds(200);
constexpr Duration kMatchingPerByte = std::chrono::microseconds(1);
// Released ones take at most two steps a byte.
constexpr size_t kStepsBase = size_t{1} << 20, kStepsPerByte = 32;

/// Time in which the thread ran: a process that is stopped, or a busy machine, costs a text nothing.
Duration thread_time() {
  timespec at{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &at);
  return std::chrono::seconds(at.tv_sec) + std::chrono::nanoseconds(at.tv_nsec);
}

}  // namespace

Work::Work(size_t text_bytes, size_t patterns, const EncodeLimits& limits)
    : limits_(limits),
      allowed_((kMatchingBase + kMatchingPerByte * static_cast<int64_t>(text_bytes)) *
               static_cast<int64_t>(std::max<size_t>(1, patterns))),
      steps_left_(kStepsBase + kStepsPerByte * text_bytes) {}

Duration Work::spent() {
  const Duration now = thread_time();
  if (!began_) began_ = now;
  return now - *began_;
}

Work::Unmeasured::Unmeasured(Work& work) : work_(work), before_(work.spent()) {}

Work::Unmeasured::~Unmeasured() {
  *work_.began_ += work_.spent() - before_;
}

Result<void> Work::scan(size_t steps) {
  if (steps <= steps_left_) {
    steps_left_ -= steps;
    return {};
  }
  return user_error(err::kPatternCost, "text: the search for the tokenizer's added tokens needs too many steps");
}

Result<void> Work::check(size_t tokens) const {
  if (gave_up_ || tokens > limits_.tokens_max)
    return user_error(err::kContextLength, "text: more than " + std::to_string(limits_.tokens_max) + " tokens");
  if (limits_.stop && limits_.stop()) return Error{Code::cancelled, "text: tokenising was stopped"};
  return {};
}

}  // namespace mc::text
