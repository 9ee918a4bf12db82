#include "kv/trace_cache.h"

#include <cstring>
#include <vector>

#include "base/assert.h"

namespace mc::kv {
namespace {

constexpr uint32_t kGrowPages = 4096;

// Ids of traces are small integers. The table needs spread bits (Fibonacci hashing), and zero means "none".
BlockHash name_of(uint64_t id) {
  const uint64_t spread = (id + 1) * 0x9e3779b97f4a7c15ull;
  const uint64_t exact = ~id;
  BlockHash hash;
  std::memcpy(hash.bytes.data(), &spread, 8);
  std::memcpy(hash.bytes.data() + 8, &exact, 8);
  return hash;
}

}  // namespace

TraceCache::TraceCache(uint32_t block_count, const Eviction& eviction)
    : pool_({.page_count = block_count, .eviction = &eviction}, log_), unlimited_(block_count == kUnlimited) {}

uint32_t TraceCache::request(std::span<const uint64_t> ids) {
  std::vector<BlockHash> hashes;
  hashes.reserve(ids.size());
  for (const uint64_t id : ids) hashes.push_back(name_of(id));
  const uint32_t hits = pool_.match(hashes);
  for (size_t i = hashes.size(); i-- > 0;) {
    if (pool_.find(hashes[i]) != kNoPage)
      pool_.touch(std::span(hashes).subspan(i, 1));
    else
      store(hashes[i], i > 0 ? hashes[i - 1] : BlockHash{}, static_cast<uint32_t>(i));
  }
  hit_blocks_ += hits;
  seen_blocks_ += ids.size();
  return hits;
}

void TraceCache::store(const BlockHash& hash, const BlockHash& parent, uint32_t position) {
  if (unlimited_ && pool_.counts().free == 0) pool_.grow(kGrowPages);
  const auto page = pool_.allocate(1);
  MC_ASSERT(page.has_value());  // no page is ever held here
  pool_.unpin(pool_.publish((*page)[0], {.hash = hash, .parent = parent, .first_position = position}).page);
}

}  // namespace mc::kv
