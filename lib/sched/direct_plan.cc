#include "sched/direct_plan.h"

#include <algorithm>

#include "base/assert.h"
#include "sched/fetch_plan.h"

namespace mc::sched {
namespace {

/// The index in Snapshot::holders; -1 = other nodes cannot read from the node.
int holder_of(const Snapshot& snapshot, const PrefillView& node) {
  if (node.holder >= 0) return node.holder;
  const auto at = std::find(snapshot.holder_names.begin(), snapshot.holder_names.end(), node.name);
  return at == snapshot.holder_names.end() ? -1 : static_cast<int>(at - snapshot.holder_names.begin());
}

/// Number of the part's blocks that its holder reads from disk, which are the last ones of a run.
uint32_t disk_blocks(const Snapshot& snapshot, const FetchRun& part) {
  uint32_t blocks = 0;
  const auto count = [&](const HolderRun& run) {
    const uint32_t disk_begin = run.end - std::min(run.disk_blocks, run.end - run.first);
    const uint32_t first = std::max(part.first, disk_begin), end = std::min(part.end, run.end);
    if (run.holder == part.holder && first < end) blocks += end - first;
  };
  const HolderView& holder = snapshot.holders[static_cast<size_t>(part.holder)];
  count({part.holder, 0, holder.readable_blocks, holder.disk_blocks});
  for (const HolderRun& run : snapshot.later_runs) count(run);
  return blocks;
}

}  // namespace

std::vector<DirectRun> plan_direct(const Snapshot& snapshot, const Candidate& c, size_t decode, uint32_t have,
                                   PrefixFrom from) {
  MC_ASSERT(c.node < snapshot.prefill.size() && decode < snapshot.decode.size());
  const uint32_t end = c.local_blocks + c.fetch_blocks;
  if (from == PrefixFrom::prefill || have >= end || c.wait_s > 0) return {};
  const PrefillView& prefill = snapshot.prefill[c.node];
  PrefillView reader;  // the decode node, as the planner looks at readers
  reader.name = snapshot.decode[decode].name;
  reader.holder = snapshot.decode[decode].holder;
  reader.cost = snapshot.decode[decode].cost;
  const FetchPlan fetch = plan_fetch(snapshot, c, c.local_blocks);
  const int through = holder_of(snapshot, prefill);
  FetchPlanner planner(snapshot);
  planner.leave_out(through);
  planner.count(fetch.parts);

  const double begins_s = c.ttft_s - compute_seconds(c.prefill_s, c.to_device_s);
  const bool hides_delay = std::max(c.queue_s, c.load_s) >= 2 * c.fetch_s;
  const uint32_t leaving = through < 0 ? 0 : snapshot.holders[static_cast<size_t>(through)].transfers_leaving;
  std::vector<DirectRun> out;
  for (const FetchRun& part : planner.plan(reader, have, end).parts) {
    const bool is_shared = std::any_of(fetch.parts.begin(), fetch.parts.end(),
                                       [&](const FetchRun& fetched) { return fetched.holder == part.holder; });
    const DirectRun run{part.holder, part.first, part.end, is_shared && !hides_delay};
    const uint32_t blocks = part.end - part.first;
    const double fetch_s = fetch_seconds(snapshot, reader_of(reader), part.holder, blocks, disk_blocks(snapshot, part));
    const double direct_s = kAskSeconds + fetch_s + (run.after_prefix ? begins_s : 0);
    const double bytes = static_cast<double>(blocks) * static_cast<double>(snapshot.block_bytes);
    const double through_s = through < 0 ? reader.cost.read(bytes, leaving + 1.0)
                                         : read_seconds(snapshot, reader_of(reader), through, bytes, leaving + 1.0, 0);
    const bool is_sooner = direct_s < begins_s + through_s;
    if (is_sooner || from == PrefixFrom::holders) out.push_back(run);
  }
  return out;
}

}  // namespace mc::sched
