#include "text/unigram.h"

#include <algorithm>
#include <string>

#include "base/assert.h"
#include "unicode/utf8.h"

namespace mc::text {
namespace {

constexpr double kUnknownPenalty = 10;
// The bound on all tokens. A byte may cost 40 bytes of memory. The largest released vocabularies have 3 MB.
constexpr size_t kUnigramBytesMax = size_t{16} << 20;
constexpr size_t kEdgeProbesMax = 4096;   // as in StringTable
constexpr size_t kUncheckedBytes = 4096;  // of a word between two looks at the bounds
constexpr size_t kKeptNodes = 1 << 16;    // a larger buffer is freed, so that no thread keeps the memory of a long word

size_t slot_of(uint64_t key, size_t slots) {
  key ^= key >> 32;
  return static_cast<size_t>((key * 0x9E3779B97F4A7C15u) >> 20 ^ key * 0xD6E8FEB86659FD93u) & (slots - 1);
}

std::string spell_byte(int byte) {
  constexpr char kDigits[] = "0123456789ABCDEF";
  return {'<', '0', 'x', kDigits[byte >> 4], kDigits[byte & 15], '>'};
}

}  // namespace

Result<Unigram> Unigram::build(const TokenizerSpec& spec) {
  MC_ASSERT_EQ(spec.vocab.size(), spec.scores.size());
  std::vector<bool> special(kTokenIdEnd);
  for (const AddedToken& token : spec.added)
    if (token.special) special[token.id] = true;
  Unigram out;
  out.token_at_.assign(1, kNone);
  out.byte_ids_.fill(kNone);
  out.tokens_.reserve(spec.vocab.size());
  out.grow();
  size_t bytes = 0;
  double lowest = spec.scores.front();
  for (size_t i = 0; i < spec.vocab.size(); ++i) {
    const auto& [text, id] = spec.vocab[i];
    MC_ASSERT_LT(id, kTokenIdEnd);
    if (id >= out.scores_.size()) out.scores_.resize(id + 1);
    out.scores_[id] = spec.scores[i];
    lowest = std::min(lowest, spec.scores[i]);
    if (text == spec.unk_token) out.unknown_ = id;
    if (text.empty() || (special[id] && text != spec.unk_token)) continue;
    if ((bytes += text.size()) > kUnigramBytesMax)
      return Error{Code::invalid, "model.vocab has more than " + std::to_string(kUnigramBytesMax) + " bytes of text"};
    MC_CHECK(out.insert(text, id));
  }
  out.unknown_score_ = lowest - kUnknownPenalty;
  for (int byte = 0; spec.byte_fallback && byte < 256; ++byte)
    out.byte_ids_[static_cast<size_t>(byte)] = out.tokens_.find(spell_byte(byte)).value_or(kNone);
  return out;
}

void Unigram::grow() {
  std::vector<Edge> old(std::max<size_t>(1024, edges_.size() * 2));
  old.swap(edges_);
  for (const Edge& edge : old) {
    if (edge.child == kNone) continue;
    size_t slot = slot_of(edge.key, edges_.size());
    while (edges_[slot].child != kNone) slot = (slot + 1) & (edges_.size() - 1);
    edges_[slot] = edge;
  }
}

Result<void> Unigram::insert(std::string_view token, uint32_t id) {
  const Error crafted{Code::invalid, "model.vocab holds crafted tokens"};
  if (tokens_.insert(token, id) != StringTable::Insert::done) return crafted;
  uint32_t node = 0;
  for (char c : token) {
    if (token_at_.size() * 2 > edges_.size()) grow();
    const uint64_t key = uint64_t{node} << 8 | static_cast<uint8_t>(c);
    size_t slot = slot_of(key, edges_.size());
    for (size_t probe = 0; edges_[slot].child != kNone && edges_[slot].key != key; ++probe) {
      if (probe == kEdgeProbesMax) return crafted;
      slot = (slot + 1) & (edges_.size() - 1);
    }
    if (edges_[slot].child == kNone) {
      edges_[slot] = {key, static_cast<uint32_t>(token_at_.size())};
      token_at_.push_back(kNone);
    }
    node = edges_[slot].child;
  }
  token_at_[node] = id;
  return {};
}

inline uint32_t Unigram::child_of(uint32_t node, uint8_t byte) const {
  const uint64_t key = uint64_t{node} << 8 | byte;
  size_t slot = slot_of(key, edges_.size());
  while (edges_[slot].child != kNone && edges_[slot].key != key) slot = (slot + 1) & (edges_.size() - 1);
  return edges_[slot].child;
}

bool Unigram::has_all_bytes() const {
  return std::find(byte_ids_.begin(), byte_ids_.end(), kNone) == byte_ids_.end();
}

/// Tries every token that starts at `at`. nodes[i] belongs to the byte settled + i. Returns where the longest ends.
size_t Unigram::extend(std::string_view word, size_t at, size_t settled, std::vector<Node>& nodes,
                       size_t& steps) const {
  const double till_here = nodes[at - settled].score;
  const size_t character_end = at + unicode::decode_utf8(word.substr(at)).bytes;
  size_t farthest = character_end;
  const auto offer = [&](size_t end, double score, uint32_t id) {
    if (end - settled >= nodes.size()) nodes.resize(end - settled + 1);
    Node& node = nodes[end - settled];
    const double sum = score + till_here;
    if (node.id == kNone || sum > node.score) node = {sum, id, static_cast<uint32_t>(at)};
  };
  bool is_token = false;
  uint32_t node = 0;
  for (size_t next = at; next < word.size(); ++steps) {
    node = child_of(node, static_cast<uint8_t>(word[next++]));
    if (node == kNone) break;
    const uint32_t id = token_at_[node];
    if (id == kNone) continue;
    offer(next, scores_[id], id);
    is_token |= next == character_end;
    farthest = std::max(farthest, next);
  }
  if (!is_token) offer(character_end, unknown_score_, unknown_);
  return farthest;
}

/// Ends a run of unknown characters. The run may spell a token that was not worth its score; it is that token then, as
/// in Hugging Face's tokenizers.
void Unigram::put_unknown(std::string_view word, Unknown& run, std::vector<uint32_t>& out) const {
  if (run.begin == run.end) return;
  const std::string_view text = word.substr(run.begin, run.end - run.begin);
  run.begin = run.end;
  if (const auto id = tokens_.find(text)) return out.push_back(*id);
  const auto missing = [&](char c) { return byte_ids_[static_cast<uint8_t>(c)] == kNone; };
  if (std::any_of(text.begin(), text.end(), missing)) return out.push_back(unknown_);
  for (char c : text) out.push_back(byte_ids_[static_cast<uint8_t>(c)]);
}

/// Appends the tokens of the best way from `begin` to the last node.
void Unigram::settle(std::string_view word, size_t begin, const std::vector<Node>& nodes, Unknown& run,
                     std::vector<uint32_t>& out) const {
  thread_local std::vector<uint32_t> ends;
  ends.clear();
  for (size_t end = begin + nodes.size() - 1; end > begin; end = nodes[end - begin].begin) {
    MC_ASSERT(nodes[end - begin].id != kNone);
    ends.push_back(static_cast<uint32_t>(end));
  }
  for (size_t i = ends.size(); i-- > 0;) {
    const Node& node = nodes[ends[i] - begin];
    if (node.id == unknown_) {
      if (run.begin == run.end) run = {node.begin, node.begin};
      run.end = ends[i];
      continue;
    }
    put_unknown(word, run, out);
    out.push_back(node.id);
  }
  if (ends.capacity() > kKeptNodes) ends = {};
}

Result<void> Unigram::encode(std::string_view word, Work& work, std::vector<uint32_t>& out) const {
  MC_ASSERT(!word.empty());
  thread_local std::vector<Node> nodes;
  nodes.assign(1, {});
  size_t settled = 0, farthest = 0, checked = 0;
  Unknown run;
  for (size_t at = 0; at < word.size();) {
    size_t steps = 1;
    farthest = std::max(farthest, extend(word, at, settled, nodes, steps));
    if (!work.may_match(steps)) return work.match_error(at);
    at += unicode::decode_utf8(word.substr(at)).bytes;
    if (at != farthest) continue;
    MC_ASSERT_EQ(nodes.size(), at - settled + 1);
    settle(word, settled, nodes, run, out);
    nodes.assign(1, {nodes.back().score, kNone, 0});
    settled = at;
    if (at < checked + kUncheckedBytes) continue;
    checked = at;
    if (work.is_over(out.size())) return {};  // Work::check() names the reason
  }
  put_unknown(word, run, out);
  if (nodes.capacity() > kKeptNodes) nodes = {};
  return {};
}

}  // namespace mc::text
