#include "node/order_fetch.h"

#include <algorithm>

namespace mc::node {
namespace {
constexpr size_t kRunsMax = 32;  // runs behind the longest match that a decision sees
}  // namespace

void find_runs(const kv::PrefixIndex& index, std::span<const BlockHash> hashes, std::span<const kv::NodeMatch> matches,
               std::vector<kv::NodeRun>& out) {
  uint32_t longest = 0;
  for (const kv::NodeMatch& match : matches) longest = std::max(longest, match.resident);
  out.clear();
  if (longest > 0) index.runs(hashes, longest, kRunsMax, out);
}

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
  const auto add = [&](const sched::FetchRun& run) {
    const Members::Node& holder = *members.find(snapshot.holder_names[static_cast<size_t>(run.holder)]);
    out.sources.push_back({holder.name, holder.instance, run.first, run.end - run.first, wait_ms});
    return holder.slot();
  };
  for (const sched::FetchRun& part : plan.parts) {
    const int slot = add(part);
    if (std::find(out.slots.begin(), out.slots.end(), slot) == out.slots.end()) out.slots.push_back(slot);
  }
  for (const sched::FetchRun& spare : plan.spares) add(spare);
  return out;
}

}  // namespace mc::node
