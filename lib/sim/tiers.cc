#include "sim/tiers.h"

#include <algorithm>
#include <bit>

#include "base/assert.h"

namespace mc::sim {

TieredCaches::TieredCaches(uint32_t node_count, uint64_t dram_blocks, uint64_t ssd_blocks, uint32_t unique_blocks)
    : dram_capacity_(dram_blocks), ssd_capacity_(ssd_blocks), words_((node_count + 63) / 64) {
  dram_.assign(node_count, Lru(std::max<uint64_t>(dram_blocks, 1)));
  ssd_.assign(node_count, Lru(std::max<uint64_t>(ssd_blocks, 1)));
  held_.resize(size_t{unique_blocks} * words_);
  pending_.resize(size_t{unique_blocks} * words_);
  if (has_ssd()) on_ssd_.resize(size_t{unique_blocks} * words_);
  makers_.assign(unique_blocks, UINT32_MAX);
  alive_.resize(words_), alive_readable_.resize(words_);
}

void TieredCaches::match(std::span<const uint32_t> blocks, CacheMatch& out) {
  const size_t nodes = dram_.size();
  MC_ASSERT_EQ(out.resident.size(), nodes);
  std::fill(alive_.begin(), alive_.end(), ~uint64_t{0});
  if (nodes % 64 != 0) alive_.back() = (uint64_t{1} << (nodes % 64)) - 1;
  alive_readable_ = alive_;
  const bool ssd = has_ssd();
  if (ssd) std::fill(out.on_ssd.begin(), out.on_ssd.end(), 0);
  const auto record = [](std::span<uint32_t> counts, size_t word, uint64_t gone, size_t count) {
    for (; gone != 0; gone &= gone - 1)
      counts[word * 64 + static_cast<size_t>(std::countr_zero(gone))] = static_cast<uint32_t>(count);
  };
  for (size_t k = 0; k < blocks.size(); ++k) {
    uint64_t any = 0;
    for (size_t w = 0; w < words_; ++w) {
      const uint64_t have = held_[blocks[k] * words_ + w], wait = pending_[blocks[k] * words_ + w];
      record(out.resident, w, alive_[w] & ~have, k);
      record(out.readable, w, alive_readable_[w] & ~(have & ~wait), k);
      any |= alive_[w] &= have;
      alive_readable_[w] &= have & ~wait;
      if (!ssd) continue;
      for (uint64_t bits = alive_readable_[w] & on_ssd_[blocks[k] * words_ + w]; bits != 0; bits &= bits - 1)
        ++out.on_ssd[w * 64 + static_cast<size_t>(std::countr_zero(bits))];
    }
    if (any == 0) return;
  }
  for (size_t w = 0; w < words_; ++w) {
    record(out.resident, w, alive_[w], blocks.size());
    record(out.readable, w, alive_readable_[w], blocks.size());
  }
}

void TieredCaches::runs(std::span<const uint32_t> blocks, uint32_t first, size_t runs_max,
                        std::vector<kv::NodeRun>& out) const {
  out.clear();
  for (uint32_t k = first; k < blocks.size(); ++k) {
    bool readable = false;
    for (size_t w = 0; w < words_; ++w) {
      const size_t word = blocks[k] * words_ + w;
      for (uint64_t bits = held_[word] & ~pending_[word]; bits != 0; bits &= bits - 1) {
        const auto node = static_cast<uint32_t>(w * 64) + static_cast<uint32_t>(std::countr_zero(bits));
        readable |= kv::add_to_run(out, runs_max, static_cast<kv::NodeOrdinal>(node), k, is_on_ssd(node, blocks[k]));
      }
    }
    if (!readable) return;
  }
}

uint32_t TieredCaches::on_ssd(uint32_t node, std::span<const uint32_t> blocks) const {
  if (!has_ssd()) return 0;
  return static_cast<uint32_t>(
      std::count_if(blocks.begin(), blocks.end(), [&](uint32_t b) { return is_on_ssd(node, b); }));
}

bool TieredCaches::touch(uint32_t node, uint32_t block) {
  const size_t word = node / 64;
  const uint64_t bit = uint64_t{1} << (node % 64);
  uint64_t& held = held_[block * words_ + word];
  const bool fresh = (held & bit) == 0;
  held |= bit;
  if (has_ssd()) on_ssd_[block * words_ + word] &= ~bit;
  uint32_t gone = dram_[node].use(block);
  if (gone == Lru::kNone) return fresh;
  if (has_ssd()) {
    on_ssd_[gone * words_ + word] |= bit;
    gone = ssd_[node].use(gone);
    if (gone == Lru::kNone || dram_[node].holds(gone)) return fresh;
    on_ssd_[gone * words_ + word] &= ~bit;
  }
  held_[gone * words_ + word] &= ~bit;
  pending_[gone * words_ + word] &= ~bit;
  if (!copied_.empty()) copied_[gone * words_ + word] &= ~bit;
  return fresh;
}

void TieredCaches::use(uint32_t node, std::span<const uint32_t> blocks, uint32_t request) {
  if (dram_capacity_ == 0) return;
  for (size_t i = blocks.size(); i-- > 0;) {
    if (!touch(node, blocks[i])) continue;
    pending_[blocks[i] * words_ + node / 64] |= uint64_t{1} << (node % 64);
    makers_[blocks[i]] = request;
  }
}

void TieredCaches::copy_in(uint32_t node, std::span<const uint32_t> blocks, uint32_t first) {
  if (dram_capacity_ == 0) return;
  copied_.resize(held_.size());
  for (size_t i = blocks.size(); i-- > 0;)
    if (touch(node, blocks[i]) && i >= first) copied_[blocks[i] * words_ + node / 64] |= uint64_t{1} << (node % 64);
}

void TieredCaches::settle(uint32_t node, std::span<const uint32_t> blocks) {
  const size_t word = node / 64;
  const uint64_t bit = uint64_t{1} << (node % 64);
  for (const uint32_t block : blocks) pending_[block * words_ + word] &= ~bit;
}

void TieredCaches::pass_on(uint32_t node, uint32_t block, std::optional<uint32_t> heir) {
  if (!is_pending(node, block)) return;
  if (heir) {
    makers_[block] = *heir;
    return;
  }
  const size_t word = block * words_ + node / 64;
  const uint64_t bit = uint64_t{1} << (node % 64);
  held_[word] &= ~bit, pending_[word] &= ~bit;
  if (has_ssd()) on_ssd_[word] &= ~bit;
  dram_[node].erase(block);
  ssd_[node].erase(block);
}

void TieredCaches::drop(uint32_t node) {
  const size_t word = node / 64;
  const uint64_t bit = uint64_t{1} << (node % 64);
  for (size_t i = word; i < held_.size(); i += words_) held_[i] &= ~bit, pending_[i] &= ~bit;
  for (size_t i = word; i < on_ssd_.size(); i += words_) on_ssd_[i] &= ~bit;
  for (size_t i = word; i < copied_.size(); i += words_) copied_[i] &= ~bit;
  dram_[node] = Lru(std::max<uint64_t>(dram_capacity_, 1));
  ssd_[node] = Lru(std::max<uint64_t>(ssd_capacity_, 1));
}

uint32_t TieredCaches::replicas(uint32_t block) const {
  uint32_t count = 0;
  for (size_t w = 0; w < words_; ++w) count += static_cast<uint32_t>(std::popcount(held_[block * words_ + w]));
  return count;
}

}  // namespace mc::sim
