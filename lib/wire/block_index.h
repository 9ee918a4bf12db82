// The published blocks of a node, and the lookups of its peers. The blocks are in a table of buckets, which is read
// while the node changes it. Little-endian.
//
//   bucket, 256 bytes   | version u64 | epoch u64 | tiers u32 | CRC32C u32 | 0 u64 | 14 block ids of 16 bytes |
//
// A node makes the version odd, changes the bucket, and makes the version even again. `epoch` is drawn when the node
// starts. Bits 2i and 2i+1 of `tiers` say where block i is (HeldIn); 0 = the place is empty. The CRC32C covers the
// bucket with 0 in its place. A copy of a bucket counts only if its version is even, its epoch is the expected one and
// its CRC32C is right, so a copy that mixes two states is never taken.
//
// A block may be in two buckets, which its id names. A block that finds both full is not published, so a table may lack
// blocks that the node has.
//
// A lookup is a call of a remote-fetch channel (wire/lease_call.h):
//
//   request    block ids of 16 bytes, 1 to kLookupBlocksMax
//   response   one byte for each block of the request: HeldIn
//
// Golden bytes: tests/golden/wire/block_index.txt.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/result.h"

namespace mc::wire {

/// The tiers of a node that hold a block: bits. Device and host memory are one tier here.
enum class HeldIn : uint8_t { none = 0, memory = 1, disk = 2, both = 3 };
/// "none", "memory", "disk", "memory+disk".
std::string_view to_string(HeldIn held);

inline constexpr size_t kBucketBlocks = 14;

struct BlockBucket {
  uint64_t version = 0;  // odd: the bucket is being changed
  uint64_t epoch = 0;
  uint32_t tiers = 0;
  uint32_t crc = 0;
  uint64_t reserved = 0;  // 0
  std::array<BlockHash, kBucketBlocks> blocks{};
  bool operator==(const BlockBucket&) const = default;

  HeldIn tiers_of(size_t place) const { return static_cast<HeldIn>(tiers >> (2 * place) & 3); }
  void set_tiers(size_t place, HeldIn held) {
    tiers = (tiers & ~(uint32_t{3} << (2 * place))) | static_cast<uint32_t>(held) << (2 * place);
  }
};
static_assert(sizeof(BlockBucket) == 256 && offsetof(BlockBucket, crc) == 20 && offsetof(BlockBucket, blocks) == 32);

/// The CRC32C of the bucket, whose own `crc` does not count.
uint32_t bucket_crc(BlockBucket bucket);
/// Whether a copy of a bucket is one state of it, of a node with this epoch.
bool is_sound(const BlockBucket& bucket, uint64_t epoch);
/// Where a sound bucket says that the block is.
HeldIn find_block(const BlockBucket& bucket, const BlockHash& hash);
/// The two buckets where a block may be, of a table of `buckets` buckets: a power of two, at least 2. They differ.
std::array<uint64_t, 2> buckets_of(const BlockHash& hash, uint64_t buckets);

inline constexpr size_t kLookupBlocksMax = 1000;

/// `hashes` are 1 to kLookupBlocksMax.
std::vector<uint8_t> encode_lookup(std::span<const BlockHash> hashes);
/// Code::corrupt: the bytes are no lookup.
Result<std::vector<BlockHash>> decode_lookup(std::span<const uint8_t> bytes);
/// The response to a lookup of `blocks` blocks. Code::corrupt: the bytes are none.
Result<std::vector<HeldIn>> decode_held(std::span<const uint8_t> bytes, size_t blocks);

}  // namespace mc::wire
