#include "text/bpe.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <queue>
#include <string>

#include "base/assert.h"
#include "text/byte_level.h"

namespace mc::text {
namespace {

constexpr size_t kShortWordBytes = 32;
constexpr size_t kProbesMax = 4096;  // as in StringTable

uint64_t pair_key(uint32_t left, uint32_t right) {
  return static_cast<uint64_t>(left) << 32 | right;
}
size_t pair_slot(uint64_t key, int shift) {
  key ^= key >> 32;
  return (key * 0x9E3779B97F4A7C15u ^ key * 0xD6E8FEB86659FD93u >> 7) * 0x9E3779B97F4A7C15u >> shift;
}

bool can_occur_in_utf8(int byte) {
  return byte != 0xC0 && byte != 0xC1 && byte < 0xF5;
}

}  // namespace

Result<Bpe> Bpe::build(const TokenizerSpec& spec) {
  std::vector<bool> special(kTokenIdEnd);
  for (const AddedToken& token : spec.added)
    if (token.special) special[token.id] = true;
  Bpe bpe;
  bpe.byte_ids_.fill(kNone);
  std::vector<std::pair<std::string, uint32_t>> words;
  words.reserve(spec.vocab.size());
  for (const VocabEntry& entry : spec.vocab) {
    auto bytes = bytes_spelt(entry.text);
    if (!bytes) continue;  // only reachable as an added token
    if (bytes->size() == 1) bpe.byte_ids_[static_cast<uint8_t>((*bytes)[0])] = entry.id;
    if (!special[entry.id]) words.emplace_back(std::move(*bytes), entry.id);
  }
  for (int byte = 0; byte < 256; ++byte)
    if (bpe.byte_ids_[byte] == kNone && can_occur_in_utf8(byte))
      return Error{Code::unsupported, "tokenizer.json: model.vocab has no token for byte " + std::to_string(byte) +
                                          ", spelt " + spell_bytes(std::string(1, static_cast<char>(byte))) +
                                          "; a byte-level vocabulary has all of them"};
  MC_CHECK(bpe.index_merges(spec.merges));
  bpe.find_expansions(spec, special);
  MC_CHECK(bpe.index_words(words, spec.ignore_merges));
  return bpe;
}

Result<void> Bpe::index_merges(const std::vector<Merge>& merges) {
  pairs_.assign(std::bit_ceil(merges.size() * 2 + 16), {});
  pair_shift_ = 64 - std::countr_zero(pairs_.size());
  for (uint32_t rank = 0; rank < merges.size(); ++rank) {
    const uint64_t key = pair_key(merges[rank].left, merges[rank].right);
    size_t slot = pair_slot(key, pair_shift_);
    for (size_t probe = 0; pairs_[slot].key != UINT64_MAX && pairs_[slot].key != key; ++probe) {
      if (probe == kProbesMax) return Error{Code::invalid, "tokenizer.json: model.merges holds crafted pairs"};
      slot = (slot + 1) & (pairs_.size() - 1);
    }
    pairs_[slot] = {key, rank, merges[rank].result};  // the last of equal merges holds, as in Hugging Face's
  }
  return {};
}

void Bpe::find_expansions(const TokenizerSpec& spec, const std::vector<bool>& special) {
  for (const Merge& merge : spec.merges)
    if (special[merge.result]) expansions_.push_back({merge.left, merge.right, merge.result});
  // Of several merges that give one token, the first: what merging would have met first.
  const auto by_result = [](const Merge& a, const Merge& b) { return a.result < b.result; };
  std::stable_sort(expansions_.begin(), expansions_.end(), by_result);
  const auto same = [](const Merge& a, const Merge& b) { return a.result == b.result; };
  expansions_.erase(std::unique(expansions_.begin(), expansions_.end(), same), expansions_.end());
}

Result<void> Bpe::index_words(const std::vector<std::pair<std::string, uint32_t>>& words, bool all) {
  words_.reserve(words.size());
  std::vector<uint32_t> merged;
  for (const auto& [bytes, id] : words) {
    if (!all) {
      merged.clear();
      merge(bytes, merged);
      if (merged.size() != 1 || merged[0] != id) continue;
    }
    if (words_.insert(bytes, id) != StringTable::Insert::done)
      return Error{Code::invalid, "tokenizer.json: model.vocab holds crafted tokens"};
  }
  return {};
}

inline const Bpe::Pair& Bpe::pair(uint32_t left, uint32_t right) const {
  const uint64_t key = pair_key(left, right);
  size_t slot = pair_slot(key, pair_shift_);
  while (pairs_[slot].key != key && pairs_[slot].key != UINT64_MAX) slot = (slot + 1) & (pairs_.size() - 1);
  return pairs_[slot];
}

void Bpe::encode(std::string_view word, std::vector<uint32_t>& out) const {
  if (const auto id = words_.find(word))
    out.push_back(*id);
  else
    merge(word, out);
}

void Bpe::merge(std::string_view word, std::vector<uint32_t>& out) const {
  MC_ASSERT(!word.empty());
  const size_t first = out.size();
  if (word.size() <= kShortWordBytes)
    merge_short(word, out);
  else
    merge_long(word, out);
  if (!expansions_.empty()) expand(first, out);
}

void Bpe::expand(size_t first, std::vector<uint32_t>& out) const {
  std::vector<uint32_t> open(out.rbegin(), out.rend() - first);  // a stack, the next id on top
  out.resize(first);
  while (!open.empty()) {
    const uint32_t id = open.back();
    open.pop_back();
    const auto found = std::lower_bound(expansions_.begin(), expansions_.end(), id,
                                        [](const Merge& merge, uint32_t wanted) { return merge.result < wanted; });
    if (found == expansions_.end() || found->result != id) {
      out.push_back(id);
    } else {  // the parts are shorter than the token, so this ends
      open.push_back(found->right);
      open.push_back(found->left);
    }
  }
}

void Bpe::merge_short(std::string_view word, std::vector<uint32_t>& out) const {
  uint32_t ids[kShortWordBytes];
  uint32_t ranks[kShortWordBytes] = {kNone};  // of the pair (i, i + 1)
  uint32_t results[kShortWordBytes];          // what it becomes
  size_t count = word.size();
  const auto look_up = [&](size_t i) {
    if (i + 1 >= count) {
      ranks[i] = kNone;
      return;
    }
    const Pair& found = pair(ids[i], ids[i + 1]);
    ranks[i] = found.rank;
    results[i] = found.result;
  };
  for (size_t i = 0; i < count; ++i) ids[i] = byte_ids_[static_cast<uint8_t>(word[i])];
  for (size_t i = 0; i < count; ++i) look_up(i);
  while (true) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < count; ++i)
      if (ranks[i] < ranks[best]) best = i;
    if (ranks[best] == kNone) break;
    ids[best] = results[best];
    const size_t moved = count - best - 2;
    std::memmove(ids + best + 1, ids + best + 2, moved * sizeof *ids);
    std::memmove(ranks + best + 1, ranks + best + 2, moved * sizeof *ranks);
    std::memmove(results + best + 1, results + best + 2, moved * sizeof *results);
    --count;
    look_up(best);
    if (best > 0) look_up(best - 1);
  }
  out.insert(out.end(), ids, ids + count);
}

void Bpe::merge_long(std::string_view word, std::vector<uint32_t>& out) const {
  struct Symbol {
    uint32_t id;
    uint32_t previous;
    uint32_t next;
  };
  struct Candidate {
    uint32_t rank;
    uint32_t at;
    uint32_t left;  // the pair it was made for; stale when the symbols have changed since
    uint32_t right;
    uint32_t result;
    bool operator<(const Candidate& other) const {  // std heaps pop the greatest
      return rank != other.rank ? rank > other.rank : at > other.at;
    }
  };
  const auto count = static_cast<uint32_t>(word.size());
  std::vector<Symbol> symbols(count);
  std::vector<Candidate> heap;
  const auto candidate = [&](uint32_t at) -> Candidate {
    const uint32_t next = symbols[at].next;
    if (next == kNone) return {kNone, at, 0, 0, 0};
    const Pair& found = pair(symbols[at].id, symbols[next].id);
    return {found.rank, at, symbols[at].id, symbols[next].id, found.result};
  };
  const auto push = [&](uint32_t at) {
    const Candidate made = candidate(at);
    if (made.rank == kNone) return;
    heap.push_back(made);
    std::push_heap(heap.begin(), heap.end());
  };
  for (uint32_t i = 0; i < count; ++i)
    symbols[i] = {byte_ids_[static_cast<uint8_t>(word[i])], i == 0 ? kNone : i - 1, i + 1 == count ? kNone : i + 1};
  for (uint32_t i = 0; i < count; ++i)
    if (const Candidate made = candidate(i); made.rank != kNone) heap.push_back(made);
  std::make_heap(heap.begin(), heap.end());
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end());
    const Candidate top = heap.back();
    heap.pop_back();
    Symbol& left = symbols[top.at];
    if (left.id != top.left || left.next == kNone || symbols[left.next].id != top.right) continue;
    Symbol& right = symbols[left.next];
    left.id = top.result;
    left.next = right.next;
    right.id = kNone;  // no candidate names it, so those that start here are stale
    if (left.next != kNone) symbols[left.next].previous = top.at;
    push(top.at);
    if (left.previous != kNone) push(left.previous);
  }
  for (uint32_t at = 0; at != kNone; at = symbols[at].next) out.push_back(symbols[at].id);
}

}  // namespace mc::text
