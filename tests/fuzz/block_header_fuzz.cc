// links: wire
// Block headers and data-plane notices: whatever parses must encode to the bytes it came from. Each
// input is tried as it is and once more with its checksum put right, to get behind that door.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "base/hash.h"
#include "fuzz_target.h"
#include "wire/block.h"
#include "wire/notify.h"

namespace mc::block_header_fuzz {
namespace {

using namespace mc::wire;

void try_bytes(std::span<const std::byte> bytes) {
  if (const auto block = parse_block_header(bytes)) {
    const auto again = encode_block_header(block->header, block->extent_crcs);
    if (std::memcmp(again.data(), bytes.data(), again.size()) != 0) std::abort();
    if (describe(block->header).empty()) std::abort();
  }
  if (const auto ready = parse_extents_ready(bytes)) {
    const auto again = encode_extents_ready(*ready);
    if (!again || again->size() != 1 || again->front().size() != bytes.size()) std::abort();
    if (std::memcmp(again->front().data(), bytes.data(), bytes.size()) != 0) std::abort();
  }
}

// Puts at `crc_at` the checksum of everything before it and of what lies behind `header_bytes`.
void seal(std::vector<std::byte>& bytes, size_t crc_at, size_t header_bytes, size_t end) {
  const std::span all(bytes);
  const uint32_t crc = mc::crc32c(all.subspan(header_bytes, end - header_bytes), mc::crc32c(all.first(crc_at)));
  std::memcpy(bytes.data() + crc_at, &crc, sizeof crc);
}

}  // namespace

FUZZ_TARGET(block_header) {
  std::vector<std::byte> bytes(size);
  if (size > 0) std::memcpy(bytes.data(), data, size);
  try_bytes(bytes);
  if (size >= kBlockHeaderBytes) {
    uint32_t extent_count;
    std::memcpy(&extent_count, data + offsetof(BlockHeader, extent_count), sizeof extent_count);
    const size_t table = std::min<size_t>(size_t{4} * extent_count, size - kBlockHeaderBytes);
    auto block = bytes;
    seal(block, offsetof(BlockHeader, header_crc), kBlockHeaderBytes, kBlockHeaderBytes + table);
    try_bytes(block);
  }
  if (size >= kNotifyHeaderBytes) {
    seal(bytes, kNotifyHeaderBytes - 4, kNotifyHeaderBytes, size);
    try_bytes(bytes);
  }
  return 0;
}

}  // namespace mc::block_header_fuzz
