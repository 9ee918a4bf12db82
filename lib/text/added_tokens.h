// The matcher of added tokens, which cuts them out of a text before the other steps of the tokenizer. At every
// position from left to right it takes the longest token that matches. Special tokens are control tokens. They match
// only in the template's text, never in a user's text or across its border.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/spec.h"
#include "text/work.h"

namespace mc::text {

/// Bytes [begin, end) of a text that a user wrote.
struct UserRange {
  size_t begin = 0;
  size_t end = 0;
};

/// A piece of a text: an added token, or text between them.
struct Piece {
  static constexpr uint32_t kText = UINT32_MAX;
  size_t begin = 0;
  size_t end = 0;
  uint32_t token = kText;
};

class AddedTokenMatcher {
 public:
  /// Contents are not empty and differ from each other.
  explicit AddedTokenMatcher(std::vector<AddedToken> tokens);

  bool empty() const { return tokens_.empty(); }

  using Sink = std::function<Result<void>(const Piece& piece)>;
  /// Cuts text[begin, end) into pieces that are not empty, and passes them to the sink in order. White space that a
  /// token strips (lstrip, rstrip) belongs to the token's piece. Another token that begins in that white space is a
  /// piece too, as in Hugging Face's tokenizers, so the two pieces overlap. The ranges of `user` are sorted, do not
  /// overlap, and count bytes of `text`. The first error of the sink ends the split. MC4028: the search, or the white
  /// space, takes too many steps.
  Result<void> split(std::string_view text, size_t begin, size_t end, std::span<const UserRange> user, Work& work,
                     const Sink& sink) const;

 private:
  struct Node {
    std::vector<std::pair<uint8_t, uint32_t>> next;  // sorted by byte
    uint32_t token = Piece::kText;                   // index in tokens_
  };
  /// The longest token that matches at `at`, or nullptr. Adds the number of bytes it has read to `steps`.
  const AddedToken* longest_at(std::string_view text, size_t at, size_t end, std::span<const UserRange> user,
                               size_t& steps) const;

  std::vector<AddedToken> tokens_;
  std::vector<Node> nodes_;
  std::array<uint32_t, 256> roots_{};  // node of each first byte, 0 = none
};

}  // namespace mc::text
