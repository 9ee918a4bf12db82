// KV without a model: bytes that say which tokens they stand for, so that a receiver notices every page
// that is wrong, foreign, stale, torn or in the wrong place. An extent (one layer of one block) is
//
//   bytes 0..3   "MCSK"          8..15  tag of all tokens before the block
//         4..7   layer          16..23  tag of all tokens up to the block's last
//        24..27  position of the block's first token      28..31  tokens in the block
//        32..    a pattern made of tag and layer
//
// A tag is chained over the whole prompt, token by token, so pages verify as a chain: a page that is no
// successor of the one before it is found, and the answer, which is drawn from the last tag, tells
// whether the chain is that of the prompt (tests compute the same answer from the prompt alone). The stages of a
// pipeline hold the extents of their layers, which are those that a whole node would hold.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/extent.h"
#include "base/result.h"

namespace mc::costed {

class Standin {
 public:
  static constexpr uint64_t kRoot = 0x6d6f6f6e63616b65;  // the tag before the first token

  explicit Standin(const ExtentLayout& layout) : layout_(layout) {}
  /// The smallest layout for the blocks of a model of `layers`: at most four stand for all of them.
  static ExtentLayout layout(uint64_t layers, uint32_t block_tokens);

  static uint64_t extend(uint64_t tag, uint32_t token);
  /// The activations of the token with this tag after layer `layer` - 1, as a pipeline stage hands them on. `layer` is
  /// the first one of the next stage.
  static uint64_t activation(uint64_t tag, uint32_t layer);
  /// The token that follows `tag`, in the quarter of the vocabulary where no tokenizer keeps special ones.
  static uint32_t token_after(uint64_t tag, uint32_t vocab);

  /// Writes `layer`, one of the layout's held(), of the blocks that hold tokens start, start + 1, ...; `pages` are
  /// those of the whole sequence, and what lies before `start` must have been verified.
  void write(std::span<std::byte* const> pages, uint32_t layer, uint32_t start, std::span<const uint32_t> tokens) const;
  /// The tag of the first `tokens` tokens, after checking that the pages from block `first_block` on hold
  /// a chain to them, in every held layer. corrupt: which page, layer and field.
  Result<uint64_t> verify(std::span<std::byte* const> pages, uint32_t tokens, uint32_t first_block = 0) const;

 private:
  struct Header;
  Result<uint64_t> verify_extent(const std::byte* page, uint32_t layer, uint32_t block, uint32_t count,
                                 uint64_t previous) const;
  void seal(std::byte* page, uint32_t layer, const Header& header) const;

  ExtentLayout layout_;
};

}  // namespace mc::costed
