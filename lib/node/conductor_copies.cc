// Copies of hot prefixes ahead of demand (sched/replicate.h): ordered when a request shows that its prefix draws more
// load than the nodes that hold it should carry.

#include <algorithm>

#include "node/conductor.h"
#include "node/copies.h"

namespace mc::node {

namespace {

constexpr Duration kCopyTimeout = 20s, kPauseAfterFailure = 1s;

}  // namespace

void Conductor::consider_copy(const Request& r, const sched::Snapshot& snapshot, const sched::Candidate& chosen,
                              TimePoint now, Actions& out) {
  const sched::ReplicateOptions& options = options_.replicate;
  if (options.replicas_max == 0 || !r.submit.may_reuse() || r.attempt > 1) return;
  const uint32_t reusable = kv::reusable_blocks(snapshot.tokens, snapshot.block_tokens);
  const auto hashes = std::span(r.hashes).first(std::min<size_t>(reusable, r.hashes.size()));
  popularity_.count(hashes, sched::load_beside_prefix_s(snapshot, chosen), seconds_of(now));
  if (copying_.size() >= options.copying_max || now < copy_again_) return;
  const auto demand = popularity_.demand(hashes.first(std::min(hashes.size(), Copies::kBlocksMax)), seconds_of(now));
  if (demand.replicas <= 1) return;
  const auto coming = copies_coming(hashes, demand.blocks);
  const auto copy = sched::plan_copy(snapshot, demand, options.replicas_max, static_cast<int>(chosen.node), coming);
  if (!copy) return;
  Node& target = nodes_.at(snapshot.prefill[copy->target].name);
  Node& source = nodes_.at(snapshot.holder_names[copy->source]);
  const BlockHash& last = hashes[copy->end_block - 1];
  for (const auto& [number, other] : copying_)
    if (other.last == last) return;  // one at a time: the next request looks again
  const uint64_t bytes = (copy->end_block - copy->first_block) * snapshot.block_bytes;
  if (!popularity_.pay(static_cast<double>(bytes), seconds_of(now))) return;
  wire::CopyBlocks order;
  order.copy = ++copy_number_;
  order.ns = r.ns;
  order.hashes.assign(hashes.begin(), hashes.begin() + copy->end_block);
  order.node = source.name;
  order.instance = source.instance;
  copying_.emplace(order.copy, Copying{source.name, target.name, target.instance, last, bytes, now + kCopyTimeout});
  ++source.egress;
  changed(source);
  out.push_back(Send{target.name, target.instance, std::move(order)});
}

std::vector<uint32_t> Conductor::copies_coming(std::span<const BlockHash> hashes, uint32_t blocks) const {
  std::vector<uint32_t> out;
  if (blocks == 0 || blocks > hashes.size()) return out;
  const auto rest = hashes.subspan(blocks - 1);
  for (const auto& [number, copy] : copying_) {
    const Node* target =
        std::find(rest.begin(), rest.end(), copy.last) == rest.end() ? nullptr : find_node(copy.target);
    const int at = target ? board_.places[target->ordinal].prefill : -1;
    if (at >= 0) out.push_back(static_cast<uint32_t>(at));
  }
  return out;
}

void Conductor::end_copy(uint64_t copy, bool ok, uint32_t blocks, TimePoint now) {
  const auto at = copying_.find(copy);
  if (Node* source = find_node(at->second.source)) --source->egress, changed(*source);
  if (!ok) popularity_.refund(static_cast<double>(at->second.bytes));
  copying_.erase(at);
  ++(ok ? stats_.copies : stats_.copies_failed);
  stats_.copied_blocks += blocks;
  if (!ok) copy_again_ = now + kPauseAfterFailure;
}

void Conductor::on_copy_done(const Received& event, const wire::CopyDone& done, TimePoint now) {
  const auto at = copying_.find(done.copy);
  if (at == copying_.end() || at->second.target_instance != event.instance) return;
  end_copy(done.copy, done.reason.empty(), done.blocks, now);
}

void Conductor::end_late_copies(TimePoint now) {
  std::vector<uint64_t> late;
  for (const auto& [number, copy] : copying_)
    if (now >= copy.until) late.push_back(number);
  for (const uint64_t number : late) end_copy(number, false, 0, now);
}

void Conductor::end_copies_of(const NodeId& node, TimePoint now) {
  std::vector<uint64_t> gone;
  for (const auto& [number, copy] : copying_)
    if (copy.source == node || copy.target == node) gone.push_back(number);
  for (const uint64_t number : gone) end_copy(number, false, 0, now);
}

}  // namespace mc::node
