// Byte pair encoding (Sennrich et al., 2016): a word starts as its symbols, and the adjacent pair with
// the lowest rank, the leftmost among equals, is merged until no pair has one. Symbols are
//   bytes        byte-level BPE (GPT-2): words are given as plain bytes. A byte without a token vanishes, as in Hugging
//                Face's tokenizers. Where such a byte becomes the unknown token instead, symbols are characters
//                of the byte alphabet
//   characters   otherwise (SentencePiece's form); a character without a token becomes the tokens <0xNN> of its
//                bytes (byte fallback), the unknown token, or nothing, as the file says. Words are given as
//                the vocabulary spells them.
// How a word is merged:
//   short words  an array and a scan for the minimum: quadratic, but in registers and cache
//   long words   a linked list and a heap of candidate pairs: O(n log n) for any word, in about 20 bytes a symbol
//   known words  a table of the vocabulary's words that merging would rebuild exactly (checked for each
//                one when the model is built), so most words of a text cost one look-up
//   cuts         a tokenizer without a pre-tokenizer gives a whole text as one word. No merge crosses two
//                characters that stand side by side in no token that merging makes, so the word is cut
//                there first; exact, and most pieces are known words then
// A word never yields the id of a special token that is longer than a byte, except the unknown token. Where merging
// leads to a special token, encode() gives the token's parts, so merging cannot make a control token of a user's text.
// Any number of threads may use a const Bpe.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "text/spec.h"
#include "text/string_table.h"
#include "text/word_model.h"
#include "text/work.h"

namespace mc::text {

class Bpe : public WordModel {
 public:
  /// invalid: the unknown token is missing, or the vocabulary's keys are crafted.
  static Result<Bpe> build(const TokenizerSpec& spec);

  bool takes_bytes() const override { return takes_bytes_; }
  std::optional<uint32_t> unknown() const override {
    return unknown_ == kNone ? std::nullopt : std::optional(unknown_);
  }
  bool has_all_bytes() const override;
  size_t searches() const override { return 0; }
  Result<void> encode(std::string_view word, Work& work, std::vector<uint32_t>& out) const override;

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  struct Pair {
    uint64_t key = UINT64_MAX;  // left << 32 | right
    uint32_t rank = kNone;
    uint32_t result = kNone;
  };
  struct Symbols {
    std::vector<uint32_t> ids;
    std::vector<uint32_t> begins;  // the position in the word of each symbol's first byte
    // The position up to which the word has been read.
    size_t at = 0;
    uint32_t unknown_begin = kNone;  // the position of the unknown token that is not yet appended
    void clear() {
      ids.clear();
      begins.clear();
      at = 0;
      unknown_begin = kNone;
    }
  };
  using Words = std::vector<std::pair<std::string, uint32_t>>;

  Bpe() = default;
  void index_bytes(const TokenizerSpec& spec, const std::vector<bool>& special, Words& words);
  Result<void> index_characters(const TokenizerSpec& spec, const std::vector<bool>& special, Words& words);
  Result<void> index_merges(const TokenizerSpec& spec);
  Result<void> index_words(const Words& words, bool all);
  void index_joins(const TokenizerSpec& spec);
  void find_expansions(const TokenizerSpec& spec, const std::vector<bool>& special);

  const Pair& pair(uint32_t left, uint32_t right) const;
  bool joins(uint32_t left, uint32_t right) const;
  uint32_t symbol_of(std::string_view character) const;
  void read_symbols(std::string_view word, size_t bytes_end, Symbols& out) const;
  void put_unknown(Symbols& out) const;
  void read_unknown(std::string_view spelt, uint32_t begin, Symbols& out) const;
  void encode_characters(std::string_view word, Work& work, std::vector<uint32_t>& out) const;
  size_t encode_cut(std::string_view word, const Symbols& symbols, Work& work, std::vector<uint32_t>& out) const;
  bool may_merge(size_t symbols, Work& work, const std::vector<uint32_t>& out) const;
  void merge_word(std::string_view word, Work& work, std::vector<uint32_t>& out) const;
  void merge(std::span<const uint32_t> symbols, Work& work, std::vector<uint32_t>& out) const;
  void merge_short(std::span<const uint32_t> symbols, std::vector<uint32_t>& out) const;
  void merge_long(std::span<const uint32_t> symbols, std::vector<uint32_t>& out) const;
  void expand(size_t first, std::vector<uint32_t>& out) const;

  bool takes_bytes_ = false;
  bool fuse_unknown_ = false;
  std::array<uint32_t, 256> byte_ids_{};  // by byte; the tokens <0xNN> where symbols are characters
  std::vector<uint32_t> character_ids_;   // of the characters below U+10000
  StringTable symbols_;                   // spellings of single symbols that character_ids_ cannot hold
  std::string continuing_prefix_;
  std::string word_suffix_;
  uint32_t unknown_ = kNone;
  size_t longest_token_ = 1;

  StringTable words_;
  std::vector<Pair> pairs_;  // open addressing, a power of two, at most half full
  int pair_shift_ = 0;
  // pair keys of symbols that are neighbours in some token, in the layout of pairs_; empty: words are not cut
  std::vector<uint64_t> joins_;
  std::vector<Merge> expansions_;  // the merges that make special tokens, sorted by result
};

}  // namespace mc::text
