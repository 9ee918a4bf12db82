#include "kv/index.h"

#include <algorithm>

#include "base/assert.h"

namespace mc::kv {

// -- nodes --------------------------------------------------------------------------------------------

PrefixIndex::Node& PrefixIndex::at(NodeOrdinal node) {
  MC_ASSERT_LT(node, nodes_.size());
  MC_ASSERT(nodes_[node].used);
  return nodes_[node];
}

NodeOrdinal PrefixIndex::add_node(const NodeId& name) {
  if (const auto known = find_node(name)) return *known;
  size_t ordinal = 0;
  while (ordinal < nodes_.size() && nodes_[ordinal].used) ++ordinal;
  MC_ASSERT_LT(ordinal, size_t{UINT16_MAX});
  if (ordinal == nodes_.size()) nodes_.emplace_back();
  nodes_[ordinal] = Node{.name = name, .used = true};
  ordinals_[name] = static_cast<NodeOrdinal>(ordinal);
  return static_cast<NodeOrdinal>(ordinal);
}

std::optional<NodeOrdinal> PrefixIndex::find_node(const NodeId& name) const {
  const auto known = ordinals_.find(name);
  return known == ordinals_.end() ? std::nullopt : std::optional(known->second);
}

const NodeId& PrefixIndex::name_of(NodeOrdinal node) const {
  return at(node).name;
}

void PrefixIndex::remove_node(const NodeId& name) {
  const auto known = find_node(name);
  if (!known) return;
  const NodeOrdinal node = *known;
  sweep([node](Holder& holder) { return holder.node == node; });
  nodes_[node] = Node{};
  ordinals_.erase(name);
}

// -- the table ----------------------------------------------------------------------------------------

// A block has few holders, nearly always fewer than a binary search would pay for.
PrefixIndex::Holder& PrefixIndex::holder_for(NodeOrdinal node, const BlockHash& hash) {
  Holders& holders = blocks_[hash];
  auto it = holders.begin();
  while (it != holders.end() && it->node < node) ++it;
  if (it == holders.end() || it->node != node) it = holders.insert(it, Holder{.node = node});
  return *it;
}

void PrefixIndex::erase_if_empty(const BlockHash& hash, NodeOrdinal node) {
  const auto block = blocks_.find(hash);
  if (block == blocks_.end()) return;
  std::erase_if(block->second, [&](const Holder& h) { return h.node == node && h.tier == kAbsent && h.pending == 0; });
  if (block->second.empty()) blocks_.erase(block);
}

void PrefixIndex::store(NodeOrdinal node, const BlockHash& hash, Tier tier) {
  Holder& holder = holder_for(node, hash);
  if (holder.tier == kAbsent) ++nodes_[node].resident_count;
  holder.tier = static_cast<uint8_t>(tier);
}

void PrefixIndex::drop(NodeOrdinal node, const BlockHash& hash) {
  Holder& holder = holder_for(node, hash);
  if (holder.tier != kAbsent) --nodes_[node].resident_count;
  holder.tier = kAbsent;
  erase_if_empty(hash, node);
}

// Applies `change` to every holder; true = take it out. The order does not matter: each holder is
// judged alone.
template <class Change>
void PrefixIndex::sweep(Change change) {
  for (auto block = blocks_.begin(); block != blocks_.end();) {
    std::erase_if(block->second, change);
    block = block->second.empty() ? blocks_.erase(block) : std::next(block);
  }
}

// -- events -------------------------------------------------------------------------------------------

PrefixIndex::Applied PrefixIndex::apply(NodeOrdinal node, std::span<const BlockEvent> events) {
  Node& n = at(node);
  for (const BlockEvent& event : events) {
    if (event.seq <= n.seq) continue;
    if (event.seq != n.seq + 1) n.needs_snapshot = true;
    if (n.needs_snapshot) break;
    n.seq = event.seq;
    event.kind == BlockEvent::Kind::stored ? store(node, event.hash, event.tier) : drop(node, event.hash);
  }
  return n.needs_snapshot ? Applied::need_snapshot : Applied::ok;
}

void PrefixIndex::replace(NodeOrdinal node, uint64_t seq, std::span<const ResidentBlock> blocks) {
  Node& n = at(node);
  sweep([node](Holder& holder) {
    if (holder.node != node) return false;
    holder.tier = kAbsent;
    return holder.pending == 0;
  });
  n.resident_count = 0;
  n.seq = seq;
  n.needs_snapshot = false;
  for (const ResidentBlock& block : blocks) store(node, block.hash, block.tier);
}

void PrefixIndex::add_pending(NodeOrdinal node, std::span<const BlockHash> hashes) {
  at(node);
  for (const BlockHash& hash : hashes) {
    Holder& holder = holder_for(node, hash);
    MC_ASSERT_LT(holder.pending, UINT16_MAX);
    ++holder.pending;
  }
}

void PrefixIndex::settle_pending(NodeOrdinal node, std::span<const BlockHash> hashes) {
  for (const BlockHash& hash : hashes) {
    const auto block = blocks_.find(hash);
    if (block == blocks_.end()) continue;  // the node went away in between and came back empty
    for (Holder& holder : block->second)
      if (holder.node == node && holder.pending > 0) --holder.pending;
    erase_if_empty(hash, node);
  }
}

// -- matching -----------------------------------------------------------------------------------------

// Both lists are sorted by ordinal, so one step is a merge: a node whose match reached this block and
// that holds it goes on, one that does not has ended. On block 0 every holder starts.
void PrefixIndex::step(const Holders& holders, uint32_t block, std::vector<NodeMatch>& alive,
                       std::vector<NodeMatch>& next, std::vector<NodeMatch>& ended) {
  auto before = alive.begin();
  for (const Holder& holder : holders) {
    NodeMatch reach{.node = holder.node};
    if (block > 0) {
      while (before != alive.end() && before->node < holder.node) ended.push_back(*before++);
      if (before == alive.end() || before->node != holder.node) continue;
      reach = *before++;
    }
    if (holder.tier != kAbsent && reach.resident == block) {
      ++reach.resident;
      reach.on_device += holder.tier == static_cast<uint8_t>(Tier::device) ? 1 : 0;
      reach.on_disk += holder.tier == static_cast<uint8_t>(Tier::disk) ? 1 : 0;
    }
    ++reach.expected;
    next.push_back(reach);
  }
  ended.insert(ended.end(), before, alive.end());
  alive.swap(next);
  next.clear();
}

std::vector<NodeMatch> PrefixIndex::match(std::span<const BlockHash> hashes) const {
  std::vector<NodeMatch> ended, alive, next;
  for (uint32_t i = 0; i < hashes.size() && (i == 0 || !alive.empty()); ++i) {
    const auto block = blocks_.find(hashes[i]);
    if (block == blocks_.end()) break;
    step(block->second, i, alive, next, ended);
  }
  ended.insert(ended.end(), alive.begin(), alive.end());
  std::sort(ended.begin(), ended.end(), [](const NodeMatch& a, const NodeMatch& b) { return a.node < b.node; });
  return ended;
}

std::optional<NodeMatch> PrefixIndex::best_holder(std::span<const BlockHash> hashes) const {
  std::optional<NodeMatch> best;
  for (const NodeMatch& candidate : match(hashes))
    if (candidate.resident > (best ? best->resident : 0)) best = candidate;
  return best;
}

bool PrefixIndex::holds(NodeOrdinal node, const BlockHash& hash) const {
  const auto block = blocks_.find(hash);
  if (block == blocks_.end()) return false;
  for (const Holder& holder : block->second)
    if (holder.node == node) return holder.tier != kAbsent;
  return false;
}

std::vector<NodeOrdinal> PrefixIndex::holders(const BlockHash& hash) const {
  std::vector<NodeOrdinal> out;
  if (const auto block = blocks_.find(hash); block != blocks_.end())
    for (const Holder& holder : block->second)
      if (holder.tier != kAbsent) out.push_back(holder.node);
  return out;
}

void PrefixIndex::check() const {
  std::vector<uint64_t> resident(nodes_.size());
  for (const auto& [hash, holders] : blocks_) {
    MC_ASSERT(!holders.empty());
    for (size_t i = 0; i < holders.size(); ++i) {
      MC_ASSERT(i == 0 || holders[i - 1].node < holders[i].node);
      MC_ASSERT(holders[i].tier != kAbsent || holders[i].pending > 0);
      MC_ASSERT(nodes_.at(holders[i].node).used);
      resident[holders[i].node] += holders[i].tier != kAbsent ? 1 : 0;
    }
  }
  size_t used = 0;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    MC_ASSERT_EQ(resident[i], nodes_[i].resident_count);
    used += nodes_[i].used ? 1 : 0;
  }
  MC_ASSERT_EQ(used, ordinals_.size());
}

}  // namespace mc::kv
