#include "node/disk_block.h"

#include <algorithm>
#include <cstring>

#include "base/assert.h"
#include "kv/kv.h"
#include "wire/block.h"

namespace mc::node {
namespace {
constexpr uint32_t kTokensMagic = 0x544b434d;  // "MCKT"
}  // namespace

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
  const size_t room = front.size() - bytes.size();
  const size_t token_bytes = block.tokens.size() * sizeof(uint32_t);
  if (block.tokens.empty() || token_bytes + sizeof kTokensMagic > room) return;
  const auto end = front.last(sizeof kTokensMagic + token_bytes);
  std::memcpy(end.data(), block.tokens.data(), token_bytes);
  std::memcpy(end.data() + token_bytes, &kTokensMagic, sizeof kTokensMagic);
}

namespace {
/// The token ids at the end of a front. They are as many as a block has, and the block's id is made of them.
std::vector<uint32_t> tokens_of(const DiskBlock& block, std::span<const std::byte> front, size_t header_bytes) {
  uint32_t magic = 0;
  const size_t token_bytes = size_t{block.layout.block_tokens} * sizeof(uint32_t);
  if (front.size() < kDiskFrontBytes || header_bytes + token_bytes + sizeof magic > kDiskFrontBytes) return {};
  const auto end = front.first(kDiskFrontBytes).last(sizeof magic + token_bytes);
  std::memcpy(&magic, end.data() + token_bytes, sizeof magic);
  if (magic != kTokensMagic) return {};
  std::vector<uint32_t> tokens(block.layout.block_tokens);
  std::memcpy(tokens.data(), end.data(), token_bytes);
  return kv::chain_next(block.parent, block.name_space, tokens) == block.hash ? tokens : std::vector<uint32_t>{};
}
}  // namespace

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
  block.tokens = tokens_of(block, front, wire::kBlockHeaderBytes + size_t{4} * block.layout.layers);
  return block;
}

}  // namespace mc::node
