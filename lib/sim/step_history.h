// The past of one decode node: when its batch made its steps, kept until the requests that made them have ended. The
// gaps between a request's tokens are read from it at the request's end.
//
//   stretch   steps that form an arithmetic series (sim/batch.h)
//   hole      time in which the batch stood still before a step; the hole lengthens that step's gap
//   saved     gaps of a request that lost its place in the batch and joins it again later
//
// The wait of a request before it joins is part of its first gap. The end of that wait, which is the rest of the step
// under way when the KV arrived, is known separately: clients see it, but no placement or admission changes it, and
// the promises of TBT in the papers do not count it.
#pragma once

#include <cstdint>
#include <vector>

#include "sched/profile.h"

namespace mc::sim {

/// Steps that a request made in one piece.
struct Stay {
  uint32_t request = 0;
  uint64_t first_step = 0;  // the number of the node's step that was the request's first
  uint64_t last_step = 0;   // the number of the step after its last
  double silent_s = 0;      // from the request's token before it joined until it joined
  double boundary_s = 0;    // the part of silent_s in which it waited for the step under way to end
};

/// Gaps between the tokens of a request that has ended.
struct Gaps {
  double longest_s = 0;  // mean of the longest tenth, without the wait for a step boundary
  double heard_s = 0;    // the same with that wait
  double total_s = 0;
  uint64_t count = 0;
  double first_s = 0;  // not among the others
};

class StepHistory {
 public:
  /// `seed` is for how steps scatter, where the profile says that they do: all rows of a step see the same.
  StepHistory(const sched::Profile* profile, uint64_t seed) : profile_(profile), seed_(seed) {}

  /// The number of steps made.
  uint64_t steps() const { return steps_; }
  /// `count` steps of `rows` rows have been made in `seconds`: the first took first_s, and each of the others took
  /// growth_s more than the one before.
  void add_steps(uint64_t count, double first_s, double growth_s, uint64_t rows, double seconds);
  /// The batch stood still for so long before the next step.
  void add_hole(double seconds) { holes_.push_back({steps_, seconds}); }
  /// The request has ended; take_gaps() reads its gaps.
  void add_ended(const Stay& stay) { ended_.push_back(stay); }
  /// Keeps the gaps of a request that has to wait again.
  void save(const Stay& stay);
  /// Drops the saved gaps of all requests: nobody will join again.
  void drop_saved() { saved_.clear(); }
  /// Gaps of a request that has ended; `silence_s` (if above 0) is one more, of an earlier attempt. `without_first`
  /// keeps the first gap in first_s alone: the client got both its tokens at its end.
  Gaps take_gaps(uint32_t request, double silence_s, bool without_first = false);

  double busy_s() const { return busy_s_; }
  double row_s() const { return row_s_; }

 private:
  struct Stretch {
    uint64_t first_step, count;
    double first_s, growth_s;
  };
  struct Hole {
    uint64_t step;
    double seconds;
  };
  struct Saved {
    uint32_t request;
    double boundary_s;
    std::vector<double> gaps;
  };
  double scatter(uint64_t step) const;
  void collect(const Stay& stay, std::vector<double>& gaps) const;

  const sched::Profile* profile_;
  uint64_t seed_;
  uint64_t steps_ = 0;
  double busy_s_ = 0, row_s_ = 0;
  std::vector<Stretch> past_;
  std::vector<Hole> holes_;
  std::vector<Stay> ended_;
  std::vector<Saved> saved_;
  std::vector<double> gaps_;  // scratch
};

}  // namespace mc::sim
