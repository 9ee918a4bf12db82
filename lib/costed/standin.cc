#include "costed/standin.h"

#include <algorithm>
#include <cstring>

#include "base/assert.h"

namespace mc::costed {

struct Standin::Header {
  char magic[4] = {'M', 'C', 'S', 'K'};
  uint32_t layer = 0;
  uint64_t previous = 0, tag = 0;
  uint32_t position = 0, count = 0;
};

namespace {

// The finaliser of SplitMix64: every bit of the input changes half of the output's.
uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

uint64_t pattern(uint64_t tag, uint32_t layer, size_t word) {
  return mix(tag + layer * 0x9e3779b97f4a7c15 + word);
}

}  // namespace

ExtentLayout Standin::layout(uint64_t layers, uint32_t block_tokens) {
  ExtentLayout layout;
  layout.layers = static_cast<uint32_t>(std::min<uint64_t>(layers, 4));
  layout.kv_heads = layout.head_dim = 1;
  layout.block_tokens = block_tokens;
  return layout;
}

uint64_t Standin::extend(uint64_t tag, uint32_t token) {
  return mix(tag ^ (token + 0x9e3779b97f4a7c15));
}

uint64_t Standin::activation(uint64_t tag, uint32_t layer) {
  return mix(tag + layer * 0x9e3779b97f4a7c15);
}

uint32_t Standin::token_after(uint64_t tag, uint32_t vocab) {
  const uint32_t quarter = vocab / 4;
  return quarter + static_cast<uint32_t>(mix(tag) % std::max(quarter, 1u));
}

void Standin::seal(std::byte* page, uint32_t layer, const Header& header) const {
  static_assert(sizeof(Header) == 32);
  std::byte* extent = page + layout_.layer_offset(layer);
  std::memcpy(extent, &header, sizeof header);
  for (size_t at = sizeof header, word = 0; at + 8 <= layout_.layer_bytes(); at += 8, ++word) {
    const uint64_t value = pattern(header.tag, layer, word);
    std::memcpy(extent + at, &value, 8);
  }
}

Result<uint64_t> Standin::verify_extent(const std::byte* page, uint32_t layer, uint32_t block, uint32_t count,
                                        uint64_t previous) const {
  const std::byte* extent = page + layout_.layer_offset(layer);
  Header header;
  std::memcpy(&header, extent, sizeof header);
  const auto bad = [&](std::string_view what) {
    return Error{Code::corrupt, "stand-in KV of block " + std::to_string(block) + ", layer " + std::to_string(layer) +
                                    ": " + std::string(what)};
  };
  if (std::memcmp(header.magic, "MCSK", 4) != 0) return bad("not written");
  if (header.layer != layer) return bad("holds layer " + std::to_string(header.layer));
  if (header.position != block * layout_.block_tokens) return bad("holds position " + std::to_string(header.position));
  if (header.count != count)
    return bad("holds " + std::to_string(header.count) + " tokens, not " + std::to_string(count));
  if (header.previous != previous) return bad("does not follow the block before it");
  for (size_t at = sizeof header, word = 0; at + 8 <= layout_.layer_bytes(); at += 8, ++word) {
    const uint64_t value = pattern(header.tag, layer, word);
    if (std::memcmp(extent + at, &value, 8) != 0) return bad("torn at byte " + std::to_string(at));
  }
  return header.tag;
}

Result<uint64_t> Standin::verify(std::span<std::byte* const> pages, uint32_t tokens, uint32_t first_block) const {
  const uint32_t bt = layout_.block_tokens;
  const uint32_t blocks = (tokens + bt - 1) / bt;
  const LayerRange held = layout_.held();
  MC_ASSERT(blocks <= pages.size() && first_block <= blocks);
  uint64_t tag = kRoot;
  if (first_block > 0) {  // taken at its word: it was verified when it came
    Header header;
    std::memcpy(&header, pages[first_block - 1], sizeof header);
    tag = header.tag;
  }
  for (uint32_t block = first_block; block < blocks; ++block) {
    const uint32_t count = std::min(bt, tokens - block * bt);
    MC_TRY(next, verify_extent(pages[block], held.first, block, count, tag));
    for (uint32_t layer = held.first + 1; layer < held.end; ++layer) {
      MC_TRY(other, verify_extent(pages[block], layer, block, count, tag));
      if (other != next)
        return {Code::corrupt, "stand-in KV of block " + std::to_string(block) + ": layer " + std::to_string(layer) +
                                   " is of other tokens than layer " + std::to_string(held.first)};
    }
    tag = next;
  }
  return tag;
}

void Standin::write(std::span<std::byte* const> pages, uint32_t layer, uint32_t start,
                    std::span<const uint32_t> tokens) const {
  const uint32_t bt = layout_.block_tokens;
  MC_ASSERT(layer >= layout_.held().first && layer < layout_.held().end && !tokens.empty());
  MC_ASSERT((start + tokens.size() + bt - 1) / bt <= pages.size());
  const auto header_of = [&](uint32_t block) {
    Header header;
    std::memcpy(&header, pages[block] + layout_.layer_offset(layer), sizeof header);
    return header;
  };
  uint64_t tag = kRoot;
  uint32_t first = start / bt;
  if (start % bt != 0)
    tag = header_of(first).tag;
  else if (first > 0)
    tag = header_of(first - 1).tag;
  uint64_t previous = start % bt != 0 ? header_of(first).previous : tag;
  for (size_t i = 0; i < tokens.size();) {
    const uint32_t block = (start + static_cast<uint32_t>(i)) / bt;
    const uint32_t end = std::min<uint32_t>((block + 1) * bt, start + static_cast<uint32_t>(tokens.size()));
    for (; start + i < end; ++i) tag = extend(tag, tokens[i]);
    Header header;
    header.layer = layer;
    header.previous = previous, header.tag = tag;
    header.position = block * bt, header.count = end - block * bt;
    seal(pages[block], layer, header);
    previous = tag;
  }
}

}  // namespace mc::costed
