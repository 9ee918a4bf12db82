// Where requests go: the snapshot that policy and admission see, dispatch, and how they leave.

#include <algorithm>

#include "base/assert.h"
#include "sim/cluster_engine.h"

namespace mc::sim {

void ClusterEngine::init_snapshot() {
  snapshot_.block_tokens = kTraceBlockTokens;
  snapshot_.block_bytes = static_cast<uint64_t>(kv_bytes_ * static_cast<double>(kTraceBlockTokens));
  snapshot_.lengths = &lengths_;
  sched::Cost prefill = profile_.cost;
  prefill.prefill_s_per_token /= options_.pipeline, prefill.prefill_s_per_token2 /= options_.pipeline;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    sched::PrefillView view;
    view.name = (coupled() ? "m" : "p") + std::to_string(i);
    view.cost = prefill;
    view.holder = static_cast<int>(i);
    snapshot_.add_holder(view.name);
    snapshot_.prefill.push_back(std::move(view));
  }
  for (size_t i = 0; i < decodes_.size(); ++i) {
    sched::DecodeView view;
    view.name = (coupled() ? "m" : "d") + std::to_string(i);
    view.cost = profile_.cost;
    view.capacity_tokens = profile_.kv_capacity_tokens;
    snapshot_.decode.push_back(std::move(view));
  }
}

double ClusterEngine::queue_of(const Node& node) const {
  return std::max(0.0, node.running_end_s - now_) + node.queued_s;
}

void ClusterEngine::fill_snapshot(uint32_t r, bool idle_only) {
  const std::span<const uint32_t> blocks = blocks_.of(r);
  caches_.match(blocks, resident_, readable_);
  snapshot_.tokens = static_cast<uint32_t>(live_[r].tokens);
  snapshot_.answer_tokens = 0;  // what a request will come to is not known
  for (uint32_t i = 0; i < nodes_.size(); ++i) {
    const Node& node = nodes_[i];
    sched::PrefillView& view = snapshot_.prefill[i];
    view.queue_s = queue_of(node);
    view.unfinished = node.unfinished;
    if (coupled()) view.unfinished += static_cast<uint32_t>(batches_[i].rows() + batches_[i].waiting());
    view.resident_blocks = resident_[i];
    view.accepting = node.up && !(idle_only && view.queue_s > options_.hold_lead_s);
    view.up_s = now_ - node.up_since_s;
    sched::HolderView& holder = snapshot_.holders[i];
    holder.readable_blocks = coupled() || !node.up ? 0 : readable_[i];
    holder.pending_blocks = coupled() || !node.up ? 0 : resident_[i];
    holder.pending_s = 0;
    if (holder.pending_blocks > holder.readable_blocks) {
      const uint32_t maker = caches_.maker(blocks[holder.pending_blocks - 1]);
      const bool known = maker != UINT32_MAX && live_[maker].node == i && live_[maker].computing;
      holder.pending_s = known ? std::max(0.0, live_[maker].started_s + live_[maker].work_s - now_) : view.queue_s;
    }
    holder.transfers_leaving = links_.leaving(i);
    holder.leaving_bytes = holder.transfers_leaving > 0 ? links_.leaving_bytes(i, now_) : 0;
  }
  for (uint32_t i = 0; i < decodes_.size(); ++i) {
    Batch& batch = batches_[i];
    if (batch.next_s() > now_) batch.advance(now_, done_);
    sched::DecodeView& view = snapshot_.decode[i];
    view.accepting = decodes_[i].up;
    view.arrived_rows = static_cast<uint32_t>(batch.rows() + batch.waiting());
    view.arrived_kv_tokens = batch.context() + batch.waiting_context();
    view.rows = view.arrived_rows + static_cast<uint32_t>(decodes_[i].committed);
    view.kv_tokens = view.arrived_kv_tokens + decodes_[i].committed_tokens;
  }
  MC_ASSERT(done_.empty());  // what ends now has its event
}

// Only what looks ahead reads it, so it is not made for the others.
void ClusterEngine::fill_inflight() {
  if (inflight_at_s_ == now_) return;
  inflight_at_s_ = now_;
  snapshot_.inflight.clear();
  for (const uint32_t r : active_) {
    const Live& live = live_[r];
    if (live.decoding) continue;
    const double end_s =
        live.computing || live.computed ? live.started_s + live.work_s : live.dispatched_s + live.estimate_s;
    snapshot_.inflight.push_back({std::max(0.0, end_s - now_), live.decode, static_cast<uint32_t>(live.tokens), 1, 0});
  }
  for (uint32_t i = 0; i < batches_.size(); ++i) {
    const Batch& batch = batches_[i];
    for (const Batch::Row& row : batch.running()) {
      const uint64_t made = batch.made(row), context = batch.context(row);
      snapshot_.inflight.push_back(
          {row.joined_s - now_, i, static_cast<uint32_t>(context), static_cast<uint32_t>(made + 1), 0});
    }
    batch.each_waiting([&](uint32_t, uint64_t context, double since_s, uint64_t made) {
      snapshot_.inflight.push_back(
          {since_s - now_, i, static_cast<uint32_t>(context), static_cast<uint32_t>(made + 1), 0});
    });
  }
}

// True: dispatched or rejected. With `last_chance` a request that is not admitted is rejected; else it may stay.
bool ClusterEngine::place(uint32_t r, bool last_chance) {
  Live& live = live_[r];
  fill_snapshot(r, !last_chance);
  sched::Options options = options_.sched;
  if (options.ttft_slo_s > 0) options.ttft_slo_s = std::max(1e-9, options.ttft_slo_s - (now_ - live.arrived_s));
  const bool exempt = r == options_.force || attempt_[r] > 1;
  static const sched::Admission* const none = sched::find_admission("none");
  if (exempt) options.admission = none;
  const bool looks_ahead = options.admission->looks_ahead;
  if (looks_ahead) fill_inflight();
  sched::place(snapshot_, *options_.policy, options, rng_, placement_);
  RequestRecord& record = run_.requests[r];
  if (placement_.candidate < 0) {
    if (placement_.reason != sched::NoPlace::predicted_slo_miss) {
      if (!last_chance && placement_.reason == sched::NoPlace::no_prefill) return false;
      reject(r, Fate::rejected_node);
      return true;
    }
    const bool decode = placement_.verdict.bound != sched::Bound::ttft;
    // A better moment or node may come, as long as there is time; live conductors wait for decode alone.
    if (!last_chance && (decode || by_least_work())) {
      live.refused = live.refused || decode;
      return false;
    }
    record.predicted_ttft_s = static_cast<float>(placement_.ttft_s + now_ - live.arrived_s);
    record.predicted_tbt_s = static_cast<float>(placement_.tbt_s);
    reject(r, decode ? Fate::rejected_decode : Fate::rejected_prefill);
    return true;
  }
  if (attempt_[r] == 1) {
    record.predicted_ttft_s = static_cast<float>(placement_.ttft_s + now_ - live.arrived_s);
    record.predicted_tbt_s = static_cast<float>(placement_.tbt_s);
  }
  dispatch(r);
  return true;
}

void ClusterEngine::dispatch(uint32_t r) {
  const sched::Candidate& c = placement_.candidates[static_cast<size_t>(placement_.candidate)];
  const std::span<const uint32_t> blocks = blocks_.of(r);
  Live& live = live_[r];
  RequestRecord& record = run_.requests[r];
  inflight_at_s_ = -1;
  live.placed = true;
  owners_[r].dispatched = true;
  run_.held += attempt_[r] == 1 && now_ > live.arrived_s;
  live.node = c.node;
  live.decode = coupled() ? c.node : static_cast<uint32_t>(placement_.decode);
  live.dispatched_s = now_;
  live.estimate_s = c.prefill_s;
  record.prefill = live.node, record.decode = live.decode;
  const bool fetches = c.holder >= 0 && c.fetch_blocks > 0;
  live.used_blocks = c.local_blocks + (fetches ? c.fetch_blocks : 0);
  live.reused = sched::reused_tokens(snapshot_, live.used_blocks);
  const uint64_t local = sched::reused_tokens(snapshot_, c.local_blocks);
  const uint32_t ssd_blocks = caches_.on_ssd(c.node, blocks.first(c.local_blocks));
  record.ssd_tokens = static_cast<uint32_t>(std::min<uint64_t>(local, ssd_blocks * kTraceBlockTokens));
  record.dram_tokens = static_cast<uint32_t>(local) - record.ssd_tokens;
  record.remote_tokens = static_cast<uint32_t>(live.reused - local);
  active_.push_back(r);
  live.active_at = static_cast<uint32_t>(active_.size() - 1);
  Node& node = nodes_[c.node];
  node.queue.push_back(r);
  node.queued_s += live.estimate_s;
  ++node.unfinished;
  ++decodes_[live.decode].committed;
  decodes_[live.decode].committed_tokens += live.tokens;
  if (ssd_blocks > 0) {
    ++live.missing;
    const double bytes = static_cast<double>(record.ssd_tokens) * kv_bytes_;
    node.ssd_free_s = std::max(now_, node.ssd_free_s) + profile_.ssd_read.seconds(bytes);
    at(node.ssd_free_s, Kind::ssd_read, r, attempt_[r]);
  }
  if (fetches) {
    ++run_.fetches;
    ++live.missing;
    const uint32_t holder = static_cast<uint32_t>(c.holder);
    const uint32_t last = live.used_blocks - 1;
    const uint32_t maker = readable_[holder] > last ? UINT32_MAX : caches_.maker(blocks[last]);
    const bool waits = maker != UINT32_MAX && live_[maker].placed && live_[maker].node == holder &&
                       !live_[maker].computed && maker != r;
    if (waits)
      live_[maker].waiters.push_back({r, attempt_[r]});
    else
      begin_fetch(r, holder, static_cast<double>(live.reused - local) * kv_bytes_);
  }
  count_copied(c.node, blocks.first(c.local_blocks));
  caches_.use(c.node, blocks, r);
  if (coupled()) return coupled_pump(c.node);
  consider_copy(r, c);
  pump(c.node);
}

// ---- ends ------------------------------------------------------------------------------------

void ClusterEngine::uncommit(uint32_t r) {
  Live& live = live_[r];
  if (!live.placed || live.decoding) return;
  --decodes_[live.decode].committed;
  decodes_[live.decode].committed_tokens -= live.tokens;
}

// The request is on no node any more; what it asked of links and queues ends.
void ClusterEngine::leave(uint32_t r) {
  Live& live = live_[r];
  if (!live.placed) return;
  uncommit(r);
  inflight_at_s_ = -1;
  Node& node = nodes_[live.node];
  if (!live.computed && node.unfinished > 0) --node.unfinished;
  const auto queued = std::find(node.queue.begin(), node.queue.end(), r);
  if (queued != node.queue.end()) {
    node.queue.erase(queued);
    node.queued_s = node.queue.empty() ? 0 : std::max(0.0, node.queued_s - live.estimate_s);
  }
  if (live.active_at != UINT32_MAX) {
    active_[live.active_at] = active_.back();
    live_[active_.back()].active_at = live.active_at;
    active_.pop_back();
    live.active_at = UINT32_MAX;
  }
  const auto waiters = std::move(live.waiters);
  live.placed = false;
  for (const auto& [other, attempt] : waiters)  // what they waited for will not come: computed instead
    if (attempt_[other] == attempt) {
      Live& waiting = live_[other];
      waiting.reused =
          std::min<uint64_t>(waiting.reused, run_.requests[other].dram_tokens + run_.requests[other].ssd_tokens);
      run_.requests[other].remote_tokens = 0;
      part_arrived(other);
    }
}

void ClusterEngine::reject(uint32_t r, Fate fate) {
  if (live_[r].held) {
    (void)fair_.erase(std::to_string(r));
    held_.erase(r);
    live_[r].held = false;
  }
  settle(r, true);
  leave(r);
  run_.requests[r].fate = fate;
  run_.requests[r].end_s = now_;
  ++over_;
  miss(r);
}

}  // namespace mc::sim
