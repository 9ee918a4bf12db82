#include "node/disk_blocks.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"

namespace mc::node {

const DiskBlocks::Entry* DiskBlocks::find(const BlockHash& hash) const {
  const auto at = entries_.find(hash);
  return at == entries_.end() ? nullptr : &at->second;
}

DiskBlocks::Entry* DiskBlocks::find(const BlockHash& hash) {
  return const_cast<Entry*>(std::as_const(*this).find(hash));
}

std::vector<kv::ResidentBlock> DiskBlocks::snapshot() const {
  std::vector<kv::ResidentBlock> out;
  out.reserve(entries_.size());
  for (const auto& [hash, entry] : entries_) out.push_back({hash, entry.parent, entry.first_position, kv::Tier::disk});
  std::sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return a.hash < b.hash; });
  return out;
}

void DiskBlocks::look_at_bucket(size_t bucket, const Look& look) const {
  for (auto at = entries_.begin(bucket); at != entries_.end(bucket); ++at) look(at->first, at->second);
}

void DiskBlocks::add(const BlockHash& hash, const Entry& entry) {
  if (!entries_.emplace(hash, entry).second) return;
  bytes_ += entry.bytes;
  log_.append({.kind = kv::BlockEvent::Kind::stored,
               .tier = kv::Tier::disk,
               .hash = hash,
               .parent = entry.parent,
               .first_position = entry.first_position});
}

void DiskBlocks::erase(const BlockHash& hash, kv::Removal reason) {
  const auto at = entries_.find(hash);
  if (at == entries_.end()) return;
  MC_ASSERT_LE(at->second.bytes, bytes_);
  bytes_ -= at->second.bytes;
  log_.append({.kind = kv::BlockEvent::Kind::removed,
               .tier = kv::Tier::disk,
               .reason = reason,
               .hash = hash,
               .parent = at->second.parent,
               .first_position = at->second.first_position});
  entries_.erase(at);
}

}  // namespace mc::node
