#include "kv/index.h"

#include <algorithm>

#include "base/assert.h"

namespace mc::kv {

// -- nodes --------------------------------------------------------------------------------------------

Index::Ordinal Index::enroll(const NodeId& name) {
  if (const auto known = ordinals_.find(name); known != ordinals_.end()) return known->second;
  size_t ordinal = 0;
  while (ordinal < nodes_.size() && nodes_[ordinal].used) ++ordinal;
  MC_ASSERT_LT(ordinal, size_t{UINT16_MAX});
  if (ordinal == nodes_.size()) nodes_.emplace_back();
  nodes_[ordinal] = Node{.name = name, .used = true};
  ordinals_[name] = static_cast<Ordinal>(ordinal);
  return static_cast<Ordinal>(ordinal);
}

const Index::Node* Index::find_node(const NodeId& name) const {
  const auto known = ordinals_.find(name);
  return known == ordinals_.end() ? nullptr : &nodes_[known->second];
}

uint64_t Index::last_seq(const NodeId& node) const {
  const Node* known = find_node(node);
  return known ? known->seq : 0;
}

bool Index::needs_snapshot(const NodeId& node) const {
  const Node* known = find_node(node);
  return known && known->needs_snapshot;
}

uint64_t Index::block_count(const NodeId& node) const {
  const Node* known = find_node(node);
  return known ? known->resident_count : 0;
}

void Index::remove(const NodeId& node) {
  const auto known = ordinals_.find(node);
  if (known == ordinals_.end()) return;
  const Ordinal ordinal = known->second;
  sweep([ordinal](Holder& holder) { return holder.node == ordinal; });
  nodes_[ordinal] = Node{};
  ordinals_.erase(known);
}

// -- the table ----------------------------------------------------------------------------------------

// A block has few holders, nearly always fewer than a binary search would pay for.
const Index::Holder* Index::find_holder(const NodeId& node, const BlockHash& hash) const {
  const auto known = ordinals_.find(node);
  const auto block = blocks_.find(hash);
  if (known == ordinals_.end() || block == blocks_.end()) return nullptr;
  for (const Holder& holder : block->second)
    if (holder.node == known->second) return &holder;
  return nullptr;
}

Index::Holder& Index::holder_for(Ordinal node, const BlockHash& hash) {
  Holders& holders = blocks_[hash];
  auto it = holders.begin();
  while (it != holders.end() && it->node < node) ++it;
  if (it == holders.end() || it->node != node) it = holders.insert(it, Holder{.node = node});
  return *it;
}

void Index::erase_if_empty(const BlockHash& hash, Ordinal node) {
  const auto block = blocks_.find(hash);
  if (block == blocks_.end()) return;
  std::erase_if(block->second, [&](const Holder& h) { return h.node == node && h.tier == kAbsent && h.pending == 0; });
  if (block->second.empty()) blocks_.erase(block);
}

void Index::store(Ordinal node, const BlockHash& hash, Tier tier) {
  Holder& holder = holder_for(node, hash);
  if (holder.tier == kAbsent) ++nodes_[node].resident_count;
  holder.tier = static_cast<uint8_t>(tier);
}

void Index::drop(Ordinal node, const BlockHash& hash) {
  Holder& holder = holder_for(node, hash);
  if (holder.tier != kAbsent) --nodes_[node].resident_count;
  holder.tier = kAbsent;
  erase_if_empty(hash, node);
}

// Applies `change` to every holder; true = take it out. The order does not matter: each holder is
// judged alone.
template <class Change>
void Index::sweep(Change change) {
  for (auto block = blocks_.begin(); block != blocks_.end();) {
    std::erase_if(block->second, change);
    block = block->second.empty() ? blocks_.erase(block) : std::next(block);
  }
}

// -- events -------------------------------------------------------------------------------------------

bool Index::apply(const NodeId& node, uint64_t first_seq, std::span<const IndexEvent> events) {
  const Ordinal ordinal = enroll(node);
  Node& n = nodes_[ordinal];
  if (first_seq > n.seq + 1) n.needs_snapshot = true;
  if (n.needs_snapshot) return false;
  for (size_t i = n.seq + 1 - first_seq; i < events.size(); ++i) {
    const IndexEvent& event = events[i];
    event.stored ? store(ordinal, event.hash, event.tier) : drop(ordinal, event.hash);
    ++n.seq;
  }
  return true;
}

void Index::replace(const NodeId& node, uint64_t seq, std::span<const IndexEvent> blocks) {
  const Ordinal ordinal = enroll(node);
  sweep([ordinal](Holder& holder) {
    if (holder.node != ordinal) return false;
    holder.tier = kAbsent;
    return holder.pending == 0;
  });
  nodes_[ordinal].resident_count = 0;
  nodes_[ordinal].seq = seq;
  nodes_[ordinal].needs_snapshot = false;
  for (const IndexEvent& block : blocks)
    if (block.stored) store(ordinal, block.hash, block.tier);
}

void Index::add_pending(const NodeId& node, std::span<const BlockHash> hashes) {
  const Ordinal ordinal = enroll(node);
  for (const BlockHash& hash : hashes) {
    Holder& holder = holder_for(ordinal, hash);
    MC_ASSERT_LT(holder.pending, UINT16_MAX);
    ++holder.pending;
  }
}

void Index::settle_pending(const NodeId& node, std::span<const BlockHash> hashes) {
  const auto known = ordinals_.find(node);
  if (known == ordinals_.end()) return;  // it went away in between
  for (const BlockHash& hash : hashes) {
    const auto block = blocks_.find(hash);
    if (block == blocks_.end()) continue;
    for (Holder& holder : block->second)
      if (holder.node == known->second && holder.pending > 0) --holder.pending;
    erase_if_empty(hash, known->second);
  }
}

// -- matching -----------------------------------------------------------------------------------------

// Both lists are sorted by ordinal, so one step is a merge: a node whose match reached this block and
// that holds it goes on, one that does not has ended. On block 0 every holder starts.
void Index::step(const Holders& holders, uint32_t block, std::vector<Reach>& alive, std::vector<Reach>& ended) const {
  std::vector<Reach> next;
  next.reserve(holders.size());
  auto before = alive.begin();
  for (const Holder& holder : holders) {
    Reach reach{.node = holder.node};
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
  alive = std::move(next);
}

std::vector<NodeMatch> Index::match(std::span<const BlockHash> hashes) const {
  std::vector<Reach> ended, alive;
  for (uint32_t i = 0; i < hashes.size() && (i == 0 || !alive.empty()); ++i) {
    const auto block = blocks_.find(hashes[i]);
    if (block == blocks_.end()) break;
    step(block->second, i, alive, ended);
  }
  ended.insert(ended.end(), alive.begin(), alive.end());
  std::vector<NodeMatch> out;
  out.reserve(ended.size());
  for (const Reach& r : ended) out.push_back({nodes_[r.node].name, r.resident, r.expected, r.on_device, r.on_disk});
  std::sort(out.begin(), out.end(), [](const NodeMatch& a, const NodeMatch& b) { return a.node < b.node; });
  return out;
}

uint32_t Index::match(const NodeId& node, std::span<const BlockHash> hashes) const {
  uint32_t length = 0;
  while (length < hashes.size() && holds(node, hashes[length])) ++length;
  return length;
}

std::optional<NodeMatch> Index::best_holder(std::span<const BlockHash> hashes) const {
  std::optional<NodeMatch> best;
  for (NodeMatch& candidate : match(hashes))
    if (candidate.resident > (best ? best->resident : 0)) best = std::move(candidate);
  return best;
}

bool Index::holds(const NodeId& node, const BlockHash& hash) const {
  const Holder* holder = find_holder(node, hash);
  return holder && holder->tier != kAbsent;
}

std::vector<NodeId> Index::holders(const BlockHash& hash) const {
  std::vector<NodeId> out;
  if (const auto block = blocks_.find(hash); block != blocks_.end())
    for (const Holder& holder : block->second)
      if (holder.tier != kAbsent) out.push_back(nodes_[holder.node].name);
  std::sort(out.begin(), out.end());
  return out;
}

void Index::check() const {
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
