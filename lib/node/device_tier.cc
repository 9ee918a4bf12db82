#include "node/device_tier.h"

#include <algorithm>

#include "base/assert.h"

namespace mc::node {
namespace {

constexpr uint32_t kLowShare = 64, kHighShare = 32;  // the watermarks are the pool divided by these
constexpr double kWeight = 0.125;                    // of a new load in the smoothed time of a block

}  // namespace

DeviceTier::DeviceTier(uint32_t page_count, const ExtentLayout& layout, const kv::Eviction& eviction, kv::EventLog& log,
                       Numbers& numbers)
    : layers_(layout.layers),
      block_tokens_(layout.block_tokens),
      pool_({.page_count = page_count, .tier = kv::Tier::device, .eviction = &eviction}, log),
      numbers_(numbers) {}

bool DeviceTier::take(DevicePages& to, std::span<const BlockHash> cached, uint32_t blocks, uint32_t reserve) {
  if (!exists()) return true;
  MC_ASSERT(to.pages.empty() && to.load == 0);
  MC_ASSERT(cached.size() <= blocks && fits(blocks));
  const uint32_t here = to.pages.pin_prefix(pool_, cached);
  const uint32_t need = blocks - here;
  // The reserve is for running requests, so a request that is alone may have every page.
  if (uint64_t{need} + reserve > pool_.available() || !to.pages.allocate(pool_, need)) {
    to.pages.release(pool_);
    return false;
  }
  to.first = to.filled = here;
  pool_.touch(cached.first(here));
  return true;
}

void DeviceTier::load(DevicePages& to, std::span<const kv::PageIndex> pages, uint32_t end,
                      std::span<const uint32_t> crcs, Actions& out) {
  if (!exists() || to.filled >= end) return;
  MC_ASSERT(to.load == 0 && end <= to.pages.size() && end <= pages.size());
  MC_ASSERT_EQ(crcs.size(), size_t{end} * layers_);
  LoadPages load;
  load.load = to.load = numbers_.next();
  to.first = to.filled;
  const uint32_t count = end - to.first;
  const auto targets = to.pages.all().subspan(to.first, count), sources = pages.subspan(to.first, count);
  for (uint32_t block = to.first; block < end; ++block) MC_ASSERT(!to.pages.pinned(block));
  load.pages.assign(sources.begin(), sources.end());
  load.device_pages.assign(targets.begin(), targets.end());
  const auto sums = crcs.subspan(size_t{to.first} * layers_);
  load.crcs.assign(sums.begin(), sums.end());
  to.filled = end;
  loading_.emplace(load.load, count);
  out.push_back(std::move(load));
}

std::vector<uint32_t> DeviceTier::ended(DevicePages& at, const PagesLoaded& done, std::span<const BlockHash> names,
                                        const NamespaceId& ns) {
  const auto found = loading_.find(done.load);
  MC_ASSERT(found != loading_.end() && at.load == done.load);
  const uint32_t blocks = found->second, end = at.filled;
  MC_ASSERT_EQ(at.first + blocks, end);
  loading_.erase(found);
  at.load = 0;
  if (done.code != Code::ok) {
    at.filled = at.first;
    std::vector<uint32_t> rotten;
    for (const uint32_t index : done.rotten)
      if (at.first + index < names.size()) rotten.push_back(at.first + index);
    return rotten;
  }
  loaded_blocks_ += blocks;
  const double block_s = to_seconds(done.busy) / blocks;
  block_s_ = block_s_ == 0 ? block_s : block_s_ + kWeight * (block_s - block_s_);
  for (uint32_t block = at.first; block < std::min<size_t>(end, names.size()); ++block) publish(at, block, names, ns);
  return {};
}

bool DeviceTier::grow(DevicePages& to) {
  return !exists() || to.pages.allocate(pool_, 1).has_value();
}

void DeviceTier::publish(DevicePages& at, uint32_t block, std::span<const BlockHash> names, const NamespaceId& ns) {
  if (block >= at.pages.size() || at.pages.pinned(block)) return;
  kv::BlockMeta meta;  // without checksums and tokens, which the host's pool has
  meta.hash = names[block];
  meta.parent = block == 0 ? BlockHash{} : names[block - 1];
  meta.name_space = ns;
  meta.first_position = block * block_tokens_;
  at.pages.publish(pool_, block, std::move(meta));
}

void DeviceTier::release(DevicePages& at) {
  MC_ASSERT_EQ(at.load, 0u);
  at.pages.release(pool_);
  at = {};
}

void DeviceTier::tend() {
  if (!exists()) return;
  const uint32_t total = pool_.counts().total;
  if (pool_.counts().free >= total / kLowShare) return;
  while (pool_.counts().free < total / kHighShare && pool_.counts().evictable > 0)
    for (const kv::PageIndex page : pool_.candidates(total / kHighShare - pool_.counts().free))
      pool_.remove(BlockHash(pool_.meta(page).hash), kv::Removal::evicted);
}

void DeviceTier::fill_load(wire::Load& load) const {
  const kv::Pool::Counts& counts = pool_.counts();
  load.device_pages = counts.total;
  load.device_pages_held = counts.total - counts.free - counts.evictable;
  load.device_blocks = counts.cached;
  load.device_block_s = block_s_;
  load.device_loaded_blocks = loaded_blocks_;
  load.device_evicted_blocks = counts.evicted_total;
}

void DeviceTier::check(std::span<const DevicePages* const> held) const {
  pool_.check();
  uint64_t pinned = 0, owned = 0, loads = 0;
  for (const DevicePages* at : held) {
    MC_ASSERT(at->filled <= at->pages.size() && (at->load == 0 || loading_.contains(at->load)));
    pinned += at->pages.pinned_count();
    owned += at->pages.size() - at->pages.pinned_count();
    loads += at->load != 0;
  }
  uint64_t pins = 0;
  for (kv::PageIndex page = 0; page < pool_.counts().total; ++page) pins += pool_.pins(page);
  MC_ASSERT_EQ(pins, pinned);
  MC_ASSERT_EQ(uint64_t{pool_.counts().owned}, owned);
  MC_ASSERT_EQ(loads, uint64_t{loading_.size()});
}

}  // namespace mc::node
