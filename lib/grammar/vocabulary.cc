// The vocabulary as a trie. Tokens are sorted by their bytes, so that a node is followed by its subtree. A walk that
// cannot go on skips to the end of the subtree. Tokens without bytes are never drawn.
#include <algorithm>
#include <numeric>

#include "base/assert.h"
#include "base/errors.h"
#include "grammar/automaton.h"
#include "grammar/grammar.h"

namespace mc::grammar {
namespace {

constexpr size_t kTokenBytesMax = 1024;  // longer tokens are never drawn: no walk is deeper

std::string hex(size_t byte) {
  static constexpr char kDigits[] = "0123456789ABCDEF";
  return {'0', 'x', kDigits[byte >> 4], kDigits[byte & 15]};
}

}  // namespace

Vocabulary Vocabulary::build(std::span<const std::string> texts, const std::vector<bool>& is_special) {
  MC_ASSERT_EQ(texts.size(), is_special.size());
  Vocabulary out;
  out.texts_.assign(texts.begin(), texts.end());
  std::vector<uint32_t> order;
  for (uint32_t id = 0; id < texts.size(); ++id) {
    if (texts[id].empty() || texts[id].size() > kTokenBytesMax) continue;
    if (is_special[id])
      out.specials_.push_back({id, texts[id]});
    else
      order.push_back(id);
  }
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    const int way = texts[a].compare(texts[b]);
    return way != 0 ? way < 0 : a < b;
  });
  std::vector<uint32_t> path;  // the node of each byte of the former text
  std::string_view former;
  for (const uint32_t id : order) {
    const std::string_view text = texts[id];
    const auto ends = std::mismatch(text.begin(), text.end(), former.begin(), former.end());
    const auto common = static_cast<size_t>(ends.first - text.begin());
    while (path.size() > common) {
      out.nodes_[path.back()].end = static_cast<uint32_t>(out.nodes_.size());
      path.pop_back();
    }
    for (size_t i = common; i < text.size(); ++i) {
      path.push_back(static_cast<uint32_t>(out.nodes_.size()));
      Node node;
      node.depth = static_cast<uint16_t>(i + 1);
      node.byte = static_cast<uint8_t>(text[i]);
      node.first = static_cast<uint32_t>(out.ids_.size());
      out.nodes_.push_back(node);
    }
    Node& last = out.nodes_[path.back()];
    MC_ASSERT(last.count == 0 || former == text);
    if (last.count == UINT16_MAX) continue;
    ++last.count;
    out.ids_.push_back(id);
    if (const auto quotes = std::count(text.begin(), text.end(), '"'); quotes > 0)
      (quotes == 1 ? out.with_quote_ : out.with_quotes_).push_back(id);
    if (text.size() == 1) out.single_.set(static_cast<uint8_t>(text[0]));
    former = text;
  }
  for (const uint32_t at : path) out.nodes_[at].end = static_cast<uint32_t>(out.nodes_.size());
  out.may_split_ = true;
  for (size_t byte = 0x80; byte < 0xC0; ++byte) out.may_split_ = out.may_split_ && out.single_.test(byte);
  return out;
}

Result<void> Vocabulary::check(const Grammar& grammar) const {
  const auto missing = grammar.automaton().needed & ~single_;
  if (missing.none()) return {};
  size_t byte = 0;
  while (!missing.test(byte)) ++byte;
  return user_error(err::kSchemaUnsupported,
                    "the model's vocabulary has no token for the byte " + hex(byte) + ", which the answer may need");
}

}  // namespace mc::grammar
