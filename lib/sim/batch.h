// Continuous batching of one decode node, stepping over millions of tokens in a few events. Between two changes of
// the batch all steps form an arithmetic series, because every step adds a token to every row:
//
//   step j of a stretch = base(rows) + per_token * (K + rows * j)         sched::Profile::step_line
//
// So a stretch (sim/stretch.h) is summed in closed form. Requests join and leave at step boundaries only. A coupled
// node's prefill, or the stall of a join, is a hole: time in which the batch stands still. StepHistory
// (sim/step_history.h) keeps the past steps, from which a request's gaps are read when it ends.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "sched/profile.h"
#include "sim/step_history.h"
#include "sim/stretch.h"

namespace mc::sim {

class Batch {
 public:
  static constexpr double kNever = Stretch::kNever;

  struct Done {
    uint32_t request;
    double at_s;
  };
  struct Row {
    uint64_t last_step;  // the number of the node's step at which the row leaves
    uint32_t request;
    uint64_t first_step;
    uint64_t context;  // tokens when the row leaves
    double joined_s;
    double silent_s = 0;       // from the request's token before it joined until it joined
    double boundary_s = 0;     // the part of silent_s in which it waited for the step under way to end
    uint64_t made_before = 0;  // tokens made before it had to wait again
    bool operator>(const Row& other) const {
      return last_step != other.last_step ? last_step > other.last_step : request > other.request;
    }
  };

  /// `capacity_tokens` bounds rows' context: others wait, and the newest row has to wait again if rows outgrow it.
  /// `seed` goes to the StepHistory.
  Batch(const sched::Profile* profile, uint64_t capacity_tokens, uint64_t seed = 0)
      : profile_(profile), capacity_(capacity_tokens), history_(profile, seed) {}

  /// Adds a request with `context` tokens that will make `steps` >= 1 steps. Its client had a token at `token_s`.
  void add(double now_s, uint32_t request, uint64_t context, uint64_t steps, double token_s);
  /// Makes the steps that end by now_s. Requests whose rows ended are appended to `done`.
  void advance(double now_s, std::vector<Done>& done);
  /// When the batch next changes by itself; kNever = never.
  double next_s() const { return held_ ? kNever : stretch_.end_s(); }
  /// Number of the plan. An event that was made for another plan is stale.
  uint32_t plan() const { return plan_; }

  /// Stops the batch at a step boundary: no step begins until release(). Requires at_boundary().
  void hold(double now_s);
  void release(double now_s);
  bool held() const { return held_; }
  bool at_boundary(double now_s) const { return rows_.empty() || held_ || stretch_.begin_s() == now_s; }
  /// Lengthens the next step for all rows, for example by a prefill chunk in the same pass.
  void lengthen_next(double seconds) { extra_s_ = seconds; }
  /// Ends the stretch under way with the step under way. Call advance() first.
  void stop_at_boundary();
  /// Ends stretches after one step, so that the owner can decide at every boundary.
  void step_singly(bool on) { single_ = on; }

  uint64_t rows() const { return rows_.size(); }
  uint64_t waiting() const { return waiting_.size(); }
  uint64_t context() const { return context_; }
  uint64_t waiting_context() const { return waiting_context_; }
  /// Tokens that a running request has made, including the tokens from before it had to wait again.
  uint64_t made(const Row& row) const { return row.made_before + history_.steps() - row.first_step; }
  uint64_t context(const Row& row) const { return row.context - (row.last_step - history_.steps()); }
  const std::vector<Row>& running() const { return rows_; }
  /// Calls each(request, context, waiting since, tokens made).
  template <typename Each>
  void each_waiting(const Each& each) const {
    for (const Waiting& w : waiting_) each(w.request, w.context, w.since_s, w.made);
  }
  /// The steps made so far, and the gaps of requests that have ended.
  StepHistory& history() { return history_; }
  const StepHistory& history() const { return history_; }
  /// Removes all requests and calls each(request, tokens made).
  void clear(const std::function<void(uint32_t, uint64_t)>& each);

  /// Tokens that all rows have made since the start.
  uint64_t tokens_made() const { return tokens_made_; }
  uint64_t rows_max() const { return rows_max_; }
  uint64_t preempted() const { return preempted_; }

 private:
  struct Waiting {
    uint32_t request;
    uint64_t context, steps;
    double since_s, token_s, boundary_s;
    uint64_t made = 0;  // tokens made before it had to wait again
  };

  void begin(double now_s);
  void join(double now_s);
  void run(uint64_t count, double seconds);

  const sched::Profile* profile_;
  uint64_t capacity_;
  StepHistory history_;
  std::vector<Row> rows_;  // heap: the first leaves first
  std::deque<Waiting> waiting_;
  uint64_t context_ = 0, waiting_context_ = 0;
  Stretch stretch_;  // the one under way
  double extra_s_ = 0, held_since_s_ = 0;
  bool single_ = false, held_ = false;
  uint32_t plan_ = 0;
  uint64_t tokens_made_ = 0, rows_max_ = 0, preempted_ = 0;
};

}  // namespace mc::sim
