// Added tokens are cut out of a text before anything else sees it: at every position the longest one
// that matches, from left to right. Special ones are control tokens; they match only where the text is
// the template's, never in (or across the border of) a user's text.
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
  /// Cuts text[begin, end) into pieces, in order, without empty ones, and gives them out. White space
  /// that a token takes with it (lstrip, rstrip) belongs to the token's piece; another token that begins
  /// in it is a piece too, as in Hugging Face's, so that the two overlap. `user` is sorted, does
  /// not overlap, and counts in bytes of `text`. Ends at the sink's first error. MC4028: the search, or the white
  /// space, takes too many steps.
  Result<void> split(std::string_view text, size_t begin, size_t end, std::span<const UserRange> user, Work& work,
                     const Sink& sink) const;

 private:
  struct Node {
    std::vector<std::pair<uint8_t, uint32_t>> next;  // sorted by byte
    uint32_t token = Piece::kText;                   // index in tokens_
  };
  /// Adds the bytes it looked at to `steps`.
  const AddedToken* longest_at(std::string_view text, size_t at, size_t end, std::span<const UserRange> user,
                               size_t& steps) const;

  std::vector<AddedToken> tokens_;
  std::vector<Node> nodes_;
  std::array<uint32_t, 256> roots_{};  // node of each first byte, 0 = none
};

}  // namespace mc::text
