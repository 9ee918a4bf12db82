// Byte pair encoding (Sennrich et al., 2016, over bytes as in GPT-2): a word starts as its bytes, and
// the adjacent pair with the lowest rank, the leftmost among equals, is merged until no pair has one.
//   short words   an array and a scan for the minimum: quadratic, but in registers and cache
//   long words    a linked list and a heap of candidate pairs: O(n log n) for any word
//   known words   a table of the vocabulary's words that merging would rebuild exactly (checked for
//                 each one when the model is built), so most words of a text cost one look-up
// A word never yields the id of a special token longer than a byte: where merging leads to one, its
// parts are given instead. So text that may not become a control token cannot become one here either.
// Built once; const use from any thread.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "text/spec.h"
#include "text/string_table.h"

namespace mc::text {

class Bpe {
 public:
  /// invalid: the vocabulary lacks a byte that UTF-8 text can hold, or its keys are crafted.
  static Result<Bpe> build(const TokenizerSpec& spec);

  /// Appends the ids of one non-empty word, whose bytes are part of valid UTF-8 text.
  void encode(std::string_view word, std::vector<uint32_t>& out) const;

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  struct Pair {
    uint64_t key = UINT64_MAX;  // left << 32 | right
    uint32_t rank = kNone;
    uint32_t result = kNone;
  };

  Bpe() = default;
  Result<void> index_merges(const std::vector<Merge>& merges);
  Result<void> index_words(const std::vector<std::pair<std::string, uint32_t>>& words, bool all);
  void find_expansions(const TokenizerSpec& spec, const std::vector<bool>& special);
  const Pair& pair(uint32_t left, uint32_t right) const;
  void merge(std::string_view word, std::vector<uint32_t>& out) const;
  void merge_short(std::string_view word, std::vector<uint32_t>& out) const;
  void merge_long(std::string_view word, std::vector<uint32_t>& out) const;
  void expand(size_t first, std::vector<uint32_t>& out) const;

  std::array<uint32_t, 256> byte_ids_{};
  StringTable words_;
  std::vector<Pair> pairs_;  // open addressing, a power of two, at most half full
  int pair_shift_ = 0;
  std::vector<Merge> expansions_;  // of special tokens that merging can reach, sorted by result
};

}  // namespace mc::text
