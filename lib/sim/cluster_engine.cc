// The clock of a simulated cluster: events in order of time, arrivals between them, failures, samples.

#include "sim/cluster_engine.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "base/assert.h"

namespace mc::sim {
namespace {
constexpr uint16_t kAttemptsMax = 4;
}  // namespace

ClusterEngine::ClusterEngine(const std::vector<TraceRequest>& trace, const TraceBlocks& blocks,
                             const ClusterOptions& options)
    : trace_(trace),
      blocks_(blocks),
      options_(options),
      profile_(*options.profile),
      rng_(options.seed),
      kv_bytes_(static_cast<double>(options.profile->kv_bytes_per_token)),
      live_(trace.size()),
      attempt_(trace.size()),
      nodes_(options.shape.coupled > 0 ? options.shape.coupled
                                       : (options.shape.prefill + options.pipeline - 1) / options.pipeline),
      decodes_(options.shape.coupled > 0 ? options.shape.coupled : options.shape.decode),
      caches_(static_cast<uint32_t>(nodes_.size()), options.dram_blocks, options.ssd_blocks, blocks.unique()),
      links_(nodes_.size() + decodes_.size(), options.profile->net.bytes_per_s),
      owners_(trace.size()),
      resident_(nodes_.size()),
      readable_(nodes_.size()),
      popularity_(options.replicate),
      sampler_(options, blocks, nodes_.size()) {
  MC_ASSERT(options.policy != nullptr && options.pipeline > 0 && !nodes_.empty() && !decodes_.empty());
  MC_ASSERT_EQ(trace.size(), blocks.size());
  run_.requests.resize(trace.size());
  for (size_t i = 0; i < decodes_.size(); ++i)
    batches_.emplace_back(options.profile, options.profile->kv_capacity_tokens,
                          Rng(options.seed).fork("steps").next() + i);
  for (Node& node : nodes_) node.stage_free.resize(options.pipeline);
  init_snapshot();
  init_tenants();
}

void ClusterEngine::at(double when_s, Kind kind, uint32_t a, uint32_t b) {
  events_.push_back({std::max(when_s, now_), ++order_, kind, a, b});
  std::push_heap(events_.begin(), events_.end(), std::greater<>());
}

ClusterRun ClusterEngine::run() {
  for (uint32_t i = 0; i < options_.failures.size(); ++i) {
    at(options_.failures[i].at_s, Kind::fail, i);
    if (options_.failures[i].back_s < Batch::kNever) at(options_.failures[i].back_s, Kind::back, i);
  }
  const auto arrival_s = [&](size_t r) {
    return r < trace_.size() ? trace_[r].timestamp_ms / 1000 / options_.speedup : Batch::kNever;
  };
  uint32_t next = 0;
  const auto queue_s = [&](size_t node) { return queue_of(nodes_[node]); };
  for (;;) {
    const double arrival = arrival_s(next), transfer = links_.next_s();
    const double event = events_.empty() ? Batch::kNever : events_.front().at_s,
                 first = std::min({arrival, transfer, event});
    if (first == Batch::kNever || missed_ > options_.misses_max) break;
    if (options_.progress && run_.events % 4096 == 0) options_.progress(over_);
    sampler_.sample_until(first, queue_s, batches_, caches_);
    if (transfer == first) {  // what arrives at a moment is there for whom it happens to then
      now_ = transfer;
      ++run_.events;
      transfer_over(links_.finish_next());
      continue;
    }
    if (event > arrival) {
      now_ = arrival;
      arrive_request(next++);
      continue;
    }
    std::pop_heap(events_.begin(), events_.end(), std::greater<>());
    const Event e = events_.back();
    events_.pop_back();
    now_ = e.at_s;
    ++run_.events;
    handle(e);
  }
  for (const uint32_t r : std::vector<uint32_t>(held_.begin(), held_.end()))
    reject(r, Fate::rejected_decode);  // no empty cluster would admit them
  run_.span_s = trace_.empty() ? 0 : arrival_s(trace_.size() - 1);
  run_.end_s = now_;
  sampler_.move_to(run_);
  run_.moved_bytes = links_.moved_bytes();
  for (const Batch& batch : batches_) {
    run_.row_s += batch.history().row_s(), run_.decode_busy_s += batch.history().busy_s();
    run_.rows_max = std::max(run_.rows_max, batch.rows_max());
    run_.preempted += batch.preempted();
  }
  return std::move(run_);
}

void ClusterEngine::handle(const Event& e) {
  switch (e.kind) {
    case Kind::pump: return pump(e.a);
    case Kind::ssd_read:
      if (attempt_[e.a] == e.b) part_arrived(e.a);
      return;
    case Kind::prefill_done:
      if (attempt_[e.a] == e.b) prefill_done(e.a);
      return;
    case Kind::arrive:
      if (attempt_[e.a] == e.b) arrive_at_decode(e.a);
      return;
    case Kind::batch:
      if (batches_[e.a].plan() == e.b) batch_event(e.a);
      return;
    case Kind::chunk:
      if (nodes_[e.a].version == e.b) coupled_chunk_done(e.a);
      return;
    case Kind::expire: return expire(e.a);
    case Kind::fail: return fail(options_.failures[e.a]);
    case Kind::back: return come_back(options_.failures[e.a]);
  }
}

void ClusterEngine::arrive_request(uint32_t r) {
  Live& live = live_[r];
  live.arrived_s = now_;
  live.tokens = trace_[r].input_tokens;
  attempt_[r] = 1;
  run_.requests[r].attempts = 1;
  // As the live front door: what does not fit with the longest answer it may have is no work for anybody.
  if (live.tokens + std::max<uint64_t>(1, trace_[r].output_tokens) > profile_.context_tokens)
    return reject(r, Fate::rejected_length);
  if (!admit(r)) return reject(r, Fate::rejected_quota);
  if (holding()) return hold(r);
  (void)place(r, true);
}

void ClusterEngine::miss(uint32_t r) {
  missed_ += !live_[r].missed;
  live_[r].missed = true;
}

uint64_t ClusterEngine::steps_left(uint32_t r) const {
  const uint64_t made = live_[r].made + 1;  // with the token that prefill gives
  return trace_[r].output_tokens > made ? trace_[r].output_tokens - made : 0;
}

// ---- failures --------------------------------------------------------------------------------

/// The request that a node computes is over for it: the next one begins, of a pipeline when the first stage is free.
void ClusterEngine::stop_computing(uint32_t index) {
  Node& node = nodes_[index];
  if (options_.pipeline == 1) node.stage_free.front() = node.running_end_s = now_;
  at(node.stage_free.front(), Kind::pump, index);
}

void ClusterEngine::retry(uint32_t r, uint64_t more_made) {
  Live& live = live_[r];
  RequestRecord& record = run_.requests[r];
  if (live.computing) record.prefill_s += std::min(now_ - live.started_s, live.work_s) - live.work_s;
  if (live.computing && !coupled() && nodes_[live.node].up) stop_computing(live.node);
  leave(r);
  const bool unheard = first_waits(r) && more_made == 0;
  const uint64_t made = live.made + (live.computed && !unheard ? 1 : 0) + more_made;
  const double arrived_s = live.arrived_s, first_s = live.first_token_s, gap_s = live.gap_s;
  const bool missed = live.missed;
  live = Live{};
  live.arrived_s = arrived_s, live.first_token_s = first_s, live.gap_s = gap_s, live.made = made;
  live.missed = missed;
  if (made > 0) live.lost_s = now_;
  live.tokens = trace_[r].input_tokens + made;
  ++run_.retried;
  ++attempt_[r];
  if (++record.attempts > kAttemptsMax) return reject(r, Fate::rejected_node);
  if (made >= trace_[r].output_tokens && made > 0) return finish(r, now_);
  if (options_.hold && by_least_work()) return hold(r);
  (void)place(r, true);
}

void ClusterEngine::fail(const NodeFailure& failure) {
  std::vector<std::pair<uint32_t, uint64_t>> victims;
  if (failure.role != 'd') {
    Node& node = nodes_[failure.index / (coupled() ? 1 : options_.pipeline)];
    const uint32_t index = static_cast<uint32_t>(&node - nodes_.data());
    node.up = false;
    ++node.version;
    caches_.drop(index);
    end_copies_of(index);
    for (const uint32_t r : active_)
      if (live_[r].node == index && !live_[r].sent && !live_[r].decoding) victims.push_back({r, 0});
    node.queue.clear();
    node.queued_s = 0, node.running_end_s = now_, node.running = UINT32_MAX;
    std::fill(node.stage_free.begin(), node.stage_free.end(), now_);
    node.unfinished = 0;
  }
  if (failure.role != 'p') {
    decodes_[failure.index].up = false;
    Batch& batch = batches_[failure.index];
    if (batch.next_s() <= now_) batch_event(failure.index);
    batch.advance(now_, done_);
    if (batch.held()) batch.release(now_);
    batch.clear([&](uint32_t r, uint64_t made) { victims.push_back({r, made}); });
    if (!coupled())
      for (const uint32_t r : active_)
        if (live_[r].decode == failure.index && !live_[r].decoding) victims.push_back({r, 0});
  }
  std::sort(victims.begin(), victims.end());
  for (const auto& [r, made] : victims) retry(r, made);
}

void ClusterEngine::come_back(const NodeFailure& failure) {
  if (failure.role != 'd') {
    Node& node = nodes_[failure.index / (coupled() ? 1 : options_.pipeline)];
    node.up = true;
    node.up_since_s = now_;
  }
  if (failure.role != 'p') decodes_[failure.index].up = true;
  bind_held();
}

}  // namespace mc::sim
