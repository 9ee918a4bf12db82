#include "node/block_book.h"

#include <algorithm>

#include "base/assert.h"

namespace mc::node {
namespace {
constexpr size_t kEventsPerMessage = 2048;   // about 90 KiB of msgpack
constexpr size_t kBlocksPerSnapshot = 4096;  // about 200 KiB

bool is_in_memory(std::span<Shelf* const> shelves, const BlockHash& hash) {
  return std::any_of(shelves.begin(), shelves.end(),
                     [&](const Shelf* shelf) { return shelf->pool.find(hash) != kv::kNoPage; });
}

/// The fastest tier of a block that is in the host's memory.
kv::Tier tier_in_memory(const DeviceTier& device, const BlockHash& hash) {
  return device.holds(hash) ? kv::Tier::device : kv::Tier::host;
}
}  // namespace

wire::BlockEvents BlockBook::take(std::span<Shelf* const> shelves, const DiskTier& disk, const DeviceTier& device,
                                  TimePoint now) {
  wire::BlockEvents message;
  const auto events = log_.drain(kEventsPerMessage);
  evicted_.clear();
  if (!events.empty()) message.first_seq = events.front().seq;
  for (const auto& e : events) {
    MC_ASSERT_EQ(e.seq, message.first_seq + message.events.size());
    const bool removed = e.kind == kv::BlockEvent::Kind::removed;
    if (removed && e.reason == kv::Removal::evicted && e.tier == kv::Tier::host) evicted_.push_back(e.hash);
    const bool in_memory = is_in_memory(shelves, e.hash), stored = in_memory || disk.has(e.hash);
    if (stored)
      memory_.stored(e.hash);
    else if (removed && e.tier != kv::Tier::device)
      remember(e, now);
    const bool evicted = !stored && removed && e.reason == kv::Removal::evicted && e.tier != kv::Tier::device;
    const kv::Tier tier = in_memory ? tier_in_memory(device, e.hash) : stored ? kv::Tier::disk : kv::Tier::host;
    message.events.push_back({stored, {e.hash, e.parent, tier}, evicted});
  }
  return message;
}

/// The reason why a block left the node.
void BlockBook::remember(const kv::BlockEvent& event, TimePoint now) {
  if (event.reason == kv::Removal::evicted) memory_.evicted(event.hash, now);
  if (event.reason == kv::Removal::unreadable) memory_.unreadable(event.hash);
  if (event.reason == kv::Removal::corrupt) memory_.rotten(event.hash);
}

std::vector<wire::BlockSnapshot> BlockBook::snapshot(std::span<Shelf* const> shelves, const DiskTier& disk,
                                                     const DeviceTier& device) const {
  MC_ASSERT(!has_news());
  std::vector<wire::BlockRef> blocks;
  for (const Shelf* shelf : shelves)
    for (const auto& b : shelf->pool.snapshot()) blocks.push_back({b.hash, b.parent, tier_in_memory(device, b.hash)});
  for (const auto& b : disk.blocks().snapshot())
    if (!is_in_memory(shelves, b.hash)) blocks.push_back({b.hash, b.parent, kv::Tier::disk});
  const size_t parts = std::max<size_t>(1, (blocks.size() + kBlocksPerSnapshot - 1) / kBlocksPerSnapshot);
  std::vector<wire::BlockSnapshot> out(parts);
  for (size_t part = 0; part < parts; ++part) {
    out[part].seq = last_seq();
    out[part].part = static_cast<uint32_t>(part);
    out[part].part_count = static_cast<uint32_t>(parts);
    const size_t begin = part * kBlocksPerSnapshot, end = std::min(blocks.size(), begin + kBlocksPerSnapshot);
    out[part].blocks.assign(blocks.begin() + static_cast<std::ptrdiff_t>(begin),
                            blocks.begin() + static_cast<std::ptrdiff_t>(end));
  }
  return out;
}

// The children of a dropped block stay cached. Each child's own bytes are checked when it is used, and they are valid
// again as soon as the block is computed again.
void BlockBook::drop_rotten(kv::Pool& pool, std::span<const BlockHash> hashes, std::span<const kv::PageIndex> pages,
                            std::span<const uint32_t> rotten) {
  for (const uint32_t block : rotten) {
    MC_ASSERT_LT(block, pages.size());
    MC_ASSERT_LT(block, hashes.size());
    const BlockHash& hash = hashes[block];
    if (pool.find(hash) != pages[block]) continue;  // the block was dropped already, or computed again in another page
    pool.remove(hash, kv::Removal::corrupt);
    memory_.rotten(hash);
  }
}

}  // namespace mc::node
