#include "node/shelf.h"

#include "base/assert.h"

namespace mc::node {

void Shelf::keep_lost_parts() {
  MC_ASSERT(!lost && !make_room);
  lost = std::make_unique<LostParts>(pool);
  make_room = [this](uint32_t pages) { lost->make_room(pages); };
}

wire::LeasedBlock Shelf::leased_block(kv::PageIndex page, bool with_tokens) const {
  const kv::BlockMeta& meta = pool.meta(page);
  return {meta.hash,
          meta.parent,
          pool.generation(page),
          page_offset(page),
          meta.layer_crcs,
          meta.first_position,
          with_tokens ? meta.tokens : std::vector<uint32_t>{}};
}

std::vector<uint32_t> Shelf::prefix_crcs(std::span<const kv::PageIndex> pages, uint32_t blocks,
                                         LayerRange layers) const {
  MC_ASSERT_LE(blocks, pages.size());
  MC_ASSERT(layers.first <= layers.end && layers.end <= layout.layers);
  std::vector<uint32_t> out;
  for (uint32_t block = 0; block < blocks; ++block) {
    const auto& crcs = pool.meta(pages[block]).layer_crcs;
    MC_ASSERT_EQ(crcs.size(), layout.layers);
    out.insert(out.end(), crcs.begin() + layers.first, crcs.begin() + layers.end);
  }
  return out;
}

std::vector<uint32_t> sound_tokens(const wire::LeasedBlock& block, const NamespaceId& ns, const ExtentLayout& layout) {
  const bool sound =
      block.tokens.size() == layout.block_tokens && kv::chain_next(block.parent, ns, block.tokens) == block.hash;
  return sound ? block.tokens : std::vector<uint32_t>{};
}

}  // namespace mc::node
