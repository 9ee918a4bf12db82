#include "node/order_fetch.h"

namespace mc::node {

std::vector<FetchSource> fetch_parts(const sched::Snapshot& snapshot, const sched::Candidate& candidate) {
  std::vector<FetchSource> out;
  for (const sched::FetchRun& part : sched::plan_fetch(snapshot, candidate, candidate.local_blocks).parts)
    out.push_back({snapshot.holder_names[static_cast<size_t>(part.holder)], part.first, part.end - part.first});
  return out;
}

FetchOrder order_fetch(const Members& members, const sched::Snapshot& snapshot, const sched::Candidate& chosen,
                       uint32_t first) {
  FetchOrder out;
  const sched::FetchPlan plan = sched::plan_fetch(snapshot, chosen, first);
  const uint32_t wait_ms = chosen.wait_s > 0 ? static_cast<uint32_t>(2e3 * chosen.wait_s) + 100 : 0;
  out.waits = wait_ms > 0;
  const auto member = [&](int holder) -> const Members::Node& {
    return *members.find(snapshot.holder_names[static_cast<size_t>(holder)]);
  };
  const auto add = [&](const sched::FetchRun& run) {
    const Members::Node& holder = member(run.holder);
    out.sources.push_back({holder.name, holder.instance, run.first, run.end - run.first, wait_ms});
  };
  for (const sched::FetchRun& part : plan.parts) add(part);
  for (const sched::FetchRun& spare : plan.spares) add(spare);
  for (const int holder : plan.holders()) out.slots.push_back(member(holder).slot());
  return out;
}

}  // namespace mc::node
