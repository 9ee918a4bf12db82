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
// Released tokenizers take at most two steps a byte.
constexpr size_t kScanStepsBase = size_t{1} << 20, kScanStepsPerByte = 32;

/// Processor time of the thread. Time in which the process is stopped or other processes run does not count.
Duration thread_time() {
  timespec at{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &at);
  return std::chrono::seconds(at.tv_sec) + std::chrono::nanoseconds(at.tv_nsec);
}

Error stopped() {
  return {Code::cancelled, "text: tokenising was stopped"};
}

}  // namespace

Work::Work(const EncodeLimits& limits) : limits_(limits), steps_left_(kScanStepsBase) {}

void Work::add_text(size_t bytes, size_t patterns) {
  bytes_ += bytes;
  steps_left_ += kScanStepsPerByte * bytes;
  allowed_ = (kMatchingBase + kMatchingPerByte * static_cast<int64_t>(bytes_)) *
             static_cast<int64_t>(std::max<size_t>(1, patterns));
}

bool Work::may_spend(Duration next) {
  const Duration needed = spent() + next;
  if (limits_.stop && limits_.stop())
    ended_ = Code::cancelled;
  else if (needed > limits_.matching_max)
    ended_ = Code::timeout;
  return !ended_ && needed <= allowed_;
}

Error Work::match_error(size_t byte) const {
  const std::string at = "; it gave up at byte " + std::to_string(byte);
  if (ended_ == Code::cancelled) return stopped();
  if (ended_ == Code::timeout)
    return Error{Code::timeout, "text: the time for the tokenizer's patterns is used up" + at};
  return user_error(err::kPatternCost, "text: the tokenizer's pattern needs too many steps for this text" + at);
}

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
  if (limits_.stop && limits_.stop()) return stopped();
  return {};
}

}  // namespace mc::text
