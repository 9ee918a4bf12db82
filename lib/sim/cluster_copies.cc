// Copies of hot prefixes ahead of demand, ordered as live conductors order them (sched/replicate.h): when a request
// shows that its prefix draws more load than the nodes that hold it should carry. A copy is a transfer like any other,
// and its blocks are there when it ends.

#include <algorithm>
#include <cstring>

#include "kv/kv.h"
#include "sim/cluster_engine.h"

namespace mc::sim {

namespace {

// Hash of a TraceBlocks number, which stands for its whole prefix.
BlockHash hash_of(uint32_t block) {
  BlockHash out;
  std::memcpy(out.bytes.data(), &block, sizeof block);
  return out;
}

}  // namespace

void ClusterEngine::consider_copy(uint32_t r, const sched::Candidate& chosen) {
  const sched::ReplicateOptions& options = options_.replicate;
  if (options.replicas_max == 0 || attempt_[r] > 1) return;
  const std::span<const uint32_t> all = blocks_.of(r);
  const uint32_t reusable = kv::reusable_blocks(live_[r].tokens, static_cast<uint32_t>(kTraceBlockTokens));
  const std::span<const uint32_t> blocks = all.first(std::min<size_t>(reusable, all.size()));
  hashes_.clear();
  for (const uint32_t block : blocks) hashes_.push_back(hash_of(block));
  popularity_.count(hashes_, sched::load_beside_prefix_s(snapshot_, chosen), now_);
  if (copying_.size() >= options.copying_max) return;
  const std::span<const BlockHash> hashes(hashes_);
  const auto demand = popularity_.demand(hashes.first(std::min(hashes.size(), sched::kCopyBlocksMax)), now_);
  if (demand.replicas <= 1) return;
  const auto coming = copies_coming(blocks, demand.blocks);
  const auto copy = sched::plan_copy(snapshot_, demand, options.replicas_max, static_cast<int>(chosen.node), coming);
  if (!copy) return;
  const uint32_t last = blocks[copy->end_block - 1];
  for (const uint32_t other : copying_)
    if (copies_[other].last == last) return;  // one at a time: the next request looks again
  const double bytes = static_cast<double>((copy->end_block - copy->first_block) * snapshot_.block_bytes);
  if (!popularity_.pay(bytes, now_)) return;
  copying_.push_back(static_cast<uint32_t>(copies_.size()));
  copies_.push_back({r, copy->source, copy->target, copy->first_block, copy->end_block, last, bytes});
  send({Parcel::Kind::copy, copying_.back(), 0}, copy->source, copy->target, bytes, kUncapped);
}

// Nodes to which a copy of at least the first `wished` blocks is on its way.
std::vector<uint32_t> ClusterEngine::copies_coming(std::span<const uint32_t> blocks, uint32_t wished) const {
  std::vector<uint32_t> out;
  const auto rest = blocks.subspan(wished - 1);
  for (const uint32_t i : copying_)
    if (std::find(rest.begin(), rest.end(), copies_[i].last) != rest.end()) out.push_back(copies_[i].target);
  return out;
}

void ClusterEngine::copy_over(uint32_t i) {
  std::erase(copying_, i);
  const Copying& copy = copies_[i];
  if (copy.failed) return popularity_.refund(copy.bytes);
  const std::span<const uint32_t> blocks = blocks_.of(copy.request).first(copy.end_block);
  caches_.copy_in(copy.target, blocks, copy.first_block);
  for (const uint32_t block : blocks.subspan(copy.first_block)) copy_of_[{copy.target, block}] = i;
  ++run_.copies;
  run_.copied_blocks += copy.end_block - copy.first_block;
  run_.copied_bytes += copy.bytes;
}

void ClusterEngine::end_copies_of(uint32_t node) {
  for (const uint32_t i : copying_) {
    Copying& copy = copies_[i];
    copy.failed = copy.failed || copy.source == node || copy.target == node;
  }
}

// Which of the blocks that a request finds on its node came by a copy, for the first time.
void ClusterEngine::count_copied(uint32_t node, std::span<const uint32_t> blocks) {
  caches_.use_copied(node, blocks, [&](uint32_t block) {
    Copying& copy = copies_[copy_of_.at({node, block})];
    run_.copies_used += !copy.used;
    copy.used = true;
    ++run_.copied_blocks_used;
  });
}

}  // namespace mc::sim
