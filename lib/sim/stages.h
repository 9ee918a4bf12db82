// The stages of a prefill node. A node alone is one stage. A group of prefill nodes is a pipeline of layer ranges, in
// which a prompt goes from stage to stage chunk by chunk (arXiv:2407.00079, 5.1).
#pragma once

#include <cstdint>
#include <vector>

#include "sched/sched.h"

namespace mc::sim {

class Stages {
 public:
  /// `count` >= 1. All stages are free.
  explicit Stages(uint32_t count) : free_s_(count), link_free_s_(count) {}

  bool is_pipeline() const { return free_s_.size() > 1; }
  /// The time from which the first stage can take the next prompt.
  double free_s() const { return free_s_.front(); }
  /// Seconds in which a node alone computes a prompt of so many tokens, of which it has the first `reused`.
  static double alone_s(const sched::Profile& profile, uint64_t reused, uint64_t tokens);
  /// A node alone computes one prompt until then.
  void set_free(double at_s) { free_s_.front() = at_s; }
  /// Computes the tokens [begin, end) of a prompt in a pipeline; the tokens before `begin` are reused. Returns the time
  /// at which the last stage is done with the last chunk.
  double compute(const sched::Profile& profile, uint64_t begin, uint64_t end, double now_s);
  /// Frees all stages.
  void reset(double now_s);

 private:
  std::vector<double> free_s_;
  std::vector<double> link_free_s_;  // the link into each stage carries the activations of one chunk at a time
};

}  // namespace mc::sim
