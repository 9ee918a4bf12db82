#include "kv/block_table.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <thread>

#include "base/assert.h"
#include "base/shared_words.h"

namespace mc::kv {
namespace {

using wire::BlockBucket;
using wire::HeldIn;

constexpr int kCopiesMax = 64;  // in vain, of buckets that are being changed, in one look

std::optional<size_t> place_of(const BlockBucket& bucket, const BlockHash& hash) {
  for (size_t i = 0; i < wire::kBucketBlocks; ++i)
    if (bucket.tiers_of(i) != HeldIn::none && bucket.blocks[i] == hash) return i;
  return std::nullopt;
}

size_t used_places(const BlockBucket& bucket) {
  size_t used = 0;
  for (size_t i = 0; i < wire::kBucketBlocks; ++i) used += bucket.tiers_of(i) != HeldIn::none;
  return used;
}

HeldIn with(HeldIn held, HeldIn tier) {
  return static_cast<HeldIn>(static_cast<uint8_t>(held) | static_cast<uint8_t>(tier));
}

HeldIn without(HeldIn held, HeldIn tier) {
  return static_cast<HeldIn>(static_cast<uint8_t>(held) & ~static_cast<uint8_t>(tier));
}

BlockTableView view_of(std::span<std::byte> memory, uint64_t epoch) {
  const auto view = BlockTableView::of(memory, epoch);
  MC_ASSERT(view.has_value());
  return *view;
}

}  // namespace

// ---- readers ---------------------------------------------------------------------------------

std::optional<BlockTableView> BlockTableView::of(std::span<const std::byte> memory, uint64_t epoch) {
  if (!BlockTable::buckets_in(memory.size())) return std::nullopt;
  return BlockTableView(memory, epoch);
}

/// nullopt: the bucket is being changed, and no copies are left.
std::optional<BlockBucket> BlockTableView::sound_copy(uint64_t bucket, int& copies_left) const {
  const auto from = memory_.subspan(bucket * sizeof(BlockBucket), sizeof(BlockBucket));
  for (;;) {
    BlockBucket copy;
    load_words(std::as_writable_bytes(std::span(&copy, 1)).data(), from.data(), sizeof copy);
    if (wire::is_sound(copy, epoch_)) return copy;
    if (copies_left == 0) return std::nullopt;
    --copies_left;
    std::this_thread::yield();  // the writer may have lost its processor in the middle of a change
  }
}

HeldIn BlockTableView::find(const BlockHash& hash, int& copies_left) const {
  for (const uint64_t at : wire::buckets_of(hash, buckets())) {
    const auto bucket = sound_copy(at, copies_left);
    const HeldIn held = bucket ? wire::find_block(*bucket, hash) : HeldIn::none;
    if (held != HeldIn::none) return held;
  }
  return HeldIn::none;
}

HeldIn BlockTableView::find(const BlockHash& hash) const {
  int copies_left = kCopiesMax;
  return find(hash, copies_left);
}

std::vector<HeldIn> BlockTableView::find(std::span<const BlockHash> hashes) const {
  std::vector<HeldIn> out;
  out.reserve(hashes.size());
  int copies_left = kCopiesMax;
  for (const BlockHash& hash : hashes) out.push_back(find(hash, copies_left));
  return out;
}

uint64_t table_epoch(const InstanceId& instance) {
  uint64_t epoch;
  std::memcpy(&epoch, instance.bytes.data(), sizeof epoch);
  return epoch;
}

// ---- the writer ------------------------------------------------------------------------------

size_t BlockTable::bytes_for(uint64_t blocks) {
  const uint64_t most = kBucketsMax * wire::kBucketBlocks;
  const uint64_t places = std::min(blocks, most) * 4 / 3;
  const uint64_t buckets = std::bit_ceil(std::max<uint64_t>(2, places / wire::kBucketBlocks + 1));
  return std::min(buckets, kBucketsMax) * sizeof(BlockBucket);
}

std::optional<uint64_t> BlockTable::buckets_in(uint64_t bytes) {
  const uint64_t buckets = bytes / sizeof(BlockBucket);
  const bool is_table = bytes % sizeof(BlockBucket) == 0 && buckets >= 2 && buckets <= kBucketsMax;
  return is_table && std::has_single_bit(buckets) ? std::optional(buckets) : std::nullopt;
}

BlockTable::BlockTable(std::span<std::byte> memory, uint64_t epoch)
    : memory_(memory), view_(view_of(memory, epoch)), epoch_(epoch) {
  for (uint64_t i = 0; i < buckets(); ++i) write(i, {});
}

std::span<std::byte> BlockTable::bucket_at(uint64_t bucket) const {
  MC_ASSERT_LT(bucket, buckets());
  return memory_.subspan(bucket * sizeof(BlockBucket), sizeof(BlockBucket));
}

// Nobody else writes the memory, so the writer reads it as it is.
BlockBucket BlockTable::own_copy(uint64_t bucket) const {
  BlockBucket out;
  std::memcpy(reinterpret_cast<std::byte*>(&out), bucket_at(bucket).data(), sizeof out);
  return out;
}

void BlockTable::write(uint64_t bucket, BlockBucket changed) {
  const std::span<std::byte> at = bucket_at(bucket);
  const uint64_t odd = changed.version + 1;
  store_words(at.data(), std::as_bytes(std::span(&odd, 1)).data(), sizeof odd);
  changed.version += 2;
  changed.epoch = epoch_;
  changed.crc = wire::bucket_crc(changed);
  store_words(at.data(), std::as_bytes(std::span(&changed, 1)).data(), sizeof changed);
}

void BlockTable::apply(const BlockEvent& event) {
  if (event.tier == Tier::device) return;  // a copy, which readers of the table cannot read
  const HeldIn tier = event.tier == Tier::disk ? HeldIn::disk : HeldIn::memory;
  const bool is_stored = event.kind == BlockEvent::Kind::stored;
  for (const uint64_t at : wire::buckets_of(event.hash, buckets())) {
    BlockBucket bucket = own_copy(at);
    const auto place = place_of(bucket, event.hash);
    if (!place) continue;
    const HeldIn before = bucket.tiers_of(*place);
    const HeldIn after = is_stored ? with(before, tier) : without(before, tier);
    if (after == before) return;
    bucket.set_tiers(*place, after);
    if (after == HeldIn::none) bucket.blocks[*place] = {}, --blocks_;
    return write(at, bucket);
  }
  if (is_stored) add(event.hash, tier);
}

/// Adds a block that the table lacks to the emptier one of its buckets.
void BlockTable::add(const BlockHash& hash, HeldIn tier) {
  const auto at = wire::buckets_of(hash, buckets());
  std::array<BlockBucket, 2> copies{own_copy(at[0]), own_copy(at[1])};
  const size_t chosen = used_places(copies[1]) < used_places(copies[0]) ? 1 : 0;
  BlockBucket& bucket = copies.at(chosen);
  size_t place = 0;
  while (place < wire::kBucketBlocks && bucket.tiers_of(place) != HeldIn::none) ++place;
  if (place == wire::kBucketBlocks) {
    ++left_out_;
    return;
  }
  bucket.blocks.at(place) = hash;
  bucket.set_tiers(place, tier);
  ++blocks_;
  write(at.at(chosen), bucket);
}

}  // namespace mc::kv
