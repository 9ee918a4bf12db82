// Unigram (Kudo, 2018; SentencePiece): of all ways to cut a word into tokens, encode() takes the one with the highest
// sum of scores (Viterbi). A character that is no token costs 10 more than the lowest score, and becomes the unknown
// token; neighbouring unknown characters become one. Among equal sums the first one found stays: it comes from the
// earliest start, that is, its last token is the longest. Sums are formed from left to right in doubles, as in Hugging
// Face's tokenizers.
//   memory  16 bytes for each byte between two cuts. A cut is a place that no token of the vocabulary covers, so what
//           lies before it is settled. A word without a cut has its own size
//   time    a look-up for each byte of each token that starts at a character, bounded by Work
// A user's text yields no control token: special tokens other than the unknown one are left out of the search.
// Any number of threads may use a const Unigram.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/spec.h"
#include "text/string_table.h"
#include "text/word_model.h"
#include "text/work.h"

namespace mc::text {

class Unigram : public WordModel {
 public:
  /// invalid: the vocabulary is too large.
  static Result<Unigram> build(const TokenizerSpec& spec);

  bool takes_bytes() const override { return false; }
  std::optional<uint32_t> unknown() const override { return unknown_; }
  bool has_all_bytes() const override;
  size_t searches() const override { return 1; }
  Result<void> encode(std::string_view word, Work& work, std::vector<uint32_t>& out) const override;

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  /// The best way to a byte of the word.
  struct Node {
    double score = 0;
    uint32_t id = kNone;
    uint32_t begin = 0;  // of the last token
  };
  struct Edge {
    uint64_t key = UINT64_MAX;  // node << 8 | byte
    uint32_t child = kNone;
  };
  /// A run of unknown characters that may go on.
  struct Unknown {
    size_t begin = 0, end = 0;
  };

  Unigram() = default;
  Result<void> insert(std::string_view token, uint32_t id);
  void grow();
  uint32_t child_of(uint32_t node, uint8_t byte) const;
  size_t extend(std::string_view word, size_t at, size_t settled, std::vector<Node>& nodes, size_t& steps) const;
  void settle(std::string_view word, size_t begin, const std::vector<Node>& nodes, Unknown& run,
              std::vector<uint32_t>& out) const;
  void put_unknown(std::string_view word, Unknown& run, std::vector<uint32_t>& out) const;

  // The tree of the tokens' bytes: node 0 is the root.
  std::vector<Edge> edges_;         // open addressing, a power of two, at most half full
  std::vector<uint32_t> token_at_;  // by node; kNone inside a token
  std::vector<double> scores_;      // by id
  StringTable tokens_;              // for unknown runs, which may spell a token
  std::array<uint32_t, 256> byte_ids_{};
  double unknown_score_ = 0;
  uint32_t unknown_ = 0;
};

}  // namespace mc::text
