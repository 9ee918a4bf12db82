#include "grammar/automaton.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/assert.h"

namespace mc::grammar {
namespace {

constexpr uint32_t kIndentMax = 64;  // blanks after a line feed: a model must not indent for ever
constexpr int kDigitsMax = 15;       // a double holds 15 digits

}  // namespace

Builder::Builder() {
  build_prelude();
}

NodeId Builder::node() {
  out_.nodes.emplace_back();
  return static_cast<NodeId>(out_.nodes.size() - 1);
}

void Builder::bytes(NodeId from, uint8_t low, uint8_t high, NodeId to) {
  MC_ASSERT_LE(low, high);
  MC_ASSERT(from < out_.nodes.size() && to < out_.nodes.size());
  out_.nodes[from].bytes.push_back({low, high, to});
  if (high < 0x80 || low == high)
    for (int byte = low; byte <= high; ++byte) out_.needed.set(static_cast<size_t>(byte));
}

void Builder::characters(NodeId from, const std::bitset<128>& set, NodeId to) {
  for (size_t low = 0; low < set.size(); ++low) {
    if (!set.test(low)) continue;
    size_t high = low;
    while (high + 1 < set.size() && set.test(high + 1)) ++high;
    bytes(from, static_cast<uint8_t>(low), static_cast<uint8_t>(high), to);
    low = high;
  }
}

void Builder::jump(NodeId from, NodeId to, Jump::Kind kind) {
  MC_ASSERT(kind != Jump::Kind::call && from < out_.nodes.size() && to < out_.nodes.size());
  out_.nodes[from].jumps.push_back({kind, to});
}

void Builder::call(NodeId from, NodeId callee, NodeId to, uint32_t need, uint32_t room) {
  MC_ASSERT_LE(need, room);
  MC_ASSERT(callee < out_.nodes.size() && to < out_.nodes.size());
  out_.nodes[from].jumps.push_back({Jump::Kind::call, to, callee, need, room});
}

NodeId Builder::text(NodeId from, std::string_view text) {
  for (const char c : text) {
    const NodeId next = node();
    bytes(from, static_cast<uint8_t>(c), static_cast<uint8_t>(c), next);
    from = next;
  }
  return from;
}

void Builder::text(NodeId from, std::string_view text, NodeId to) {
  jump(this->text(from, text), to);
}

void Builder::texts(NodeId from, std::vector<std::string> texts, NodeId to) {
  std::sort(texts.begin(), texts.end());
  texts.erase(std::unique(texts.begin(), texts.end()), texts.end());
  // A trie: a thousand values are not a thousand places to be in.
  std::vector<NodeId> path = {from};
  std::string_view former;
  for (const std::string& text : texts) {
    MC_ASSERT(!text.empty());
    const auto ends = std::mismatch(text.begin(), text.end(), former.begin(), former.end());
    const size_t common = static_cast<size_t>(ends.first - text.begin());
    path.resize(common + 1);
    for (size_t i = common; i < text.size(); ++i) path.push_back(this->text(path.back(), text.substr(i, 1)));
    jump(path.back(), to);
    former = text;
  }
}

NodeId Builder::space(NodeId from) {
  const NodeId to = node();
  call(from, prelude().space, to, 0, kIndentMax);
  return to;
}

void Builder::wide_character(NodeId from, NodeId to) {
  const NodeId last = node(), last2 = node(), last3 = node();
  for (const NodeId at : {last, last2, last3}) out_.nodes[at].in_character = true;
  const auto lead = [&](uint8_t low, uint8_t high, uint8_t next_low, uint8_t next_high, NodeId then) {
    const NodeId second = node();
    out_.nodes[second].in_character = true;
    out_.nodes[from].bytes.push_back({low, high, second});
    out_.nodes[second].bytes.push_back({next_low, next_high, then});
  };
  const auto goes_on = [&](NodeId at, NodeId then) { out_.nodes[at].bytes.push_back({0x80, 0xBF, then}); };
  goes_on(last, to), goes_on(last2, last), goes_on(last3, last2);
  out_.nodes[from].bytes.push_back({0xC2, 0xDF, last});
  lead(0xE0, 0xE0, 0xA0, 0xBF, last);
  out_.nodes[from].bytes.push_back({0xE1, 0xEC, last2});
  lead(0xED, 0xED, 0x80, 0x9F, last);
  out_.nodes[from].bytes.push_back({0xEE, 0xEF, last2});
  lead(0xF0, 0xF0, 0x90, 0xBF, last2);
  out_.nodes[from].bytes.push_back({0xF1, 0xF3, last3});
  lead(0xF4, 0xF4, 0x80, 0x8F, last2);
}

// Surrogates are not escaped: a half of a pair is no character, and a pair can be written as it is.
void Builder::escape(NodeId from, NodeId to) {
  for (const char c : std::string_view("\"\\/bfnrt")) bytes(from, static_cast<uint8_t>(c), static_cast<uint8_t>(c), to);
  const NodeId first = text(from, "u"), after_d = node(), second = node(), third = node(), fourth = node();
  const auto hex = [&](NodeId at, NodeId then) {
    bytes(at, '0', '9', then), bytes(at, 'A', 'F', then), bytes(at, 'a', 'f', then);
  };
  bytes(first, '0', '9', second), bytes(first, 'A', 'C', second), bytes(first, 'E', 'F', second);
  bytes(first, 'a', 'c', second), bytes(first, 'e', 'f', second);
  bytes(first, 'D', 'D', after_d), bytes(first, 'd', 'd', after_d), bytes(after_d, '0', '7', third);
  hex(second, third), hex(third, fourth), hex(fourth, to);
}

void Builder::string_character(NodeId from, NodeId to) {
  bytes(from, 0x20, '"' - 1, to), bytes(from, '"' + 1, '\\' - 1, to), bytes(from, '\\' + 1, 0x7E, to);
  escape(text(from, "\\"), to);
  wide_character(from, to);
}

// The automaton of Knuth, Morris and Pratt: at place k the last k bytes are the first k of the mark. Most bytes lead
// back to place 0. The other edges are at most two for each byte of the mark, whatever the mark is.
void Builder::until(NodeId from, std::string_view mark, NodeId to) {
  MC_ASSERT(!mark.empty());
  std::vector<NodeId> seen;
  for (size_t i = 0; i < mark.size(); ++i) {
    seen.push_back(node());
    out_.nodes[seen.back()].is_free_text = true;
  }
  seen.push_back(to);
  jump(from, seen[0]);
  wide_character(seen[0], seen[0]);
  const std::vector<ByteEdge> wide = out_.nodes[seen[0]].bytes;
  std::vector<std::map<uint8_t, size_t>> forward(mark.size());  // bytes that do not lead to place 0
  size_t back = 0;  // the place that the bytes before place k lead to without the first of them
  for (size_t k = 0; k < mark.size(); ++k) {
    const auto next = static_cast<uint8_t>(mark[k]);
    if (k > 0) {
      forward[k] = forward[back];
      const auto at = forward[back].find(next);
      back = at == forward[back].end() ? 0 : at->second;
      out_.nodes[seen[k]].bytes = wide;
    }
    forward[k][next] = k + 1;
    for (const auto& [low, high] : {std::pair(int{'\t'}, int{'\n'}), std::pair(0x20, 0x7E)}) {
      int begin = low;
      for (auto at = forward[k].lower_bound(static_cast<uint8_t>(low)); at != forward[k].end() && at->first <= high;
           ++at) {
        if (begin < at->first) bytes(seen[k], static_cast<uint8_t>(begin), at->first - 1, seen[0]);
        bytes(seen[k], at->first, at->first, seen[at->second]);
        begin = at->first + 1;
      }
      if (begin <= high) bytes(seen[k], static_cast<uint8_t>(begin), static_cast<uint8_t>(high), seen[0]);
    }
    out_.needed.set(next);
  }
}

// ---- the rules of every grammar ------------------------------------------------------------------

void Builder::build_prelude() {
  node();  // 0 is no node, so that a forgotten target is noticed
  Prelude& p = out_.prelude;
  for (NodeId* rule : {&p.space, &p.string, &p.integer, &p.number, &p.value, &p.object, &p.array}) *rule = node();
  build_space();
  build_string();
  build_numbers();
  build_values();
  p.end = static_cast<NodeId>(out_.nodes.size());
}

void Builder::build_space() {
  const NodeId at = prelude().space, end = node(), line = node(), more = node();
  returns(at), returns(end), returns(line);
  bytes(at, ' ', ' ', end);
  bytes(at, '\n', '\n', line);
  jump(line, more, Jump::Kind::take);
  bytes(more, ' ', ' ', line);
}

void Builder::build_string() {
  const NodeId inside = node(), character = node(), end = node();
  returns(end);
  bytes(prelude().string, '"', '"', inside);
  jump(inside, character, Jump::Kind::take);
  string_character(character, inside);
  const NodeId closing = node();
  jump(inside, closing, Jump::Kind::done);
  bytes(closing, '"', '"', end);
}

void Builder::build_numbers() {
  const auto digits = [&](NodeId from, int most, NodeId to) {  // up to `most` digits more
    for (int i = 0; i < most; ++i) {
      jump(from, to);
      const NodeId next = node();
      bytes(from, '0', '9', next);
      from = next;
    }
    jump(from, to);
  };
  const auto whole = [&](NodeId rule, NodeId to) {
    const NodeId sign = node(), first = node();
    jump(rule, sign);
    bytes(rule, '-', '-', sign);
    bytes(sign, '0', '0', to);
    bytes(sign, '1', '9', first);
    digits(first, kDigitsMax - 1, to);
  };
  const NodeId end = node(), after_whole = node(), after_fraction = node();
  returns(end);
  whole(prelude().integer, end);
  whole(prelude().number, after_whole);
  jump(after_whole, after_fraction);
  const NodeId first_digit = node();
  bytes(text(after_whole, "."), '0', '9', first_digit);
  digits(first_digit, kDigitsMax - 1, after_fraction);
  jump(after_fraction, end);
  const NodeId exponent = node(), value = node(), one = node();
  bytes(after_fraction, 'e', 'e', exponent), bytes(after_fraction, 'E', 'E', exponent);
  jump(exponent, value);
  bytes(exponent, '+', '+', value), bytes(exponent, '-', '-', value);
  bytes(value, '0', '9', one);
  digits(one, 1, end);
}

void Builder::build_values() {
  const Prelude& p = out_.prelude;
  const NodeId end = node();
  returns(end);
  for (const std::string_view word : {"true", "false", "null"}) text(p.value, word, end);
  for (const NodeId rule : {p.string, p.number, p.object, p.array}) call(p.value, rule, end);
  const NodeId pair = node(), after_pair = node();
  const NodeId open = space(text(p.object, "{"));
  text(open, "}", end);
  jump(open, pair);
  const NodeId after_key = node();
  call(pair, p.string, after_key);
  call(space(text(after_key, ":")), p.value, after_pair);
  text(space(after_pair), "}", end);
  jump(space(text(after_pair, ",")), pair);
  const NodeId item = node(), after_item = node();
  const NodeId bracket = space(text(p.array, "["));
  text(bracket, "]", end);
  jump(bracket, item);
  call(item, p.value, after_item);
  text(space(after_item), "]", end);
  jump(space(text(after_item, ",")), item);
}

// ---- levels ----------------------------------------------------------------------------------

uint32_t Builder::levels_by(const Jump& jump) const {
  const uint32_t to = out_.nodes[jump.to].levels;
  if (jump.kind != Jump::Kind::call) return to;
  const uint32_t callee = out_.nodes[jump.callee].levels;
  if (out_.nodes[jump.to].only_returns()) return callee;
  return to == kNever || callee == kNever ? kNever : std::max(callee + 1, to);
}

// Dijkstra's algorithm in the form that Knuth gave it for grammars: the levels of a way are never below those of the
// nodes that it leads to. So nodes are finished in the order of their levels, and each way is looked at once for each
// node that it leads to.
size_t Builder::settle() {
  struct Way {
    NodeId from = 0;
    const Jump* jump = nullptr;  // null: a byte edge
  };
  std::vector<std::vector<Way>> ways_to(out_.nodes.size());
  std::vector<std::vector<NodeId>> by_levels(1);
  for (NodeId at = 0; at < out_.nodes.size(); ++at) {
    Node& node = out_.nodes[at];
    node.levels = node.returns ? 0 : kNever;
    if (node.returns) by_levels[0].push_back(at);
    for (const ByteEdge& edge : node.bytes) ways_to[edge.to].push_back({at, nullptr});
    for (const Jump& jump : node.jumps) {
      ways_to[jump.to].push_back({at, &jump});
      if (jump.kind == Jump::Kind::call) ways_to[jump.callee].push_back({at, &jump});
    }
  }
  size_t looked = 0;
  for (uint32_t levels = 0; levels < by_levels.size(); ++levels) {
    for (size_t i = 0; i < by_levels[levels].size(); ++i) {  // it grows
      const NodeId done = by_levels[levels][i];
      if (out_.nodes[done].levels != levels) continue;  // a shorter way was found
      for (const Way& way : std::exchange(ways_to[done], {})) {
        ++looked;
        const uint32_t by = way.jump ? levels_by(*way.jump) : levels;
        if (by >= out_.nodes[way.from].levels) continue;
        MC_ASSERT_LE(levels, by);
        out_.nodes[way.from].levels = by;
        if (by_levels.size() <= by) by_levels.resize(by + size_t{1});
        by_levels[by].push_back(way.from);
      }
    }
  }
  for (Node& node : out_.nodes) {
    std::erase_if(node.bytes, [&](const ByteEdge& edge) { return out_.nodes[edge.to].levels == kNever; });
    std::erase_if(node.jumps, [&](const Jump& jump) { return levels_by(jump) == kNever; });
  }
  return looked;
}

// A call counts with the node that it goes on at, because its rule may be empty.
bool Builder::is_too_wide() const {
  constexpr size_t kLookedMax = 64 * kNodesMax;
  size_t looked = 0;
  std::vector<NodeId> followers;
  std::vector<NodeId> last_seen_from(out_.nodes.size(), kUnbounded);
  for (NodeId from = 0; from < out_.nodes.size(); ++from) {
    const auto add = [&](NodeId at) {
      if (std::exchange(last_seen_from[at], from) != from) followers.push_back(at);
    };
    followers.clear();
    add(from);
    for (size_t i = 0; i < followers.size(); ++i) {
      for (const Jump& jump : out_.nodes[followers[i]].jumps) {
        ++looked;
        add(jump.to);
        if (jump.kind == Jump::Kind::call) add(jump.callee);
      }
      if (followers.size() > kFollowersMax || looked > kLookedMax) return true;
    }
  }
  return false;
}

Automaton Builder::take(NodeId start) {
  MC_ASSERT(!is_full() && out_.nodes[start].levels != kNever);
  out_.start = start;
  return std::move(out_);
}

}  // namespace mc::grammar
