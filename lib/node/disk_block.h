// The form of a KV block in a node's disk store. The store keeps values by id; the id is the block's hash.
//
//   | front: header and checksums (wire/block.h), zeros, token ids u32 *, "MCKT" | the block's page: its extents |
//     4096 bytes                                                                   ExtentLayout::page_bytes()
//
//   * absent, with zeros in place of "MCKT", where they are not known or find no room
//
// A front has a checksum of its own, so a restart reads the fronts alone to learn which blocks it has.
#pragma once

#include <cstddef>
#include <span>

#include "node/node.h"

namespace mc::node {

inline constexpr size_t kDiskFrontBytes = 4096;

/// Bytes of a value.
size_t disk_value_bytes(const ExtentLayout& layout);
/// Whether a front has room for the checksums of this layout. Pages of a pipeline stage have no form on disk.
bool fits_disk(const ExtentLayout& layout);
/// Fills `front` (kDiskFrontBytes).
void encode_disk_front(const DiskBlock& block, std::span<std::byte> front);
/// Code::corrupt or Code::unsupported, naming field and value.
Result<DiskBlock> parse_disk_front(std::span<const std::byte> front);

}  // namespace mc::node
