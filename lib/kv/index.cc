#include "kv/index.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <utility>

#include "base/assert.h"

namespace mc::kv {

namespace {

// Compares ids without a call of memcmp, because a walk through a prompt compares once a block.
bool same(const BlockHash& a, const BlockHash& b) {
  uint64_t x[2], y[2];
  std::memcpy(x, a.bytes.data(), sizeof x);
  std::memcpy(y, b.bytes.data(), sizeof y);
  return ((x[0] ^ y[0]) | (x[1] ^ y[1])) == 0;
}

}  // namespace

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
  alter_all([node](Holders& holders) { std::erase_if(holders, [&](const Holder& h) { return h.node == node; }); });
  resident_count_ -= nodes_[node].resident_count;
  nodes_[node] = Node{};
  ordinals_.erase(name);
}

// -- the table of blocks ------------------------------------------------------------------------------

// The ids are cryptographic hashes, so a few of their bits suffice. The multiplication also spreads the small ids of
// tests and traces.
size_t PrefixIndex::home(const BlockHash& hash) const {
  return static_cast<size_t>((Id128Hash{}(hash)*0x9e3779b97f4a7c15) >> 20) & (slots_.size() - 1);
}

// Neighbours lie in the order of their homes, so the walk for a block that is not there ends at the first one whose
// home is behind that of the block: after about three slots of a full table, not at the next empty one, the thirteenth.
size_t PrefixIndex::place_of(const BlockHash& hash) const {
  const size_t mask = slots_.size() - 1, begin = home(hash);
  for (size_t i = begin;; i = (i + 1) & mask) {
    const Slot& slot = slots_[i];
    if (slot.set == kNoSet || same(slot.hash, hash)) return i;
    if (((i - home(slot.hash)) & mask) < ((i - begin) & mask)) return i;
  }
}

// Nearly every block that a walk looks for is there, so only each fourth slot is asked for its home, which costs more
// than the comparison of two ids.
PrefixIndex::Slot* PrefixIndex::find(const BlockHash& hash) {
  const size_t mask = slots_.size() - 1, begin = home(hash);
  for (size_t i = begin;;) {
    size_t last = i;
    for (int slots = 0; slots < 4; ++slots, i = (i + 1) & mask) {
      Slot& slot = slots_[last = i];
      if (slot.set == kNoSet) return nullptr;
      if (same(slot.hash, hash)) return &slot;
    }
    if (((last - home(slots_[last].hash)) & mask) < ((last - begin) & mask)) return nullptr;
  }
}

// The slot of a new block is returned with kNoSet, and the caller gives it a set or erases it.
PrefixIndex::Slot& PrefixIndex::find_or_insert(const BlockHash& hash) {
  if ((block_count_ + 1) * 5 > slots_.size() * 4) grow();
  const size_t at = place_of(hash), mask = slots_.size() - 1;
  if (slots_[at].set != kNoSet && same(slots_[at].hash, hash)) return slots_[at];
  size_t end = at;
  while (slots_[end].set != kNoSet) end = (end + 1) & mask;
  for (; end != at; end = (end - 1) & mask) slots_[end] = slots_[(end - 1) & mask];
  slots_[at] = Slot{.hash = hash};
  ++block_count_;
  return slots_[at];
}

void PrefixIndex::grow() {
  const std::vector<Slot> smaller = std::exchange(slots_, std::vector<Slot>(slots_.size() * 2));
  block_count_ = 0;
  for (const Slot& slot : smaller)
    if (slot.set != kNoSet) find_or_insert(slot.hash).set = slot.set;
}

// Closes the gap: the entries behind it move up, as far as the first one that is at home.
void PrefixIndex::erase(Slot* slot) {
  const size_t mask = slots_.size() - 1;
  size_t gap = static_cast<size_t>(slot - slots_.data());
  for (size_t next = (gap + 1) & mask; slots_[next].set != kNoSet && home(slots_[next].hash) != next;
       gap = next, next = (next + 1) & mask)
    slots_[gap] = slots_[next];
  slots_[gap] = Slot{};
  --block_count_;
}

// -- the sets of holders ------------------------------------------------------------------------------

PrefixIndex::SetId PrefixIndex::intern(Holders&& holders) {
  uint64_t hash = holders.size();
  for (const Holder& h : holders) {
    hash = (hash ^ (uint64_t{h.node} << 40 | uint64_t{h.tier} << 32 | h.pending)) * 0x9e3779b97f4a7c15;
    hash ^= hash >> 29;
  }
  SetId* bucket = &buckets_[hash & (buckets_.size() - 1)];
  for (SetId set = *bucket; set != kNoSet; set = sets_[set].next)
    if (sets_[set].hash == hash && sets_[set].holders == holders) return ++sets_[set].blocks, set;
  if (++set_count_ > buckets_.size()) {
    std::vector<SetId> larger(buckets_.size() * 2, kNoSet);
    for (SetId head : buckets_)
      for (SetId set = head, next; set != kNoSet; set = next) {
        next = sets_[set].next;
        SetId& to = larger[sets_[set].hash & (larger.size() - 1)];
        sets_[set].next = to;
        to = set;
      }
    buckets_ = std::move(larger);
    bucket = &buckets_[hash & (buckets_.size() - 1)];
  }
  SetId set = free_set_;
  if (set != kNoSet) {
    free_set_ = sets_[set].next;
  } else {
    set = static_cast<SetId>(sets_.size());
    sets_.emplace_back();
  }
  sets_[set].holders.assign(holders.begin(), holders.end());
  sets_[set].blocks = 1, sets_[set].hash = hash, sets_[set].next = *bucket;
  *bucket = set;
  return set;
}

void PrefixIndex::release(SetId set) {
  if (--sets_[set].blocks > 0) return;
  SetId* link = &buckets_[sets_[set].hash & (buckets_.size() - 1)];
  while (*link != set) link = &sets_[*link].next;
  *link = sets_[set].next;
  sets_[set] = Set{.next = free_set_};
  free_set_ = set;
  --set_count_;
}

PrefixIndex::Holder& PrefixIndex::holder_in(Holders& holders, NodeOrdinal node) {
  auto it = std::lower_bound(holders.begin(), holders.end(), node,
                             [](const Holder& h, NodeOrdinal value) { return h.node < value; });
  if (it == holders.end() || it->node != node) it = holders.insert(it, Holder{.node = node});
  return *it;
}

template <class Change>
void PrefixIndex::alter(const BlockHash& hash, Change change) {
  Slot& slot = find_or_insert(hash);
  const SetId before = slot.set;
  scratch_.assign(sets_[before].holders.begin(), sets_[before].holders.end());
  change(scratch_);
  if (scratch_.empty()) {
    if (before != kNoSet) release(before);
    return erase(&slot);
  }
  slot.set = intern(std::move(scratch_));
  if (before != kNoSet) release(before);
}

// Changes each set once, however many blocks name it. Blocks without holders are erased in a second pass, because
// closing gaps moves slots.
template <class Change>
void PrefixIndex::alter_all(Change change) {
  constexpr SetId kUnknown = UINT32_MAX;
  std::vector<SetId> after(sets_.size(), kUnknown);
  std::vector<BlockHash> empty;
  for (Slot& slot : slots_) {
    if (slot.set == kNoSet) continue;
    const SetId before = slot.set;
    SetId& known = after[before];
    if (known == kUnknown) {
      scratch_ = sets_[before].holders;
      change(scratch_);
      if (scratch_ == sets_[before].holders)
        known = before;
      else
        known = scratch_.empty() ? kNoSet : intern(std::move(scratch_));
      if (known != before && known != kNoSet) --sets_[known].blocks;  // the loop below counts the blocks again
    }
    if (known == before) continue;
    if (known == kNoSet) {
      empty.push_back(slot.hash);
      continue;
    }
    ++sets_[known].blocks;
    slot.set = known;
    release(before);
  }
  for (const BlockHash& hash : empty) {
    Slot* slot = find(hash);
    release(slot->set);
    erase(slot);
  }
}

void PrefixIndex::store(NodeOrdinal node, const BlockHash& hash, Tier tier) {
  if (is_full(node) && !holds(node, hash)) return;
  alter(hash, [&](Holders& holders) {
    Holder& holder = holder_in(holders, node);
    if (holder.tier == kAbsent) ++nodes_[node].resident_count, ++resident_count_;
    holder.tier = static_cast<uint8_t>(tier);
  });
}

void PrefixIndex::drop(NodeOrdinal node, const BlockHash& hash) {
  alter(hash, [&](Holders& holders) {
    for (auto it = holders.begin(); it != holders.end(); ++it) {
      if (it->node != node) continue;
      if (it->tier != kAbsent) --nodes_[node].resident_count, --resident_count_;
      it->tier = kAbsent;
      if (it->pending == 0) holders.erase(it);
      return;
    }
  });
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
  alter_all([node](Holders& holders) {
    for (Holder& h : holders)
      if (h.node == node) h.tier = kAbsent;
    std::erase_if(holders, [node](const Holder& h) { return h.node == node && h.pending == 0; });
  });
  resident_count_ -= std::exchange(n.resident_count, 0);
  n.seq = seq;
  n.needs_snapshot = false;
  for (const ResidentBlock& block : blocks) store(node, block.hash, block.tier);
}

void PrefixIndex::add_pending(NodeOrdinal node, std::span<const BlockHash> hashes) {
  at(node);
  for (const BlockHash& hash : hashes)
    alter(hash, [&](Holders& holders) {
      Holder& holder = holder_in(holders, node);
      MC_ASSERT_LT(holder.pending, UINT32_MAX);
      ++holder.pending;
    });
}

void PrefixIndex::settle_pending(NodeOrdinal node, std::span<const BlockHash> hashes) {
  for (const BlockHash& hash : hashes)
    alter(hash, [&](Holders& holders) {
      // An absent holder is no error, because the node may have left and come back empty.
      for (auto it = holders.begin(); it != holders.end(); ++it) {
        if (it->node != node || it->pending == 0) continue;
        if (--it->pending == 0 && it->tier == kAbsent) holders.erase(it);
        return;
      }
    });
}

// -- matching -----------------------------------------------------------------------------------------

// Adds `blocks` blocks that have equal holders: every node that is alive has all of them.
void PrefixIndex::advance(std::vector<NodeMatch>& out, const std::vector<Alive>& alive, uint32_t blocks) {
  for (const Alive& a : alive) {
    NodeMatch& m = out[a.at];
    if (a.tier != kAbsent && m.resident == m.expected) {
      m.resident += blocks;
      m.on_device += a.tier == static_cast<uint8_t>(Tier::device) ? blocks : 0;
      m.on_disk += a.tier == static_cast<uint8_t>(Tier::disk) ? blocks : 0;
    }
    m.expected += blocks;
  }
}

// The walk begins with all holders of a chain's first `blocks` blocks. Often these are all nodes (a system prompt), and
// few of them hold more.
void PrefixIndex::begin(const Holders& holders, uint32_t blocks, std::vector<NodeMatch>& out) {
  constexpr size_t kKinds = 4;  // entries are copies of one of four, which costs half of what comparing the tier does
  static_assert(static_cast<size_t>(Tier::disk) < kKinds - 1 && kAbsent % kKinds == kKinds - 1);
  std::array<NodeMatch, kKinds> kinds;
  for (NodeMatch& kind : kinds) kind.resident = kind.expected = blocks;
  kinds[static_cast<size_t>(Tier::device)].on_device = blocks;
  kinds[static_cast<size_t>(Tier::disk)].on_disk = blocks;
  kinds[kAbsent % kKinds].resident = 0;
  out.resize(holders.size());  // the loop below overwrites the entries of the last walk
  for (size_t i = 0; i < holders.size(); ++i) {
    out[i] = kinds[holders[i].tier % kKinds];
    out[i].node = holders[i].node;
  }
}

// Makes alive the nodes that hold the first block and the next one too. Both lists are sorted by ordinal.
void PrefixIndex::keep_first(const Holders& first, const Holders& next) const {
  alive_.clear();
  const auto before = [](const Holder& a, NodeOrdinal node) { return a.node < node; };
  auto from = first.begin();
  for (const Holder& h : next) {
    if (first.size() > 8 * next.size())
      from = std::lower_bound(from, first.end(), h.node, before);
    else
      while (from != first.end() && from->node < h.node) ++from;
    if (from == first.end()) break;
    if (from->node == h.node) alive_.push_back({static_cast<uint32_t>(from - first.begin()), h.tier});
  }
}

// Keeps the alive nodes that hold the next block. Both lists are sorted by ordinal; the longer one is searched when it
// is much longer, as after a first block that all nodes have.
void PrefixIndex::keep(const Holders& holders, const std::vector<NodeMatch>& out) const {
  size_t kept = 0;
  auto from = holders.begin();
  if (alive_.size() > 8 * holders.size()) {
    auto next = alive_.begin();
    for (const Holder& h : holders) {
      next = std::lower_bound(next, alive_.end(), h.node,
                              [&](const Alive& a, NodeOrdinal node) { return out[a.at].node < node; });
      if (next == alive_.end()) break;
      if (out[next->at].node == h.node) alive_[kept++] = {next->at, h.tier}, ++next;
    }
  } else {
    for (size_t i = 0; i < alive_.size(); ++i) {
      const uint32_t at = alive_[i].at;
      const NodeOrdinal node = out[at].node;
      if (holders.size() > 8 * alive_.size())
        from = std::lower_bound(from, holders.end(), node,
                                [](const Holder& h, NodeOrdinal value) { return h.node < value; });
      else
        while (from != holders.end() && from->node < node) ++from;
      if (from == holders.end()) break;
      if (from->node == node) alive_[kept++] = {at, from->tier};
    }
  }
  alive_.resize(kept);
}

void PrefixIndex::match(std::span<const BlockHash> hashes, std::vector<NodeMatch>& out) const {
  constexpr size_t kAhead = 16;  // slots prefetched ahead of the walk, so that their cache misses overlap
  for (size_t i = 0; i < std::min(kAhead, hashes.size()); ++i) __builtin_prefetch(&slots_[home(hashes[i])]);
  SetId before = kNoSet;
  uint32_t run = 0;
  bool first = true;  // the walk is still in the first set
  for (size_t i = 0; i < hashes.size(); ++i) {
    if (i + kAhead < hashes.size()) __builtin_prefetch(&slots_[home(hashes[i + kAhead])]);
    const Slot* slot = find(hashes[i]);
    if (slot == nullptr) break;
    if (slot->set == before) {
      ++run;
      continue;
    }
    const Holders& holders = sets_[slot->set].holders;
    if (first && run > 0) {
      begin(sets_[before].holders, run, out);
      keep_first(sets_[before].holders, holders);
      first = false;
    } else if (!first) {
      advance(out, alive_, run);
      keep(holders, out);
    }
    if (!first && alive_.empty()) return;
    before = slot->set;
    run = 1;
  }
  if (first)
    begin(sets_[before].holders, run, out);
  else
    advance(out, alive_, run);
}

std::vector<NodeMatch> PrefixIndex::match(std::span<const BlockHash> hashes) const {
  std::vector<NodeMatch> out;
  match(hashes, out);
  return out;
}

bool add_to_run(std::vector<NodeRun>& runs, size_t runs_max, NodeOrdinal node, uint32_t block, bool on_disk) {
  const auto run =
      std::find_if(runs.begin(), runs.end(), [&](const NodeRun& r) { return r.node == node && r.end == block; });
  if (run != runs.end()) {
    ++run->end;
    run->on_disk += on_disk;
  } else if (runs.size() < runs_max) {
    runs.push_back({node, block, block + 1, on_disk});
  } else {
    return false;
  }
  return true;
}

void PrefixIndex::runs(std::span<const BlockHash> hashes, uint32_t first, size_t runs_max,
                       std::vector<NodeRun>& out) const {
  out.clear();
  for (uint32_t block = first; block < hashes.size(); ++block) {
    const Slot* slot = find(hashes[block]);
    if (slot == nullptr) return;
    bool readable = false;
    for (const Holder& h : sets_[slot->set].holders) {
      if (h.tier == kAbsent) continue;
      readable |= add_to_run(out, runs_max, h.node, block, h.tier == static_cast<uint8_t>(Tier::disk));
    }
    if (!readable) return;
  }
}

bool PrefixIndex::holds(NodeOrdinal node, const BlockHash& hash) const {
  const Slot* slot = find(hash);
  if (slot == nullptr) return false;
  for (const Holder& holder : sets_[slot->set].holders)
    if (holder.node == node) return holder.tier != kAbsent;
  return false;
}

std::vector<NodeOrdinal> PrefixIndex::holders(const BlockHash& hash) const {
  std::vector<NodeOrdinal> out;
  if (const Slot* slot = find(hash))
    for (const Holder& holder : sets_[slot->set].holders)
      if (holder.tier != kAbsent) out.push_back(holder.node);
  return out;
}

size_t PrefixIndex::memory_bytes() const {
  size_t bytes =
      slots_.capacity() * sizeof(Slot) + sets_.capacity() * sizeof(Set) + buckets_.capacity() * sizeof(SetId);
  for (const Set& set : sets_) bytes += set.holders.capacity() * sizeof(Holder);
  return bytes;
}

void PrefixIndex::check() const {
  std::vector<uint64_t> resident(nodes_.size());
  std::vector<uint32_t> named(sets_.size());
  size_t blocks = 0, sets = 0;
  for (const Slot& slot : slots_) {
    if (slot.set == kNoSet) continue;
    ++blocks;
    ++named.at(slot.set);
    MC_ASSERT(find(slot.hash) == &slot);
    for (const Holder& h : sets_[slot.set].holders) resident.at(h.node) += h.tier != kAbsent ? 1 : 0;
  }
  MC_ASSERT_EQ(blocks, block_count_);
  for (size_t i = 1; i < sets_.size(); ++i) {
    const Holders& holders = sets_[i].holders;
    MC_ASSERT_EQ(named[i], sets_[i].blocks);
    MC_ASSERT_EQ(holders.empty(), sets_[i].blocks == 0);
    sets += holders.empty() ? 0 : 1;
    for (size_t h = 0; h < holders.size(); ++h) {
      MC_ASSERT(h == 0 || holders[h - 1].node < holders[h].node);
      MC_ASSERT(holders[h].tier != kAbsent || holders[h].pending > 0);
      MC_ASSERT(nodes_.at(holders[h].node).used);
    }
  }
  MC_ASSERT_EQ(sets, set_count_);
  size_t used = 0;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    MC_ASSERT_EQ(resident[i], nodes_[i].resident_count);
    used += nodes_[i].used ? 1 : 0;
  }
  MC_ASSERT_EQ(used, ordinals_.size());
  MC_ASSERT_EQ(resident_count_, std::accumulate(resident.begin(), resident.end(), uint64_t{0}));
}

}  // namespace mc::kv
