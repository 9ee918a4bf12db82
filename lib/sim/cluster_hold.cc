// Requests that wait for their turn in the queue that live conductors hold theirs in (sched/fair.h), until a prefill
// node is about to be free. Two manners: the model's own, least work first, keeps a request as long as some node could
// still compute it in time; the live one rejects it as soon as its turn is predicted to come too late.

#include <algorithm>

#include "sim/cluster_engine.h"

namespace mc::sim {

namespace {
constexpr double kEstimateAge = 1;       // seconds
constexpr uint32_t kRefusedMax = 16;     // of the held requests that decode may turn down in one round
constexpr double kExpireSlack_s = 1e-3;  // so that what is due at a moment is late by then
}  // namespace

bool ClusterEngine::holding() const {
  return options_.hold || fair_.named_count() > 0 || prioritised_ > 0 || !held_.empty();
}

// Prefill of a request with the longest match that any node has now.
double ClusterEngine::least_work(uint32_t r) {
  caches_.match(blocks_.of(r), resident_, readable_);
  const uint32_t best = *std::max_element(resident_.begin(), resident_.end());
  const uint64_t tokens = live_[r].tokens;
  const double reused = static_cast<double>(std::min<uint64_t>(best * kTraceBlockTokens, tokens - 1));
  return profile_.prefill_s(static_cast<double>(tokens), reused);
}

// Predicted seconds until its turn: the work that goes before it, spread over the nodes, after the shortest queue.
double ClusterEngine::ahead_s(uint32_t r, double work_s) const {
  double least_s = 1e9, nodes = 0;
  for (const Node& node : nodes_)
    if (node.up) least_s = std::min(least_s, queue_of(node)), ++nodes;
  sched::FairQueue::Entry entry = entry_of(r);
  entry.work_s = work_s;
  return least_s + fair_.work_before(entry, now_) / std::max(1.0, nodes);
}

/// Whether it must be served within the bound of TTFT or not at all.
bool ClusterEngine::bounded(uint32_t r) const {
  return options_.sched.ttft_slo_s > 0 && attempt_[r] == 1 && r != options_.force &&
         options_.sched.admission->name != "none";
}

bool ClusterEngine::late(uint32_t r) const {
  return bounded(r) && options_.sched.ttft_slo_s - (now_ - live_[r].arrived_s) < live_[r].estimate_s;
}

sched::FairQueue::Entry ClusterEngine::entry_of(uint32_t r) const {
  const Live& live = live_[r];
  sched::FairQueue::Entry out;
  out.id = std::to_string(r);
  out.tenant = owners_[r].tenant;
  out.priority = trace_[r].priority;
  out.tokens = static_cast<double>(live.tokens);
  out.work_s = live.estimate_s;
  if (by_least_work()) out.work_s += out.priority * sched::FairOptions{}.age_s;
  out.arrived_s = live.arrived_s;
  return out;
}

void ClusterEngine::keep_held(uint32_t r, double work_s) {
  Live& live = live_[r];
  live.estimate_s = work_s;
  live.estimated_s = now_;
  live.held = true;
  held_.insert(r);
  fair_.push(entry_of(r));
  if (options_.sched.ttft_slo_s > 0 && attempt_[r] == 1)
    at(live.arrived_s + options_.sched.ttft_slo_s - work_s + kExpireSlack_s, Kind::expire, r);
}

void ClusterEngine::hold(uint32_t r) {
  const double work_s = least_work(r);
  if (!by_least_work() && bounded(r) && !held_.empty() && ahead_s(r, work_s) + work_s > options_.sched.ttft_slo_s)
    return reject(r, Fate::rejected_prefill);
  keep_held(r, work_s);
  bind_held();
}

// Others compute prefixes, and caches forget: what a held request would take is looked at again once in a while.
void ClusterEngine::refresh_held() {
  if (!by_least_work()) return;
  for (const uint32_t r : held_) {
    Live& live = live_[r];
    if (now_ - live.estimated_s < kEstimateAge) continue;
    const double work_s = least_work(r);
    live.estimated_s = now_;
    if (work_s == live.estimate_s) continue;
    (void)fair_.erase(std::to_string(r));
    keep_held(r, work_s);
  }
}

// It is late by what it would take when that was last looked at; others may have computed its prefix meanwhile.
void ClusterEngine::give_up(uint32_t r) {
  const double work_s = by_least_work() ? least_work(r) : live_[r].estimate_s;
  if (options_.sched.ttft_slo_s - (now_ - live_[r].arrived_s) >= work_s) return keep_held(r, work_s);
  reject(r, live_[r].refused ? Fate::rejected_decode : Fate::rejected_prefill);
}

void ClusterEngine::expire(uint32_t r) {
  if (live_[r].held && late(r)) {
    (void)fair_.erase(std::to_string(r));
    held_.erase(r);
    live_[r].held = false;
    give_up(r);
  }
  bind_held();
}

// Gives nodes that are about to be free the held requests whose turn it is and that are admitted now.
void ClusterEngine::bind_held() {
  if (held_.empty()) return;
  const auto free_node = [&] {
    return std::any_of(nodes_.begin(), nodes_.end(),
                       [&](const Node& node) { return node.up && queue_of(node) <= options_.hold_lead_s; });
  };
  if (!free_node()) return;
  refresh_held();
  charge_running();
  std::vector<sched::FairQueue::Entry> stay;
  while (stay.size() < kRefusedMax && free_node()) {
    auto next = fair_.pop(now_);
    if (!next) break;
    const uint32_t r = static_cast<uint32_t>(std::stoul(next->id));
    live_[r].held = false;
    held_.erase(r);
    if (late(r)) {
      give_up(r);
      continue;
    }
    if (place(r, false)) continue;
    live_[r].held = true;
    held_.insert(r);
    stay.push_back(std::move(*next));
  }
  while (!stay.empty()) fair_.put_back(std::move(stay.back())), stay.pop_back();
}

}  // namespace mc::sim
