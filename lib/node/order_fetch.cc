#include "node/order_fetch.h"

#include <algorithm>

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

std::vector<sched::DirectRun> direct_runs(const Members& members, const Request& r, const sched::Snapshot& snapshot,
                                          const sched::Placement& placement, std::span<const kv::NodeMatch> matches,
                                          sched::PrefixFrom from) {
  // A request that ends with its first token does not reach its decode node.
  const bool is_decoded = r.answer.size() + 1 < r.submit.stopping.max_tokens;
  if (placement.candidate < 0 || placement.is_inlined || !is_decoded || !r.may_reuse()) return {};
  const auto decode = static_cast<size_t>(placement.decode);
  const Members::Node& node = *members.find(snapshot.decode[decode].name);
  uint32_t have = 0;
  for (const kv::NodeMatch& match : matches)
    if (match.node == node.ordinal) have = match.resident;
  return sched::plan_direct(snapshot, placement.candidates[static_cast<size_t>(placement.candidate)], decode, have,
                            from);
}

FetchOrder order_direct(const Members& members, const sched::Snapshot& snapshot,
                        std::span<const sched::DirectRun> runs) {
  FetchOrder out;
  for (const sched::DirectRun& run : runs) {
    const Members::Node& holder = *members.find(snapshot.holder_names[static_cast<size_t>(run.holder)]);
    out.sources.push_back({holder.name, holder.instance, run.first, run.end - run.first, 0, run.after_prefix});
    if (std::ranges::find(out.slots, holder.slot()) == out.slots.end()) out.slots.push_back(holder.slot());
  }
  return out;
}

std::vector<FetchSource> direct_parts(const sched::Snapshot& snapshot, std::span<const sched::DirectRun> runs) {
  std::vector<FetchSource> out;
  for (const sched::DirectRun& run : runs)
    out.push_back({snapshot.holder_names[static_cast<size_t>(run.holder)], run.first, run.end - run.first});
  return out;
}

}  // namespace mc::node
