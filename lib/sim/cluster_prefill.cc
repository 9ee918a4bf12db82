// Prefill nodes: fetching a prefix, taking turns, computing in one piece or as a pipeline, sending KV on.

#include <algorithm>

#include "base/assert.h"
#include "sim/cluster_engine.h"

namespace mc::sim {

void ClusterEngine::send(const Parcel& parcel, uint32_t from, uint32_t to, double bytes, double cap) {
  const uint32_t id = links_.start(now_, from, to, bytes, cap);
  if (transfer_of_.size() <= id) transfer_of_.resize(id + 1);
  transfer_of_[id] = parcel;
}

void ClusterEngine::begin_fetch(uint32_t r, uint32_t holder, double bytes) {
  send({Parcel::Kind::fetch, r, attempt_[r]}, holder, live_[r].node, bytes, kUncapped);
}

void ClusterEngine::send_on(uint32_t r, double bytes, double cap) {
  const uint32_t decode = static_cast<uint32_t>(nodes_.size()) + live_[r].decode;
  send({Parcel::Kind::handoff, r, attempt_[r]}, live_[r].node, decode, bytes, cap);
}

void ClusterEngine::transfer_over(uint32_t transfer) {
  const Parcel parcel = transfer_of_[transfer];
  const uint32_t r = parcel.request;
  if (parcel.kind == Parcel::Kind::copy) return copy_over(r);
  if (attempt_[r] != parcel.attempt || !live_[r].placed) return;
  if (parcel.kind == Parcel::Kind::fetch) return part_arrived(r);
  live_[r].sent = true;
  if (live_[r].computed) hand_over(r);
}

void ClusterEngine::part_arrived(uint32_t r) {
  Live& live = live_[r];
  if (live.missing > 0 && --live.missing > 0) return;
  if (!live.computing && !live.computed) coupled() ? coupled_pump(live.node) : pump(live.node);
}

// First in, first out among those whose prefix is here, as the production machine does.
void ClusterEngine::pump(uint32_t index) {
  Node& node = nodes_[index];
  while (node.up && node.stage_free.front() <= now_) {
    const auto ready =
        std::find_if(node.queue.begin(), node.queue.end(), [&](uint32_t r) { return live_[r].missing == 0; });
    if (ready == node.queue.end()) return;
    const uint32_t r = *ready;
    node.queue.erase(ready);
    node.queued_s = node.queue.empty() ? 0 : std::max(0.0, node.queued_s - live_[r].estimate_s);
    start(index, r);
  }
}

// When the last stage is done with the last chunk (arXiv:2407.00079, 5.1); stages take the next request as they come
// free.
double ClusterEngine::pipeline(Node& node, const Live& live) {
  const double stages = static_cast<double>(node.stage_free.size());
  const double chunk_bytes =
      static_cast<double>(profile_.chunk_tokens) * static_cast<double>(profile_.activation_bytes_per_token);
  const double hop_s = profile_.net.seconds(chunk_bytes);
  double end_s = 0;
  for (uint64_t begin = live.reused; begin < live.tokens; begin += profile_.chunk_tokens) {
    const uint64_t end = std::min(live.tokens, begin + profile_.chunk_tokens);
    double work_s = profile_.chunk_s + profile_.chunk_compute_s(static_cast<double>(begin), static_cast<double>(end));
    if (begin == live.reused) work_s += profile_.fixed_s();
    double before_s = now_;
    for (double& free_s : node.stage_free) {
      free_s = std::max(free_s, before_s) + work_s / stages;
      before_s = free_s + hop_s;
      end_s = free_s;
    }
  }
  return end_s;
}

void ClusterEngine::start(uint32_t index, uint32_t r) {
  Node& node = nodes_[index];
  Live& live = live_[r];
  RequestRecord& record = run_.requests[r];
  live.computing = true;
  live.started_s = now_;
  record.queue_s = now_ - live.arrived_s;
  const double tokens = static_cast<double>(live.tokens), reused = static_cast<double>(live.reused);
  double gpu_s = 0;
  if (options_.pipeline > 1) {
    live.work_s = pipeline(node, live) - now_;
    gpu_s = profile_.prefill_s(tokens, reused);
  } else {
    live.work_s = profile_.prefill_s(tokens, reused);
    // Loading the prefix into the device hides behind computing, but for a layer (5.2).
    if (profile_.reused_s_per_token == 0 && live.reused > 0)
      live.work_s = profile_.overlapped_s(profile_.load.seconds(reused * kv_bytes_), live.work_s);
    gpu_s = live.work_s;
    node.stage_free.front() = now_ + live.work_s;
  }
  node.running_end_s = node.stage_free.front();
  record.prefill_s += gpu_s;
  run_.prefill_busy_s += gpu_s;
  if (options_.layer_wise && steps_left(r) > 0) {
    const double bytes = tokens * kv_bytes_;
    send_on(r, bytes, bytes / live.work_s);
  }
  at(now_ + live.work_s, Kind::prefill_done, r, attempt_[r]);
  if (options_.pipeline > 1 && node.stage_free.front() < now_ + live.work_s)
    at(node.stage_free.front(), Kind::pump, index);
}

void ClusterEngine::record_ttft(uint32_t r, double at_s) {
  double& ttft_s = run_.requests[r].ttft_s;
  ttft_s = at_s - live_[r].arrived_s;
  if (options_.sched.ttft_slo_s > 0 && ttft_s > options_.sched.ttft_slo_s) miss(r);
}

void ClusterEngine::first_token(uint32_t r) {
  Live& live = live_[r];
  live.computing = false, live.computed = true;
  live.prefill_end_s = now_;
  charge(r, live.made + 1);
  Node& node = nodes_[live.node];
  if (node.unfinished > 0) --node.unfinished;
  caches_.settle(live.node, blocks_.of(r));
  const bool first = attempt_[r] == 1 || live.first_token_s == 0;
  if (first || first_waits(r)) live.first_token_s = now_;
  if (first && !first_waits(r)) record_ttft(r, now_);
  if (live.lost_s > 0) live.gap_s += now_ - live.lost_s;
  const auto waiters = std::move(live.waiters);
  live.waiters.clear();
  for (const auto& [other, attempt] : waiters)
    if (attempt_[other] == attempt && live_[other].placed)
      begin_fetch(other, live.node, static_cast<double>(run_.requests[other].remote_tokens) * kv_bytes_);
}

void ClusterEngine::prefill_done(uint32_t r) {
  Live& live = live_[r];
  first_token(r);
  const uint32_t node = live.node;
  if (steps_left(r) == 0) {
    finish(r, now_);
  } else if (!options_.layer_wise) {
    send_on(r, static_cast<double>(live.tokens) * kv_bytes_, kUncapped);
  } else if (live.sent) {
    hand_over(r);
  }
  pump(node);
  bind_held();
}

// All but the tail is in the decode node's DRAM: the last layer's KV of the last chunk goes on to the device (5.2), or
// all of it.
void ClusterEngine::hand_over(uint32_t r) {
  const Live& live = live_[r];
  const uint64_t chunk = std::min(profile_.chunk_tokens, live.tokens - live.reused);
  const double layers = static_cast<double>(profile_.layers);
  const double part =
      kv_bytes_ * (options_.layer_wise ? static_cast<double>(chunk) / layers : static_cast<double>(live.tokens));
  const double sent_s = options_.layer_wise ? profile_.net.seconds(part) : profile_.net.latency_s;
  at(now_ + sent_s + profile_.load.seconds(part), Kind::arrive, r, attempt_[r]);
}

}  // namespace mc::sim
