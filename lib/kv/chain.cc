#include "kv/chain.h"

#include <bit>

#include "base/assert.h"
#include "base/hash.h"

namespace mc::kv {

static_assert(std::endian::native == std::endian::little,
              "tokens are hashed as little-endian u32 straight from memory");

BlockHash chain_next(const BlockHash& parent, const NamespaceId& name_space, std::span<const uint32_t> tokens) {
  Sha256 sha;
  sha.update(std::as_bytes(std::span(parent.bytes)));
  sha.update(std::as_bytes(std::span(name_space.bytes)));
  sha.update(std::as_bytes(tokens));
  return BlockHash{sha.finish128()};
}

std::vector<BlockHash> chain(const NamespaceId& name_space, std::span<const uint32_t> tokens, uint32_t block_tokens) {
  MC_ASSERT(block_tokens > 0);
  std::vector<BlockHash> hashes;
  hashes.reserve(tokens.size() / block_tokens);
  BlockHash parent{};
  for (size_t begin = 0; begin + block_tokens <= tokens.size(); begin += block_tokens) {
    parent = chain_next(parent, name_space, tokens.subspan(begin, block_tokens));
    hashes.push_back(parent);
  }
  return hashes;
}

Chain::Chain(const NamespaceId& name_space, uint32_t block_tokens)
    : name_space_(name_space), block_tokens_(block_tokens) {
  MC_ASSERT(block_tokens > 0);
  tail_.reserve(block_tokens);
}

void Chain::append(std::span<const uint32_t> tokens) {
  while (!tokens.empty()) {
    if (tail_.empty() && tokens.size() >= block_tokens_) {  // whole blocks are hashed without a copy
      hashes_.push_back(chain_next(last(), name_space_, tokens.first(block_tokens_)));
      tokens = tokens.subspan(block_tokens_);
      continue;
    }
    const size_t take = std::min<size_t>(block_tokens_ - tail_.size(), tokens.size());
    tail_.insert(tail_.end(), tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(take));
    tokens = tokens.subspan(take);
    if (tail_.size() == block_tokens_) {
      hashes_.push_back(chain_next(last(), name_space_, tail_));
      tail_.clear();
    }
  }
}

}  // namespace mc::kv
