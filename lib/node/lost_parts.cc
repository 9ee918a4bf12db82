#include "node/lost_parts.h"

#include <algorithm>

#include "base/assert.h"

namespace mc::node {

void LostParts::lose(uint32_t stage) {
  MC_ASSERT_LT(stage, 64u);
  const uint64_t bit = uint64_t{1} << stage;
  for (auto& [hash, block] : blocks_) block.kept.lost |= bit;
  std::vector<std::pair<uint64_t, BlockHash>> cached;  // the least recently used first
  for (const kv::ResidentBlock& block : pool_.snapshot())
    cached.emplace_back(pool_.use(pool_.find(block.hash)).last_use, block.hash);
  std::sort(cached.begin(), cached.end());
  for (const auto& [last_use, hash] : cached) {
    const kv::PageIndex page = pool_.find(hash);
    const bool held = pool_.pins(page) + pool_.leases(page) > 0;
    std::vector<uint32_t> crcs = pool_.meta(page).layer_crcs;
    forget(hash);  // the block has been fetched or computed again since
    if (held) {
      pool_.remove(hash, kv::Removal::dropped);
      continue;
    }
    const kv::PageIndex taken = pool_.take_out(hash, kv::Removal::dropped);
    const auto [at, fresh] = blocks_.try_emplace(hash, Block{{taken, bit}, ++uses_, std::move(crcs)});
    MC_ASSERT(fresh);
    by_use_[at->second.use] = hash;
  }
}

void LostParts::erase(Iterator block) {
  by_use_.erase(block->second.use);
  blocks_.erase(block);
  MC_ASSERT_EQ(by_use_.size(), blocks_.size());
}

std::optional<LostParts::Kept> LostParts::take(const BlockHash& hash, std::span<const uint32_t> layer_crcs) {
  const auto block = blocks_.find(hash);
  if (block == blocks_.end()) return std::nullopt;
  if (!std::ranges::equal(block->second.layer_crcs, layer_crcs)) return forget(hash), std::nullopt;
  const Kept kept = block->second.kept;
  erase(block);
  return kept;
}

void LostParts::forget(const BlockHash& hash) {
  const auto block = blocks_.find(hash);
  if (block == blocks_.end()) return;
  pool_.release(block->second.kept.page);
  erase(block);
}

void LostParts::make_room(uint32_t pages) {
  while (pool_.available() < pages && !by_use_.empty()) forget(by_use_.begin()->second);
}

}  // namespace mc::node
