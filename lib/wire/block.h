// The form of a KV block outside a process: this header, the CRC32C of each layer extent, then the extents themselves
// (base/extent.h), one for each layer. .mckv files, the log of mc-cache and exports have equal bytes. Little-endian,
// fixed width; golden bytes in tests/golden/wire/block.txt; mckv(5).
//
//     0       4     6     8               24              40              56
//     | magic | ver | lay | namespace     | block id      | parent id     | ...
//     | "MCKB"|  1  |  1  | 16 bytes      | 16 bytes      | 16 bytes      |
//    56              64      68      72      76      80      84      88      92    93    94    96
//     | generation    | first | token | first | layer | block | kv    | head  | dty | flg | rsv |
//     | of the page   | pos.  | count | layer | count | tokens| heads | dim   | pe  | = 0 | = 0 |
//    96              104     108             124     128
//     | extent bytes  | extent| reserved = 0  | CRC32C| extent_count x u32 CRC32C | extents ...
//     |               | count |  16 bytes     |   *   |
//
//   * over bytes 0..123 and the table, so the header protects the checksums of its extents.
//   A block with token_count < block_tokens is the tail of a prompt: it has no id (zero) and its rows
//   beyond token_count are zero. The first block of a prompt has parent zero and first position 0.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "base/extent.h"
#include "base/ids.h"
#include "base/result.h"

namespace mc::wire {

inline constexpr uint32_t kBlockMagic = 0x424b434d;  // "MCKB"
inline constexpr uint16_t kBlockVersion = 1;
inline constexpr size_t kBlockHeaderBytes = 128;
// These bounds are far above any model. Their products stay far below 2^63.
inline constexpr uint32_t kBlockLayersMax = 1024;
inline constexpr uint32_t kBlockHeadsMax = 1024;
inline constexpr uint32_t kBlockHeadDimMax = 1024;
inline constexpr uint32_t kBlockTokensMin = 16;
inline constexpr uint32_t kBlockTokensMax = 512;
inline constexpr uint64_t kExtentBytesMax = uint64_t{1} << 30;

/// The types that K and V of a block may have.
constexpr bool is_kv_dtype(Dtype dtype) {
  return dtype == Dtype::f32 || dtype == Dtype::bf16 || dtype == Dtype::f8_e4m3;
}

struct BlockHeader {
  uint32_t magic = kBlockMagic;
  uint16_t version = kBlockVersion;
  uint16_t layout = ExtentLayout::kVersion;
  Id128 name_space;
  Id128 id;
  Id128 parent;
  uint64_t generation = 0;
  uint32_t first_position = 0;
  uint32_t token_count = 0;
  uint32_t first_layer = 0;  // a pipeline stage owns a range of layers
  uint32_t layer_count = 0;
  uint32_t block_tokens = 0;
  uint32_t kv_heads = 0;
  uint32_t head_dim = 0;
  uint8_t dtype = 0;  // mc::Dtype
  uint8_t flags = 0;
  uint16_t reserved16 = 0;
  uint64_t extent_bytes = 0;  // bytes of one layer: ExtentLayout::layer_bytes()
  uint32_t extent_count = 0;  // == layer_count in this version
  uint32_t reserved[4] = {};
  uint32_t header_crc = 0;  // filled by encode

  bool operator==(const BlockHeader&) const = default;
  /// Layout of the layers that this header covers.
  ExtentLayout extent_layout() const;
  bool is_tail() const { return token_count < block_tokens; }
};
static_assert(sizeof(BlockHeader) == kBlockHeaderBytes);
static_assert(std::is_trivially_copyable_v<BlockHeader>);
static_assert(offsetof(BlockHeader, generation) == 56);
static_assert(offsetof(BlockHeader, extent_bytes) == 96);
static_assert(offsetof(BlockHeader, header_crc) == 124);

/// A header with the layout fields and extent sizes of `layout`. The caller sets ids and positions.
BlockHeader block_header_for(const ExtentLayout& layout);

/// Header and table of checksums: 128 + 4 * extent_crcs.size() bytes. `extent_crcs` must have
/// header.extent_count entries.
std::vector<std::byte> encode_block_header(BlockHeader header, std::span<const uint32_t> extent_crcs);

struct ParsedBlockHeader {
  BlockHeader header;
  std::vector<uint32_t> extent_crcs;
  size_t bytes() const { return kBlockHeaderBytes + 4 * extent_crcs.size(); }
};

/// Checks the 128 fixed bytes without the CRC, which covers the table too. A stream reader learns from them how much to
/// read next. Code::corrupt or Code::unsupported, naming field and value.
Result<BlockHeader> parse_block_prefix(std::span<const std::byte> bytes);
/// Parses header and table at the start of `bytes` and checks all of both.
Result<ParsedBlockHeader> parse_block_header(std::span<const std::byte> bytes);

/// Compares every layout field of `header` with this node's layout. Code::invalid names both values.
Result<void> check_layout(const BlockHeader& header, const ExtentLayout& ours);

/// One line, such as "block 3f2a9c01 positions 64..127 layers 0..5 bf16 64x2x64".
std::string describe(const BlockHeader& header);

}  // namespace mc::wire
