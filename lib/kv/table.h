// Block table of one sequence: which pages hold its tokens, in order. Position t lies in row
// t % block_tokens of pages()[t / block_tokens]. The table owns nothing; whoever allocated or pinned
// the pages gives them back.
//
//   tokens   |<- 64 ->|<- 64 ->|<- 7 ->          token_count = 135, block_tokens = 64
//   pages    [   12   |    3   |  40   ]         capacity = 192
//             shared   shared   own, still filling
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/assert.h"
#include "kv/pool.h"

namespace mc::kv {

class BlockTable {
 public:
  explicit BlockTable(uint32_t block_tokens) : block_tokens_(block_tokens) { MC_ASSERT(block_tokens > 0); }

  std::span<const PageIndex> pages() const { return pages_; }
  uint32_t block_tokens() const { return block_tokens_; }
  uint32_t token_count() const { return token_count_; }
  uint32_t full_blocks() const { return token_count_ / block_tokens_; }
  /// Tokens the pages of the table can hold.
  uint32_t capacity() const { return static_cast<uint32_t>(pages_.size()) * block_tokens_; }
  /// Pages still missing before `more` tokens fit.
  uint32_t pages_needed(uint32_t more) const {
    const uint32_t total = (token_count_ + more + block_tokens_ - 1) / block_tokens_;
    return total > pages_.size() ? total - static_cast<uint32_t>(pages_.size()) : 0;
  }
  PageIndex page_of(uint32_t position) const {
    MC_ASSERT_LT(position, capacity());
    return pages_[position / block_tokens_];
  }
  uint32_t row_of(uint32_t position) const { return position % block_tokens_; }

  void push(PageIndex page) { pages_.push_back(page); }
  void push(std::span<const PageIndex> pages) { pages_.insert(pages_.end(), pages.begin(), pages.end()); }
  /// Counts tokens whose KV is in the pages now.
  void advance(uint32_t tokens) {
    token_count_ += tokens;
    MC_ASSERT_LE(token_count_, capacity());
  }
  /// After Pool::publish found the block elsewhere.
  void replace(uint32_t block, PageIndex page) {
    MC_ASSERT_LT(block, pages_.size());
    pages_[block] = page;
  }
  /// Forgets the tokens from `token_count` on; returns the pages no longer needed, which leave the table.
  std::vector<PageIndex> truncate(uint32_t token_count) {
    MC_ASSERT_LE(token_count, token_count_);
    token_count_ = token_count;
    const auto keep = static_cast<std::ptrdiff_t>((token_count + block_tokens_ - 1) / block_tokens_);
    std::vector<PageIndex> gone(pages_.begin() + keep, pages_.end());
    pages_.resize(static_cast<size_t>(keep));
    return gone;
  }

 private:
  uint32_t block_tokens_;
  uint32_t token_count_ = 0;
  std::vector<PageIndex> pages_;
};

}  // namespace mc::kv
