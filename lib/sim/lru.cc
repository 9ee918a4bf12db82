#include "sim/lru.h"

#include <algorithm>
#include <bit>

#include "base/assert.h"

namespace mc::sim {

Lru::Lru(uint64_t capacity) : capacity_(capacity), ring_{{kNone, 0, 0}} {
  MC_ASSERT(capacity > 0);
}

void Lru::unlink(uint32_t slot) {
  ring_[ring_[slot].newer].older = ring_[slot].older;
  ring_[ring_[slot].older].newer = ring_[slot].newer;
}

void Lru::push_newest(uint32_t slot) {
  ring_[slot].newer = 0;
  ring_[slot].older = ring_[0].older;
  ring_[ring_[slot].older].newer = slot;
  ring_[0].older = slot;
}

uint32_t Lru::use(uint32_t block) {
  const auto known = slots_.find(block);
  if (known != slots_.end()) {
    unlink(known->second);
    push_newest(known->second);
    return kNone;
  }
  uint32_t gone = kNone, slot = static_cast<uint32_t>(ring_.size());
  if (slots_.size() == capacity_) {
    slot = ring_[0].newer;
    gone = ring_[slot].block;
    slots_.erase(gone);
    unlink(slot);
  } else if (!unused_.empty()) {
    slot = unused_.back();
    unused_.pop_back();
  } else {
    ring_.push_back({});
  }
  ring_[slot].block = block;
  slots_.emplace(block, slot);
  push_newest(slot);
  return gone;
}

void Lru::erase(uint32_t block) {
  const auto known = slots_.find(block);
  if (known == slots_.end()) return;
  unlink(known->second);
  unused_.push_back(known->second);
  slots_.erase(known);
  MC_ASSERT_EQ(ring_.size(), slots_.size() + unused_.size() + 1);
}

NodeCaches::NodeCaches(uint32_t node_count, uint64_t capacity, uint32_t unique_blocks)
    : capacity_(capacity), words_((node_count + 63) / 64), alive_(words_) {
  caches_.assign(node_count, Lru(std::max<uint64_t>(capacity, 1)));
  holders_.resize(size_t{unique_blocks} * words_);
}

void NodeCaches::match(std::span<const uint32_t> blocks, std::span<uint32_t> matches) {
  MC_ASSERT_EQ(matches.size(), caches_.size());
  std::fill(alive_.begin(), alive_.end(), ~uint64_t{0});
  if (matches.size() % 64 != 0) alive_.back() = (uint64_t{1} << (matches.size() % 64)) - 1;
  const auto record = [&](size_t word, uint64_t nodes, size_t count) {
    for (; nodes != 0; nodes &= nodes - 1)
      matches[word * 64 + static_cast<size_t>(std::countr_zero(nodes))] = static_cast<uint32_t>(count);
  };
  for (size_t k = 0; k < blocks.size(); ++k) {
    const std::span<const uint64_t> have = holders(blocks[k]);
    uint64_t any = 0;
    for (size_t w = 0; w < words_; ++w) {
      record(w, alive_[w] & ~have[w], k);
      any |= alive_[w] &= have[w];
    }
    if (any == 0) return;
  }
  for (size_t w = 0; w < words_; ++w) record(w, alive_[w], blocks.size());
}

void NodeCaches::use(uint32_t node, std::span<const uint32_t> blocks) {
  if (capacity_ == 0) return;
  const size_t word = node / 64;
  const uint64_t bit = uint64_t{1} << (node % 64);
  for (size_t i = blocks.size(); i-- > 0;) {
    const uint32_t gone = caches_[node].use(blocks[i]);
    if (gone != Lru::kNone) holders(gone)[word] &= ~bit;
    holders(blocks[i])[word] |= bit;
  }
}

}  // namespace mc::sim
