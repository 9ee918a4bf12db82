// Decode nodes, and coupled ones, which compute prompts between or beside the steps of their batch.

#include <algorithm>

#include "base/assert.h"
#include "sim/cluster_engine.h"

namespace mc::sim {

void ClusterEngine::schedule(uint32_t index) {
  const Batch& batch = batches_[index];
  if (batch.next_s() < Batch::kNever) at(batch.next_s(), Kind::batch, index, batch.plan());
}

// The second look (arXiv:2407.00079, 7): the load may have changed since the request was admitted.
void ClusterEngine::arrive_at_decode(uint32_t r) {
  Live& live = live_[r];
  Batch& batch = batches_[live.decode];
  if (batch.next_s() <= now_) batch_event(live.decode);
  batch.advance(now_, done_);
  const double rows = static_cast<double>(batch.rows() + batch.waiting() + 1);
  const double context = static_cast<double>(batch.context() + batch.waiting_context() + live.tokens);
  const bool slow = options_.sched.tbt_slo_s > 0 && profile_.step_s(rows, context) > options_.sched.tbt_slo_s;
  const bool full = context > static_cast<double>(profile_.kv_capacity_tokens);
  if (options_.sched.admission->checks_again && attempt_[r] == 1 && r != options_.force && (slow || full))
    return reject(r, Fate::rejected_after);
  uncommit(r);
  live.decoding = true;
  run_.requests[r].handoff_s = now_ - live.prefill_end_s;
  const uint32_t plan = batch.plan();
  batch.add(now_, r, live.tokens + 1, steps_left(r), live.prefill_end_s);
  if (batch.plan() != plan) schedule(live.decode);
}

void ClusterEngine::batch_event(uint32_t index) {
  Batch& batch = batches_[index];
  std::vector<Batch::Done> done;
  batch.advance(now_, done);
  for (const Batch::Done& d : done) finish(d.request, d.at_s);
  if (coupled()) {
    if (nodes_[index].running == UINT32_MAX) return coupled_begin(index);
    batch.hold(now_);
    return coupled_chunk_done(index);
  }
  schedule(index);
  bind_held();
}

void ClusterEngine::finish(uint32_t r, double at_s) {
  Live& live = live_[r];
  RequestRecord& record = run_.requests[r];
  if (live.decoding) {
    const bool waited = options_.sched.first_with_second && !coupled();
    const Gaps gaps = batches_[live.decode].history().take_gaps(r, live.gap_s, waited);
    record.tbt_s = gaps.longest_s, record.heard_tbt_s = gaps.heard_s;
    record.mean_gap_s = gaps.count > 0 ? gaps.total_s / static_cast<double>(gaps.count) : 0;
    lengths_.observe_seconds(gaps.total_s + gaps.first_s);
    if (waited) record_ttft(r, live.first_token_s + gaps.first_s);
  }
  settle(r, false);
  lengths_.observe(static_cast<uint32_t>(trace_[r].output_tokens));
  record.fate = Fate::served;
  record.end_s = at_s;
  ++over_;
  if (!is_good(record, options_)) miss(r);
  leave(r);
  live.decoding = false;
}

// ---- coupled nodes ---------------------------------------------------------------------------

// Something waits to be computed. The batch is stopped at its next boundary, where coupled_begin decides.
void ClusterEngine::coupled_pump(uint32_t index) {
  Node& node = nodes_[index];
  Batch& batch = batches_[index];
  if (!node.up || node.running != UINT32_MAX) return;
  if (batch.rows() == 0) return coupled_begin(index);
  if (batch.next_s() <= now_) return;  // its event comes
  batch.advance(now_, done_);
  batch.step_singly(true);
  batch.stop_at_boundary();
  schedule(index);
}

// At a boundary: what the next pass computes.
void ClusterEngine::coupled_begin(uint32_t index) {
  Node& node = nodes_[index];
  Batch& batch = batches_[index];
  if (node.running == UINT32_MAX && !node.queue.empty()) {
    const uint32_t r = node.queue.front();
    const uint64_t room = profile_.kv_capacity_tokens;
    const bool fits =
        batch.rows() + batch.waiting() == 0 || batch.context() + batch.waiting_context() + live_[r].tokens < room;
    if (fits) {
      node.queue.pop_front();
      node.queued_s = node.queue.empty() ? 0 : std::max(0.0, node.queued_s - live_[r].estimate_s);
      node.running = r;
      Live& live = live_[r];
      live.computing = true;
      live.started_s = now_;
      live.work_s = profile_.prefill_s(static_cast<double>(live.tokens), static_cast<double>(live.reused));
      run_.requests[r].queue_s = now_ - live.arrived_s;
      run_.requests[r].prefill_s += live.work_s;
      run_.prefill_busy_s += live.work_s;
      node.running_end_s = now_ + live.work_s;
      node.chunk_begin = node.chunk_end = live.reused;
    }
  }
  if (node.running == UINT32_MAX) {
    batch.step_singly(false);
    if (batch.held()) batch.release(now_);
    return schedule(index);
  }
  const Live& live = live_[node.running];
  if (!batch.held()) batch.hold(now_);
  if (options_.coupled_way == CoupledWay::prefill_first) {
    at(now_ + live.work_s, Kind::chunk, index, ++node.version);
    return;
  }
  // One pass over the batch and a chunk of the prompt.
  node.chunk_begin = node.chunk_end;
  node.chunk_end = std::min<uint64_t>(live.tokens, node.chunk_begin + options_.coupled_chunk_tokens);
  const double begin = static_cast<double>(node.chunk_begin), end = static_cast<double>(node.chunk_end);
  const double rows = static_cast<double>(batch.rows() + batch.waiting());
  const double context = static_cast<double>(batch.context() + batch.waiting_context());
  const double first_s = node.chunk_begin == live.reused ? profile_.fixed_s() : 0;
  const double pass_s = first_s + profile_.mixed_step_s(rows, context, begin, end);
  if (rows == 0) {
    at(now_ + pass_s, Kind::chunk, index, ++node.version);
    return;
  }
  batch.lengthen_next(std::max(0.0, pass_s - profile_.step_s(rows, context)));
  batch.step_singly(true);
  batch.release(now_);
  schedule(index);
}

void ClusterEngine::coupled_chunk_done(uint32_t index) {
  Node& node = nodes_[index];
  Batch& batch = batches_[index];
  const uint32_t r = node.running;
  Live& live = live_[r];
  if (options_.coupled_way == CoupledWay::prefill_first) node.chunk_end = live.tokens;
  if (node.chunk_end < live.tokens) return coupled_begin(index);
  first_token(r);
  node.running = UINT32_MAX;
  if (steps_left(r) == 0) {
    finish(r, now_);
  } else {
    uncommit(r);
    live.decoding = true;
    batch.add(now_, r, live.tokens + 1, steps_left(r), live.prefill_end_s);
  }
  coupled_begin(index);
}

}  // namespace mc::sim
