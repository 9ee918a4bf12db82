#include "node/disk_block.h"

#include <algorithm>
#include <cstring>

#include "base/assert.h"
#include "wire/block.h"

namespace mc::node {

size_t disk_value_bytes(const ExtentLayout& layout) {
  return kDiskFrontBytes + layout.page_bytes();
}

bool fits_disk(const ExtentLayout& layout) {
  return layout.layers > 0 && layout.stage.count() == 0 &&
         wire::kBlockHeaderBytes + size_t{4} * layout.layers <= kDiskFrontBytes;
}

void encode_disk_front(const DiskBlock& block, std::span<std::byte> front) {
  MC_ASSERT_EQ(front.size(), kDiskFrontBytes);
  MC_ASSERT(fits_disk(block.layout));
  wire::BlockHeader header = wire::block_header_for(block.layout);
  header.name_space = block.name_space, header.id = block.hash, header.parent = block.parent;
  header.first_position = block.first_position, header.token_count = block.layout.block_tokens;
  const std::vector<std::byte> bytes = wire::encode_block_header(header, block.layer_crcs);
  MC_ASSERT_LE(bytes.size(), front.size());
  std::fill(std::copy(bytes.begin(), bytes.end(), front.begin()), front.end(), std::byte{0});
}

Result<DiskBlock> parse_disk_front(std::span<const std::byte> front) {
  MC_TRY(parsed, wire::parse_block_header(front));
  const wire::BlockHeader& header = parsed.header;
  if (header.first_layer != 0 || header.is_tail())
    return Error{Code::unsupported, "block: a part of the layers or tokens has no form on disk"};
  DiskBlock block;
  block.hash = BlockHash{header.id}, block.parent = BlockHash{header.parent};
  block.name_space = NamespaceId{header.name_space};
  block.first_position = header.first_position;
  block.layout = header.extent_layout();
  block.layer_crcs = std::move(parsed.extent_crcs);
  MC_ASSERT_EQ(block.layer_crcs.size(), block.layout.layers);
  return block;
}

}  // namespace mc::node
