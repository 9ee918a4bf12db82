#include "wire/block_index.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>

#include "base/assert.h"
#include "base/hash.h"

namespace mc::wire {
namespace {

static_assert(std::endian::native == std::endian::little);
constexpr size_t kHashBytes = sizeof(BlockHash);

}  // namespace

std::string_view to_string(HeldIn held) {
  switch (held) {
    case HeldIn::none: return "none";
    case HeldIn::memory: return "memory";
    case HeldIn::disk: return "disk";
    case HeldIn::both: return "memory+disk";
  }
  return "?";
}

uint32_t bucket_crc(BlockBucket bucket) {
  bucket.crc = 0;
  return crc32c(std::as_bytes(std::span(&bucket, 1)));
}

bool is_sound(const BlockBucket& bucket, uint64_t epoch) {
  return bucket.version % 2 == 0 && bucket.epoch == epoch && bucket.reserved == 0 && bucket_crc(bucket) == bucket.crc;
}

HeldIn find_block(const BlockBucket& bucket, const BlockHash& hash) {
  for (size_t i = 0; i < kBucketBlocks; ++i)
    if (bucket.tiers_of(i) != HeldIn::none && bucket.blocks[i] == hash) return bucket.tiers_of(i);
  return HeldIn::none;
}

std::array<uint64_t, 2> buckets_of(const BlockHash& hash, uint64_t buckets) {
  MC_ASSERT(buckets >= 2 && std::has_single_bit(buckets));
  std::array<uint64_t, 2> words;
  static_assert(sizeof words == kHashBytes);
  std::memcpy(words.data(), hash.bytes.data(), sizeof words);
  const uint64_t first = words[0] & (buckets - 1), second = words[1] & (buckets - 1);
  return {first, second == first ? first ^ 1 : second};
}

std::vector<uint8_t> encode_lookup(std::span<const BlockHash> hashes) {
  MC_ASSERT(!hashes.empty() && hashes.size() <= kLookupBlocksMax);
  std::vector<uint8_t> out(hashes.size() * kHashBytes);
  for (size_t i = 0; i < hashes.size(); ++i) std::ranges::copy(hashes[i].bytes, out.data() + i * kHashBytes);
  return out;
}

Result<std::vector<BlockHash>> decode_lookup(std::span<const uint8_t> bytes) {
  const size_t count = bytes.size() / kHashBytes;
  if (bytes.size() % kHashBytes != 0 || count == 0 || count > kLookupBlocksMax)
    return Error{Code::corrupt, "lookup of " + std::to_string(bytes.size()) + " bytes"};
  std::vector<BlockHash> out(count);
  for (size_t i = 0; i < count; ++i) std::ranges::copy(bytes.subspan(i * kHashBytes, kHashBytes), out[i].bytes.begin());
  return out;
}

Result<std::vector<HeldIn>> decode_held(std::span<const uint8_t> bytes, size_t blocks) {
  const bool known = std::ranges::all_of(bytes, [](uint8_t held) { return held <= uint8_t{3}; });
  if (bytes.size() != blocks || !known)
    return Error{Code::corrupt, "answer of " + std::to_string(bytes.size()) + " bytes to a lookup of " +
                                    std::to_string(blocks) + " blocks"};
  std::vector<HeldIn> out(blocks);
  std::ranges::transform(bytes, out.begin(), [](uint8_t held) { return static_cast<HeldIn>(held); });
  return out;
}

}  // namespace mc::wire
