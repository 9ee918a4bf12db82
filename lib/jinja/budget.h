// The budget of one rendering: steps, characters and depth, charged against its limits (jinja.h). A charge beyond a
// limit fails with a LimitError, so a hostile template ends soon.
#pragma once

#include <algorithm>

#include "jinja/jinja.h"

namespace mc::jinja {

class Budget {
 public:
  explicit Budget(const Limits& limits) : limits_(limits) {}
  Budget(const Budget&) = delete;
  Budget& operator=(const Budget&) = delete;

  /// Nodes visited and items walked.
  Result<void> spend(size_t steps) {
    steps_ += steps;
    if (steps_ > limits_.steps) return out_of_steps();
    return {};
  }
  /// Characters looked at.
  Result<void> read(size_t chars) {
    work_ += chars;
    if (work_ > limits_.work) return out_of_work();
    return {};
  }
  /// Characters of a new text.
  Result<void> make(size_t chars);
  /// The comparisons that the budget still allows. The caller charges what it used.
  Effort effort() const { return {limits_.work - std::min(work_, limits_.work)}; }
  Result<void> spend(const Effort& effort) { return read(effort.used); }
  /// Fails when `more` characters do not fit behind the `size` that the output has.
  Result<void> check_output(size_t size, size_t more) const {
    if (more > limits_.output - std::min(size, limits_.output)) return out_of_output();
    return {};
  }

  /// One level of expressions, statements and macro calls within each other.
  class Level {
   public:
    explicit Level(Budget& budget) : budget_(budget) { ++budget_.depth_; }
    ~Level() { --budget_.depth_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;

   private:
    Budget& budget_;
  };
  /// RecursionError: more levels than the limit.
  Result<void> check_depth() const {
    if (depth_ > limits_.depth) return too_deep();
    return {};
  }

 private:
  Error out_of_steps() const;
  Error out_of_work() const;
  Error out_of_output() const;
  Error too_deep() const;

  const Limits limits_;
  size_t steps_ = 0, work_ = 0, chars_ = 0;
  uint32_t depth_ = 0;
};

}  // namespace mc::jinja
