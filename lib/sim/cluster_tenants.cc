// Whose requests these are: quotas at the door, and what each tenant's share has paid. Prompts are paid at arrival and
// given back to those who are turned away before any work; answers are charged as they are made, which here means: up
// to now, whenever somebody asks.

#include <algorithm>

#include "sim/cluster_engine.h"

namespace mc::sim {

namespace {
constexpr double kLeastWork = 1e9;  // stretch: arrivals only order what takes the same
}

void ClusterEngine::init_tenants() {
  sched::FairOptions fair;
  if (by_least_work()) fair.stretch = kLeastWork;
  if (options_.hold_order == HoldOrder::work) fair.stretch = sched::kWorkStretch;
  fair_ = sched::FairQueue(fair);
  fair_.set_tenants(options_.tenants);
  for (uint32_t r = 0; r < trace_.size(); ++r) owners_[r].tenant = fair_.find(trace_[r].tenant);
}

bool ClusterEngine::admit(uint32_t r) {
  if (r == options_.force) return true;
  charge_running();
  Owner& owner = owners_[r];
  if (fair_.admit(owner.tenant, static_cast<double>(live_[r].tokens), now_)) return false;
  owner.admitted = true;
  prioritised_ += trace_[r].priority != 0;
  return true;
}

void ClusterEngine::charge(uint32_t r, uint64_t made) {
  Owner& owner = owners_[r];
  if (!owner.admitted || made <= owner.charged) return;
  fair_.charge(owner.tenant, static_cast<double>(made - owner.charged), now_);
  owner.charged = made;
}

void ClusterEngine::charge_running() {
  if (fair_.named_count() == 0) return;
  for (Batch& batch : batches_) {
    if (batch.next_s() > now_) batch.advance(now_, done_);
    for (const Batch::Row& row : batch.running()) charge(row.request, live_[row.request].made + 1 + batch.made(row));
  }
}

// It is over: its tenant may have another one.
void ClusterEngine::settle(uint32_t r, bool rejected) {
  Owner& owner = owners_[r];
  if (!owner.admitted) return;
  if (!rejected) charge(r, std::max<uint64_t>(1, trace_[r].output_tokens));
  fair_.leave(owner.tenant);
  if (rejected && !owner.dispatched) fair_.refund(owner.tenant, static_cast<double>(trace_[r].input_tokens), now_);
  prioritised_ -= trace_[r].priority != 0;
  owner.admitted = false;
}

}  // namespace mc::sim
