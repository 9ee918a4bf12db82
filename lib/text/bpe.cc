#include "text/bpe.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>
#include <string>

#include "base/assert.h"
#include "text/byte_level.h"
#include "unicode/utf8.h"

namespace mc::text {
namespace {

constexpr size_t kShortWord = 32;
// A word of this size or more is checked against the bounds before it is merged, and its time does not count as that
// of the tokenizer's patterns.
constexpr size_t kHugeWord = 4096;
constexpr size_t kPairProbesMax = 4096;  // as in StringTable

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

/// Whether a byte-level vocabulary has a token for every byte that UTF-8 text can hold.
bool covers_bytes(const TokenizerSpec& spec) {
  std::array<bool, 256> has{};
  for (const VocabEntry& entry : spec.vocab) {
    const auto bytes = bytes_spelt(entry.text);
    if (bytes && bytes->size() == 1) has[static_cast<uint8_t>((*bytes)[0])] = true;
  }
  for (int byte = 0; byte < 256; ++byte)
    if (!has[static_cast<size_t>(byte)] && can_occur_in_utf8(byte)) return false;
  return true;
}

constexpr size_t kDirectCharacters = 0x10000;

/// The byte that a token <0xNN> stands for in encoding, or -1. Only upper-case digits count, because Hugging Face
/// looks up a byte's token by that spelling. Its decoder also reads lower-case digits, and so does ours (decoder.cc).
int upper_case_fallback_byte(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return -1;
  int value = 0;
  for (char c : token.substr(3, 2)) {
    const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
    if (digit < 0) return -1;
    value = value * 16 + digit;
  }
  return value;
}

}  // namespace

Result<Bpe> Bpe::build(const TokenizerSpec& spec) {
  std::vector<bool> special(kTokenIdEnd);
  for (const AddedToken& token : spec.added)
    if (token.special) special[token.id] = true;
  Bpe bpe;
  bpe.byte_ids_.fill(kNone);
  bpe.fuse_unknown_ = spec.fuse_unk;
  bpe.continuing_prefix_ = spec.continuing_prefix;
  bpe.word_suffix_ = spec.word_suffix;
  for (const VocabEntry& entry : spec.vocab)
    if (!spec.unk_token.empty() && entry.text == spec.unk_token) bpe.unknown_ = entry.id;
  Words words;
  words.reserve(spec.vocab.size());
  const bool affixes = !spec.continuing_prefix.empty() || !spec.word_suffix.empty();
  // Byte-level words with affixes are merged in the spelling of the byte alphabet, and so are words whose missing bytes
  // become another token. Missing bytes that vanish are skipped in plain bytes.
  bpe.takes_bytes_ = spec.byte_level && !affixes;
  if (bpe.takes_bytes_ && (!spec.unk_token.empty() || spec.byte_fallback)) bpe.takes_bytes_ = covers_bytes(spec);
  if (bpe.takes_bytes_)
    bpe.index_bytes(spec, special, words);
  else
    MC_CHECK(bpe.index_characters(spec, special, words));
  for (const VocabEntry& entry : spec.vocab) bpe.longest_token_ = std::max(bpe.longest_token_, entry.text.size());
  MC_CHECK(bpe.index_merges(spec));
  bpe.find_expansions(spec, special);
  if (!bpe.takes_bytes_ && !affixes && !spec.ignore_merges) bpe.index_joins(spec);
  if (!affixes || spec.ignore_merges) MC_CHECK(bpe.index_words(words, spec.ignore_merges));
  return bpe;
}

void Bpe::index_bytes(const TokenizerSpec& spec, const std::vector<bool>& special, Words& words) {
  for (const VocabEntry& entry : spec.vocab) {
    auto bytes = bytes_spelt(entry.text);
    if (!bytes) continue;  // only reachable as an added token
    if (bytes->size() == 1) byte_ids_[static_cast<uint8_t>((*bytes)[0])] = entry.id;
    if (!special[entry.id]) words.emplace_back(std::move(*bytes), entry.id);
  }
}

Result<void> Bpe::index_characters(const TokenizerSpec& spec, const std::vector<bool>& special, Words& words) {
  const bool affixes = !continuing_prefix_.empty() || !word_suffix_.empty();
  character_ids_.assign(kDirectCharacters, kNone);
  for (const VocabEntry& entry : spec.vocab) {
    // A control token is no symbol either, except those of one byte, which byte-level BPE needs.
    if (special[entry.id] && entry.text.size() > 1 && entry.id != unknown_) continue;
    const unicode::CodePoint c = unicode::decode_utf8(entry.text);
    const bool single = c.bytes == entry.text.size();
    if (single && c.value < kDirectCharacters) character_ids_[c.value] = entry.id;
    // These symbols are not in the table by character: one character between affixes, or one beyond that table.
    if ((affixes || (single && c.value >= kDirectCharacters)) &&
        symbols_.insert(entry.text, entry.id) != StringTable::Insert::done)
      return Error{Code::invalid, "model.vocab holds crafted tokens"};
    const int byte = spec.byte_fallback ? upper_case_fallback_byte(entry.text) : -1;
    if (byte >= 0) byte_ids_[byte] = entry.id;
    if (!special[entry.id]) words.emplace_back(entry.text, entry.id);
  }
  const bool all_bytes = std::none_of(byte_ids_.begin(), byte_ids_.end(), [](uint32_t id) { return id == kNone; });
  if (!spec.unk_token.empty() && unknown_ == kNone && !all_bytes)
    return Error{Code::invalid, "model.unk_token " + spec.unk_token + " is not in model.vocab"};
  return {};
}

/// Pairs of characters inside the tokens that merging makes. A merge of other symbols (a byte token, the unknown
/// token) would make a token whose text does not determine its symbols. Words are not cut in that case.
void Bpe::index_joins(const TokenizerSpec& spec) {
  std::vector<uint8_t> made(kTokenIdEnd);
  for (const Merge& merge : spec.merges) {
    for (uint32_t part : {merge.left, merge.right})
      if (part == unknown_ || std::find(byte_ids_.begin(), byte_ids_.end(), part) != byte_ids_.end()) return;
    made[merge.result] = 1;
  }
  std::vector<uint64_t> keys;
  for (const VocabEntry& entry : spec.vocab) {
    if (!made[entry.id]) continue;
    uint32_t previous = kNone;
    for (size_t at = 0; at < entry.text.size();) {
      const uint32_t bytes = unicode::decode_utf8(std::string_view(entry.text).substr(at)).bytes;
      const uint32_t id = symbol_of(std::string_view(entry.text).substr(at, bytes));
      // A character without a token is no symbol, so the token cannot be reached; pairs too many are harmless.
      if (previous != kNone && id != kNone) keys.push_back(pair_key(previous, id));
      previous = id;
      at += bytes;
    }
  }
  std::sort(keys.begin(), keys.end());
  keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
  joins_.assign(std::bit_ceil(keys.size() * 2 + 16), UINT64_MAX);
  const int shift = 64 - std::countr_zero(joins_.size());
  for (uint64_t key : keys) {
    size_t slot = pair_slot(key, shift);
    for (size_t probe = 0; joins_[slot] != UINT64_MAX; ++probe) {
      if (probe == kPairProbesMax) return joins_.clear();  // a crafted file; without cuts encoding is slower, but right
      slot = (slot + 1) & (joins_.size() - 1);
    }
    joins_[slot] = key;
  }
}

Result<void> Bpe::index_merges(const TokenizerSpec& spec) {
  const std::vector<Merge>& merges = spec.merges;
  pairs_.assign(std::bit_ceil(merges.size() * 2 + 16), {});
  pair_shift_ = 64 - std::countr_zero(pairs_.size());
  for (uint32_t i = 0; i < merges.size(); ++i) {
    const uint64_t key = pair_key(merges[i].left, merges[i].right);
    size_t slot = pair_slot(key, pair_shift_);
    for (size_t probe = 0; pairs_[slot].key != UINT64_MAX && pairs_[slot].key != key; ++probe) {
      if (probe == kPairProbesMax) return Error{Code::invalid, "model.merges holds crafted pairs"};
      slot = (slot + 1) & (pairs_.size() - 1);
    }
    // The last of equal merges holds, as in Hugging Face's.
    pairs_[slot] = {key, spec.rank_is_id ? merges[i].result : i, merges[i].result};
  }
  return {};
}

void Bpe::find_expansions(const TokenizerSpec& spec, const std::vector<bool>& special) {
  for (const Merge& merge : spec.merges)
    if (special[merge.result] && merge.result != unknown_)
      expansions_.push_back({merge.left, merge.right, merge.result});
  // The first of several merges that make the same token is kept, because merging applies it first.
  const auto by_result = [](const Merge& a, const Merge& b) { return a.result < b.result; };
  std::stable_sort(expansions_.begin(), expansions_.end(), by_result);
  const auto same = [](const Merge& a, const Merge& b) { return a.result == b.result; };
  expansions_.erase(std::unique(expansions_.begin(), expansions_.end(), same), expansions_.end());
}

Result<void> Bpe::index_words(const Words& words, bool all) {
  words_.reserve(words.size());
  std::vector<uint32_t> merged;
  const EncodeLimits limits;
  Work work(0, 0, limits);
  for (const auto& [text, id] : words) {
    if (!all) {
      merged.clear();
      merge_word(text, work, merged);
      if (merged.size() != 1 || merged[0] != id) continue;
    }
    if (words_.insert(text, id) != StringTable::Insert::done)
      return Error{Code::invalid, "model.vocab holds crafted tokens"};
  }
  return {};
}

inline const Bpe::Pair& Bpe::pair(uint32_t left, uint32_t right) const {
  const uint64_t key = pair_key(left, right);
  size_t slot = pair_slot(key, pair_shift_);
  while (pairs_[slot].key != key && pairs_[slot].key != UINT64_MAX) slot = (slot + 1) & (pairs_.size() - 1);
  return pairs_[slot];
}

inline bool Bpe::joins(uint32_t left, uint32_t right) const {
  const uint64_t key = pair_key(left, right);
  size_t slot = pair_slot(key, 64 - std::countr_zero(joins_.size()));
  while (joins_[slot] != key && joins_[slot] != UINT64_MAX) slot = (slot + 1) & (joins_.size() - 1);
  return joins_[slot] == key;
}

bool Bpe::has_all_bytes() const {
  for (int byte = 0; byte < 256; ++byte)
    if (byte_ids_[static_cast<size_t>(byte)] == kNone && can_occur_in_utf8(byte)) return false;
  return true;
}

Result<void> Bpe::encode(std::string_view word, Work& work, std::vector<uint32_t>& out) const {
  MC_ASSERT(!word.empty());
  if (const auto id = words_.find(word))
    out.push_back(*id);
  else if (takes_bytes_)
    merge_word(word, work, out);
  else
    encode_characters(word, work, out);
  return {};
}

/// The token of one character, whose spelling includes its affixes.
uint32_t Bpe::symbol_of(std::string_view spelt) const {
  const unicode::CodePoint c = unicode::decode_utf8(spelt);
  if (c.bytes == spelt.size() && c.value < kDirectCharacters) return character_ids_[c.value];
  return symbols_.find(spelt).value_or(kNone);
}

/// Reads a character without a token. The bytes of a later character come before a pending unknown token, as in
/// Hugging Face's tokenizers.
void Bpe::read_unknown(std::string_view spelt, uint32_t begin, Symbols& out) const {
  const auto missing = [&](char c) { return byte_ids_[static_cast<uint8_t>(c)] == kNone; };
  if (std::none_of(spelt.begin(), spelt.end(), missing)) {
    for (char c : spelt) {
      out.ids.push_back(byte_ids_[static_cast<uint8_t>(c)]);
      out.begins.push_back(begin);
    }
    return;
  }
  if (unknown_ == kNone) return;
  if (out.unknown_begin != kNone) {
    if (fuse_unknown_) return;
    out.ids.push_back(unknown_);
    out.begins.push_back(out.unknown_begin);
  }
  out.unknown_begin = begin;
}

void Bpe::put_unknown(Symbols& out) const {
  if (out.unknown_begin == kNone) return;
  out.ids.push_back(unknown_);
  out.begins.push_back(out.unknown_begin);
  out.unknown_begin = kNone;
}

/// Reads symbols from where `out` stands up to `bytes_end` or one character further, or to the end of the word.
void Bpe::read_symbols(std::string_view word, size_t bytes_end, Symbols& out) const {
  const bool affixes = !continuing_prefix_.empty() || !word_suffix_.empty();
  std::string dressed;
  while (out.at < std::min(bytes_end, word.size())) {
    const uint32_t bytes = unicode::decode_utf8(word.substr(out.at)).bytes;
    std::string_view spelt = word.substr(out.at, bytes);
    const auto begin = static_cast<uint32_t>(out.at);
    out.at += bytes;
    if (affixes) {
      dressed = begin == 0 ? "" : continuing_prefix_;
      dressed += spelt;
      if (out.at == word.size()) dressed += word_suffix_;
      spelt = dressed;
    }
    const uint32_t id = symbol_of(spelt);
    if (id == kNone) {
      read_unknown(spelt, begin, out);
      continue;
    }
    put_unknown(out);
    out.ids.push_back(id);
    out.begins.push_back(begin);
  }
  if (out.at == word.size()) put_unknown(out);
}

/// Merges the pieces between the cuts. The last piece waits until the whole word has been read. Returns the number of
/// merged symbols.
size_t Bpe::encode_cut(std::string_view word, const Symbols& symbols, Work& work, std::vector<uint32_t>& out) const {
  const bool is_last = symbols.at == word.size();
  const std::span<const uint32_t> ids(symbols.ids);
  size_t begin = 0;
  while (begin < ids.size()) {
    size_t end = begin + 1;
    while (end < ids.size() && joins(ids[end - 1], ids[end])) ++end;
    if (end == ids.size() && !is_last) break;
    if (end == begin + 1) {
      merge(ids.subspan(begin, 1), work, out);
    } else {
      const size_t text_end = end < ids.size() ? symbols.begins[end] : word.size();
      const auto known = words_.find(word.substr(symbols.begins[begin], text_end - symbols.begins[begin]));
      if (known)
        out.push_back(*known);
      else
        merge(ids.subspan(begin, end - begin), work, out);
    }
    begin = end;
  }
  return begin;
}

// The word may be a whole text, so its symbols are read a part at a time.
void Bpe::encode_characters(std::string_view word, Work& work, std::vector<uint32_t>& out) const {
  if (joins_.empty()) return merge_word(word, work, out);
  constexpr size_t kPartBytes = size_t{16} << 10;
  thread_local Symbols symbols;
  symbols.clear();
  size_t bytes = kPartBytes;
  while (symbols.at < word.size()) {
    read_symbols(word, symbols.at + bytes, symbols);
    const auto used = static_cast<std::ptrdiff_t>(encode_cut(word, symbols, work, out));
    if (symbols.at == word.size() || work.is_over(out.size())) break;
    if (!may_merge(symbols.ids.size(), work, out)) break;
    bytes = used > 0 ? kPartBytes : bytes * 2;  // doubling bounds repeated searches for cuts in a long piece
    symbols.ids.erase(symbols.ids.begin(), symbols.ids.begin() + used);
    symbols.begins.erase(symbols.begins.begin(), symbols.begins.begin() + used);
  }
  constexpr size_t kKept = 1 << 18;  // a larger buffer is freed, so that no thread keeps the memory of a long piece
  if (symbols.ids.capacity() > kKept) symbols = {};
}

void Bpe::merge_word(std::string_view word, Work& work, std::vector<uint32_t>& out) const {
  if (!takes_bytes_) {
    Symbols symbols;
    read_symbols(word, word.size(), symbols);
    symbols.begins = {};
    return merge(symbols.ids, work, out);
  }
  uint32_t ids[kShortWord];
  std::vector<uint32_t> many;
  uint32_t* at = ids;
  if (word.size() > kShortWord) {
    if (!may_merge(word.size(), work, out)) return;
    many.resize(word.size());
    at = many.data();
  }
  size_t count = 0;
  for (char byte : word)
    if (const uint32_t id = byte_ids_[static_cast<uint8_t>(byte)]; id != kNone) at[count++] = id;
  merge({at, count}, work, out);
}

/// Whether this many symbols, merged into tokens of the greatest length, could stay within the bound on tokens.
bool Bpe::may_merge(size_t symbols, Work& work, const std::vector<uint32_t>& out) const {
  if (symbols <= kHugeWord || !work.is_over(out.size() + symbols / longest_token_)) return true;
  work.give_up();
  return false;
}

void Bpe::merge(std::span<const uint32_t> symbols, Work& work, std::vector<uint32_t>& out) const {
  if (symbols.empty()) return;
  const size_t first = out.size();
  if (symbols.size() <= kShortWord) {
    merge_short(symbols, out);
  } else if (symbols.size() <= kHugeWord) {
    merge_long(symbols, out);
  } else if (may_merge(symbols.size(), work, out)) {
    const Work::Unmeasured unmeasured(work);
    merge_long(symbols, out);
  }
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

void Bpe::merge_short(std::span<const uint32_t> symbols, std::vector<uint32_t>& out) const {
  uint32_t ids[kShortWord];
  uint32_t ranks[kShortWord] = {kNone};  // by pair (i, i + 1)
  uint32_t results[kShortWord];          // the token that the pair becomes
  size_t count = symbols.size();
  const auto look_up = [&](size_t i) {
    if (i + 1 >= count) {
      ranks[i] = kNone;
      return;
    }
    const Pair& found = pair(ids[i], ids[i + 1]);
    ranks[i] = found.rank;
    results[i] = found.result;
  };
  std::copy(symbols.begin(), symbols.end(), ids);
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

namespace {

/// The symbols of a long word while they are merged. The place of a symbol is that of its first character. Its length
/// stands at its first and at its last place, so both neighbours are found without links.
struct LongWord {
  std::vector<uint32_t> ids;
  std::vector<uint16_t> length_at_first, length_at_last;

  explicit LongWord(std::span<const uint32_t> word)
      : ids(word.begin(), word.end()), length_at_first(word.size(), 1), length_at_last(word.size(), 1) {}
  size_t next(size_t at) const { return at + length_at_first[at]; }
  size_t previous(size_t at) const { return at - length_at_last[at - 1]; }
};

/// Candidates for merging by rank, the leftmost first among equals: each is one number, rank << 32 | place. A
/// candidate is stale once another pair starts at its place. When the buffer is full, all stale candidates are dropped
/// at once; they are at least a fifth of it by then.
class Candidates {
 public:
  explicit Candidates(size_t symbols) { heap_.reserve(symbols + symbols / 4 + 16); }
  void start(uint32_t rank, size_t at) { heap_.push_back(uint64_t{rank} << 32 | at); }
  void sort() { std::make_heap(heap_.begin(), heap_.end(), std::greater<>()); }
  template <class IsStale>
  void push(uint32_t rank, size_t at, const IsStale& is_stale) {
    if (heap_.size() == heap_.capacity()) {
      std::erase_if(heap_, is_stale);
      sort();
    }
    heap_.push_back(uint64_t{rank} << 32 | at);
    std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
  }
  bool empty() const { return heap_.empty(); }
  uint64_t pop() {
    std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
    const uint64_t top = heap_.back();
    heap_.pop_back();
    return top;
  }

 private:
  std::vector<uint64_t> heap_;
};

}  // namespace

void Bpe::merge_long(std::span<const uint32_t> symbols, std::vector<uint32_t>& out) const {
  static_assert(kTokenBytesMax <= UINT16_MAX);  // LongWord's lengths
  static const Pair kNoPair;
  LongWord word(symbols);
  Candidates candidates(symbols.size());
  const auto pair_at = [&](size_t at) -> const Pair& {
    const size_t next = word.next(at);
    return word.ids[at] == kNone || next == symbols.size() ? kNoPair : pair(word.ids[at], word.ids[next]);
  };
  const auto is_stale = [&](uint64_t candidate) {
    return pair_at(candidate & UINT32_MAX).rank != static_cast<uint32_t>(candidate >> 32);
  };
  const auto push = [&](size_t at) {
    if (const Pair& made = pair_at(at); made.rank != kNone) candidates.push(made.rank, at, is_stale);
  };
  for (size_t at = 0; at + 1 < symbols.size(); ++at)
    if (const Pair& made = pair_at(at); made.rank != kNone) candidates.start(made.rank, at);
  candidates.sort();
  while (!candidates.empty()) {
    const uint64_t top = candidates.pop();
    const size_t at = top & UINT32_MAX;
    const Pair& merged = pair_at(at);
    if (merged.rank != static_cast<uint32_t>(top >> 32)) continue;
    const size_t next = word.next(at);
    const auto length = static_cast<uint16_t>(word.length_at_first[at] + word.length_at_first[next]);
    word.ids[at] = merged.result;
    word.ids[next] = kNone;  // no pair starts here any more
    word.length_at_first[at] = length;
    word.length_at_last[at + length - 1] = length;
    push(at);
    if (at > 0) push(word.previous(at));
  }
  for (size_t at = 0; at < symbols.size(); at = word.next(at)) out.push_back(word.ids[at]);
}

}  // namespace mc::text
