#include "text/added_tokens.h"

#include <algorithm>

#include "unicode/unicode.h"
#include "unicode/utf8.h"

namespace mc::text {
namespace {

/// Whether [begin, end) shares a byte with one of the ranges.
bool touches(std::span<const UserRange> user, size_t begin, size_t end) {
  const auto first = std::partition_point(user.begin(), user.end(), [&](const UserRange& r) { return r.end <= begin; });
  return first != user.end() && first->begin < end;
}

bool stands_alone(std::string_view text, size_t begin, size_t end, size_t text_begin, size_t text_end) {
  const std::string_view before = text.substr(text_begin, begin - text_begin);
  const std::string_view after = text.substr(end, text_end - end);
  return (before.empty() || !unicode::is_word(unicode::decode_utf8_back(before).value)) &&
         (after.empty() || !unicode::is_word(unicode::decode_utf8(after).value));
}

}  // namespace

AddedTokenMatcher::AddedTokenMatcher(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)), nodes_(1) {
  for (uint32_t index = 0; index < tokens_.size(); ++index) {
    const std::string& content = tokens_[index].content;
    uint32_t& root = roots_[static_cast<uint8_t>(content[0])];
    if (root == 0) {
      root = static_cast<uint32_t>(nodes_.size());
      nodes_.emplace_back();
    }
    uint32_t node = root;
    for (char c : std::string_view(content).substr(1)) {
      const auto byte = static_cast<uint8_t>(c);
      auto& next = nodes_[node].next;
      const auto edge = std::lower_bound(next.begin(), next.end(), std::pair<uint8_t, uint32_t>(byte, 0));
      if (edge != next.end() && edge->first == byte) {
        node = edge->second;
        continue;
      }
      const auto made = static_cast<uint32_t>(nodes_.size());
      next.insert(edge, {byte, made});
      nodes_.emplace_back();
      node = made;
    }
    nodes_[node].token = index;
  }
}

const AddedToken* AddedTokenMatcher::longest_at(std::string_view text, size_t at, size_t end,
                                                std::span<const UserRange> user, size_t& steps) const {
  const AddedToken* longest = nullptr;
  uint32_t node = roots_[static_cast<uint8_t>(text[at])];
  for (size_t next = at + 1;; ++next, ++steps) {
    if (nodes_[node].token != Piece::kText) {
      const AddedToken& token = tokens_[nodes_[node].token];
      if (!token.special || !touches(user, at, next)) longest = &token;
    }
    if (next == end) break;
    const auto& edges = nodes_[node].next;
    const auto byte = static_cast<uint8_t>(text[next]);
    const auto edge = std::lower_bound(edges.begin(), edges.end(), std::pair<uint8_t, uint32_t>(byte, 0));
    if (edge == edges.end() || edge->first != byte) break;
    node = edge->second;
  }
  return longest;
}

Result<void> AddedTokenMatcher::split(std::string_view text, size_t begin, size_t end, std::span<const UserRange> user,
                                      Work& work, const Sink& sink) const {
  size_t done = begin;  // the sink has the text up to here
  for (size_t at = begin; at < end;) {
    if (roots_[static_cast<uint8_t>(text[at])] == 0) {
      ++at;
      continue;
    }
    size_t steps = 0;
    const AddedToken* token = longest_at(text, at, end, user, steps);
    if (token == nullptr) {
      MC_CHECK(work.scan(steps));
      ++at;
      continue;
    }
    size_t token_begin = at;
    size_t token_end = at + token->content.size();
    at = token_end;  // the search goes on behind the token, even when it is dropped
    if (token->single_word && !stands_alone(text, token_begin, token_end, begin, end)) continue;
    while (token->lstrip && token_begin > done) {
      const unicode::CodePoint c = unicode::decode_utf8_back(text.substr(done, token_begin - done));
      if (!unicode::is_space(c.value)) break;
      token_begin -= c.bytes;
    }
    while (token->rstrip && token_end < end) {
      const unicode::CodePoint c = unicode::decode_utf8(text.substr(token_end, end - token_end));
      if (!unicode::is_space(c.value)) break;
      token_end += c.bytes;
    }
    MC_CHECK(work.scan(steps + (token_end - token_begin)));
    if (token_begin > done) MC_CHECK(sink({done, token_begin, Piece::kText}));
    MC_CHECK(sink({token_begin, token_end, token->id}));
    done = token_end;
  }
  if (done < end) MC_CHECK(sink({done, end, Piece::kText}));
  return {};
}

}  // namespace mc::text
