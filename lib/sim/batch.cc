#include "sim/batch.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"

namespace mc::sim {

void Batch::add(double now_s, uint32_t request, uint64_t context, uint64_t steps, double token_s) {
  MC_ASSERT(steps > 0 && token_s <= now_s);
  waiting_.push_back({request, context, steps, now_s, token_s, 0});
  waiting_context_ += context;
  if (held_) return;
  if (rows_.empty()) return begin(now_s);
  stop_at_boundary();
  waiting_.back().boundary_s = stretch_.end_s() - now_s;
}

void Batch::stop_at_boundary() {
  if (rows_.empty() || held_) return;
  if (stretch_.cut()) ++plan_;
}

void Batch::run(uint64_t count, double seconds) {
  const uint64_t rows = rows_.size();
  history_.add_steps(count, stretch_.first_s(), stretch_.growth_s(), rows, seconds);
  context_ += rows * count;
  tokens_made_ += rows * count;
  stretch_.take(count, seconds);
}

void Batch::advance(double now_s, std::vector<Done>& done) {
  while (!held_ && !rows_.empty()) {
    if (now_s < stretch_.end_s()) {
      const uint64_t count = std::min(stretch_.steps() - 1, stretch_.steps_within(now_s - stretch_.begin_s()));
      if (count > 0) run(count, stretch_.seconds_of(count));
      return;
    }
    const double end_s = stretch_.end_s();
    run(stretch_.steps(), end_s - stretch_.begin_s());
    while (!rows_.empty() && rows_.front().last_step == history_.steps()) {
      const Row row = rows_.front();
      std::pop_heap(rows_.begin(), rows_.end(), std::greater<>());
      rows_.pop_back();
      context_ -= row.context;
      history_.add_ended({row.request, row.first_step, row.last_step, row.silent_s, row.boundary_s});
      done.push_back({row.request, end_s});
    }
    begin(end_s);
  }
}

void Batch::join(double now_s) {
  const uint64_t steps = history_.steps();
  while (!waiting_.empty() && (rows_.empty() || context_ + waiting_.front().context + rows_.size() < capacity_)) {
    const Waiting w = waiting_.front();
    waiting_.pop_front();
    waiting_context_ -= w.context;
    context_ += w.context;
    rows_.push_back(
        {steps + w.steps, w.request, steps, w.context + w.steps, now_s, now_s - w.token_s, w.boundary_s, w.made});
    std::push_heap(rows_.begin(), rows_.end(), std::greater<>());
    extra_s_ += profile_->join_s;
  }
}

void Batch::begin(double now_s) {
  // The rows outgrew the memory: the newest one waits again, its KV stays in DRAM, and its gap grows.
  while (rows_.size() > 1 && context_ + rows_.size() > capacity_) {
    const auto newest = std::max_element(rows_.begin(), rows_.end(), [](const Row& a, const Row& b) {
      return a.first_step != b.first_step ? a.first_step < b.first_step : a.request < b.request;
    });
    const Row row = *newest;
    rows_.erase(newest);
    std::make_heap(rows_.begin(), rows_.end(), std::greater<>());
    const uint64_t steps = history_.steps(), left = row.last_step - steps, tokens = row.context - left;
    context_ -= tokens;
    ++preempted_;
    history_.save({row.request, row.first_step, steps, row.silent_s, row.boundary_s});
    const double token_s = row.first_step == steps ? row.joined_s - row.silent_s : now_s;
    waiting_.push_front({row.request, tokens, left, now_s, token_s, 0, made(row)});
    waiting_context_ += tokens;
  }
  if (preempted_ == 0 || context_ + 2 * rows_.size() < capacity_ || rows_.empty()) join(now_s);
  ++plan_;
  stretch_.clear();
  if (rows_.empty()) return;
  const sched::Profile::StepLine line = profile_->step_line(static_cast<double>(rows_.size()));
  const double first_s = line.base_s + line.s_per_kv_token * static_cast<double>(context_);
  uint64_t steps = rows_.front().last_step - history_.steps();
  if (context_ + steps * rows_.size() > capacity_ && rows_.size() > 1) {
    const uint64_t room = capacity_ > context_ ? (capacity_ - context_) / rows_.size() : 0;
    steps = std::clamp<uint64_t>(room, 1, steps);
  }
  if (!waiting_.empty() || single_ || extra_s_ > 0) steps = 1;
  stretch_.begin(now_s, steps, first_s + std::exchange(extra_s_, 0),
                 line.s_per_kv_token * static_cast<double>(rows_.size()));
  rows_max_ = std::max<uint64_t>(rows_max_, rows_.size());
}

void Batch::hold(double now_s) {
  MC_ASSERT(at_boundary(now_s));
  if (held_) return;
  held_ = true;
  held_since_s_ = now_s;
  ++plan_;
}

void Batch::release(double now_s) {
  MC_ASSERT(held_);
  held_ = false;
  if (!rows_.empty() && now_s > held_since_s_) history_.add_hole(now_s - held_since_s_);
  begin(now_s);
}

void Batch::clear(const std::function<void(uint32_t, uint64_t)>& each) {
  std::vector<Row> rows;
  rows.swap(rows_);
  std::sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) { return a.request < b.request; });
  std::deque<Waiting> waiting;
  waiting.swap(waiting_);
  context_ = waiting_context_ = 0;
  history_.drop_saved();
  stretch_.clear();
  extra_s_ = 0;
  ++plan_;
  for (const Row& row : rows) each(row.request, made(row));
  for (const Waiting& w : waiting) each(w.request, w.made);
}

}  // namespace mc::sim
