// Names of KV blocks. A block's id is chained over its whole prefix, so equal ids mean equal tokens at equal positions
// after equal tokens, under the same model and layout:
//
//   id[i] = first 128 bits of SHA-256( id[i-1] (16 bytes, zero for i = 0)
//                                    | namespace id (16 bytes)
//                                    | block_tokens tokens, little-endian u32 )
//
// Only full blocks have an id. A partial tail travels with its request and is never indexed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.h"

namespace mc::kv {

/// Id of the full block that holds `tokens` and follows the block `parent`.
BlockHash chain_next(const BlockHash& parent, const NamespaceId& name_space, std::span<const uint32_t> tokens);

/// Ids of the full blocks of `tokens`: floor(tokens / block_tokens) of them.
std::vector<BlockHash> chain(const NamespaceId& name_space, std::span<const uint32_t> tokens, uint32_t block_tokens);

/// The blocks that a prompt of `token_count` tokens may take from a cache. At least one token is always computed,
/// because the first answer token needs its logits.
constexpr uint32_t reusable_blocks(size_t token_count, uint32_t block_tokens) {
  return token_count == 0 ? 0 : static_cast<uint32_t>((token_count - 1) / block_tokens);
}

/// Pages that `token_count` tokens occupy, the partial tail included.
constexpr uint32_t blocks_for(size_t token_count, uint32_t block_tokens) {
  return static_cast<uint32_t>((token_count + block_tokens - 1) / block_tokens);
}

/// The chain of a sequence that grows (decode: one token a step). Owns at most one block of tokens beside the ids.
class Chain {
 public:
  Chain(const NamespaceId& name_space, uint32_t block_tokens);
  void append(std::span<const uint32_t> tokens);
  void append(uint32_t token) { append(std::span(&token, 1)); }
  /// append() allocates nothing up to `tokens` tokens.
  void reserve(size_t tokens) { hashes_.reserve(tokens / block_tokens_); }
  /// Ids of the full blocks so far, first to last.
  std::span<const BlockHash> hashes() const { return hashes_; }
  /// Id of the last full block; zero when there is none yet.
  BlockHash last() const { return hashes_.empty() ? BlockHash{} : hashes_.back(); }
  size_t token_count() const { return hashes_.size() * block_tokens_ + tail_.size(); }

 private:
  NamespaceId name_space_;
  uint32_t block_tokens_;
  std::vector<BlockHash> hashes_;
  std::vector<uint32_t> tail_;  // fewer than block_tokens_ tokens
};

}  // namespace mc::kv
