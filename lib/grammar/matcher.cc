// The masks of an answer. The mask of one place is the set of tokens whose bytes lead through its rule. A walk over the
// trie of the vocabulary finds it, and it is kept. Tokens that leave the rule are tried from there against the stack of
// the answer.
#include <algorithm>
#include <bitset>
#include <deque>

#include "base/assert.h"
#include "grammar/automaton.h"
#include "grammar/grammar.h"

namespace mc::grammar {
namespace {

// One token opens at most so many levels beyond those that a document needs here. So a node's places that have more
// levels left share their masks.
constexpr uint32_t kLevelsATokenMax = 8;
// One token takes at most so many items of a bounded count, such as characters of a string with maxLength. So all
// larger counts share their masks.
constexpr uint32_t kItemsATokenMax = 16;
constexpr size_t kSpecialsMax = 64;
// A walk that has cost so much goes on with the bytes that follow its start alone. A grammar that is very ambiguous
// then gets short tokens; no grammar can hold a step up for long.
constexpr uint64_t kWorkMax = 1'000'000;
// A state with more places is walked as one, not place by place with a bound on the work for each.
constexpr size_t kPlacesApartMax = 8;

using Trie = std::span<const Vocabulary::Node>;

/// The states that a walk over the trie comes to, each with its steps computed once.
class Explorer {
 public:
  struct Stop {
    Machine::State state;
    bool may_end_token = false;  // a token may end here
    std::array<int32_t, 256> next;
  };
  static constexpr int32_t kDead = -1, kUnknown = -2;

  Explorer(Machine& machine, const Automaton& automaton, bool may_split)
      : machine_(machine), automaton_(automaton), may_split_(may_split), work_max_(machine.work() + kWorkMax) {}

  int32_t add(Machine::State state) {
    if (state.is_dead()) return kDead;
    uint64_t hash = state.complete;
    for (const Place& place : state.places)
      for (const uint32_t part : {place.node, place.need, place.room, place.frame})
        hash = (hash ^ part) * 0x9E3779B97F4A7C15u;
    const auto [begin, end] = by_hash_.equal_range(hash);
    for (auto it = begin; it != end; ++it) {
      const Machine::State& known = stops_[static_cast<size_t>(it->second)].state;
      if (known.complete == state.complete && known.places == state.places) return it->second;
    }
    by_hash_.emplace(hash, static_cast<int32_t>(stops_.size()));
    Stop& stop = stops_.emplace_back();
    stop.may_end_token = may_split_ || state.complete ||
                         std::any_of(state.places.begin(), state.places.end(),
                                     [&](const Place& place) { return !automaton_.nodes[place.node].in_character; });
    stop.state = std::move(state);
    stop.next.fill(kUnknown);
    return static_cast<int32_t>(stops_.size() - 1);
  }
  int32_t step(int32_t at, uint8_t byte) {
    const int32_t known = stops_[static_cast<size_t>(at)].next[byte];
    if (known != kUnknown) return known;
    if (at != 0 && machine_.work() > work_max_) return kDead;
    const int32_t next = add(machine_.step(stops_[static_cast<size_t>(at)].state, byte));
    return stops_[static_cast<size_t>(at)].next[byte] = next;
  }
  const Stop& operator[](int32_t at) const { return stops_[static_cast<size_t>(at)]; }

 private:
  Machine& machine_;
  const Automaton& automaton_;
  const bool may_split_;
  const uint64_t work_max_;
  std::deque<Stop> stops_;  // the start of the walk first
  std::unordered_multimap<uint64_t, int32_t> by_hash_;
};

/// Walks the trie nodes [begin, end), the first of which is `depth` bytes deep, from a state. `found` gets each node at
/// which a token may end, `ended` each node at which the automaton is complete and longer tokens exist.
template <class Found, class Ended>
void walk(Trie trie, uint32_t begin, uint32_t end, Explorer& explorer, int32_t from, std::vector<int32_t>& path,
          Found found, Ended ended) {
  if (begin == end) return;
  const size_t base = trie[begin].depth;
  path.assign(1, from);
  for (uint32_t i = begin; i < end;) {
    const Vocabulary::Node& node = trie[i];
    MC_ASSERT(node.depth >= base && node.depth - base < path.size() && node.end > i);
    path.resize(node.depth - base + 1);
    const int32_t at = explorer.step(path.back(), node.byte);
    if (at == Explorer::kDead) {
      i = node.end;
      continue;
    }
    const Explorer::Stop& stop = explorer[at];
    if (node.count > 0 && stop.may_end_token) found(node);
    if (stop.state.complete && node.end > i + 1) ended(i);
    path.push_back(at);
    i = stop.state.places.empty() ? node.end : i + 1;
  }
}

}  // namespace

LocalMask* MaskStore::find(const Key& key) {
  const auto it = masks_.find(key);
  return it == masks_.end() ? nullptr : &it->second;
}

size_t MaskStore::bytes_of(const LocalMask& mask) {
  return 8 * mask.bits.capacity() + 4 * (mask.ids.capacity() + mask.exits.capacity()) + 200;
}

LocalMask* MaskStore::keep(const Key& key, LocalMask mask) {
  const size_t bytes = bytes_of(mask);
  if (bytes_ + bytes > kBytesMax) clear();
  LocalMask* kept = &masks_.insert_or_assign(key, std::move(mask)).first->second;
  bytes_ += bytes;  // of what is kept: the insertion may find no memory
  return kept;
}

Masks::Masks(std::shared_ptr<const Grammar> grammar, const Vocabulary& vocabulary, MaskStore& shared,
             MaskMemory* memory)
    : grammar_(std::move(grammar)), vocabulary_(vocabulary), shared_(shared), memory_(memory) {
  for (const Vocabulary::Special& special : vocabulary_.specials()) {
    const auto asked = [&](const std::string& text) { return text.find(special.text) != std::string::npos; };
    if (specials_.size() < kSpecialsMax && std::any_of(grammar_->literals().begin(), grammar_->literals().end(), asked))
      specials_.push_back(&special);
  }
}

const LocalMask& Masks::local(const Place& place, uint32_t depth) {
  MC_ASSERT_LE(depth, kLevelsMax);
  const uint32_t levels = grammar_->automaton().nodes[place.node].levels;
  MC_ASSERT_LE(depth + levels, kLevelsMax);
  // A need beyond one token's items is like one that never ends: the rule cannot be left inside this token.
  const uint32_t need = place.need > kItemsATokenMax ? kUnbounded - 1 : place.need;
  const uint32_t room = place.room == kUnbounded ? kUnbounded : std::min(place.room, kItemsATokenMax + 1);
  const MaskStore::Key key = {place.node, need, room, std::min(kLevelsMax - depth, levels + kLevelsATokenMax)};
  MaskStore& store = place.node < grammar_->automaton().prelude.end ? shared_ : own_;
  if (const LocalMask* known = store.find(key)) return *known;
  LocalMask mask = compute(key);
  ++computed_;
  if (memory_ && &store == &own_ && !memory_->make_room_for_mask(MaskStore::bytes_of(mask)))
    return *shared_.lend(std::move(mask));
  return *store.keep(key, std::move(mask));
}

LocalMask Masks::compute(const MaskStore::Key& key) const {
  const Automaton& automaton = grammar_->automaton();
  Machine machine(automaton, kLevelsMax - key[3]);
  Explorer explorer(machine, automaton, vocabulary_.may_split_characters());
  Machine::State begin;
  begin.places.push_back({key[0], key[1], key[2], 0});
  LocalMask mask;
  std::vector<int32_t> path;
  const Trie trie = vocabulary_.nodes();
  walk(
      trie, 0, static_cast<uint32_t>(trie.size()), explorer, explorer.add(std::move(begin)), path,
      [&](const Vocabulary::Node& node) {
        for (const uint32_t id : vocabulary_.tokens_at(node)) mask.ids.push_back(id);
      },
      [&](uint32_t at) { mask.exits.push_back(at); });
  if (mask.ids.size() * 32 > vocabulary_.size()) {  // as bits it is smaller
    mask.bits.resize((vocabulary_.size() + 63) / 64);
    for (const uint32_t id : mask.ids) allow(mask.bits, id);
    mask.ids = {};
  }
  mask.ids.shrink_to_fit(), mask.exits.shrink_to_fit();
  return mask;
}

Matcher::Matcher(Masks& masks) : masks_(masks), machine_(masks.grammar().automaton()), state_(machine_.begin()) {
  MC_ASSERT(!state_.is_dead());
}

Machine::State Matcher::after(std::string_view bytes) {
  Machine::State state = state_;
  for (const char c : bytes) {
    if (state.places.empty()) return {};
    state = machine_.step(state, static_cast<uint8_t>(c));
  }
  return state;
}

bool Matcher::is_free(const Machine::State& state) const {
  const auto& nodes = masks_.grammar().automaton().nodes;
  return std::ranges::any_of(state.places, [&](const Place& place) { return nodes[place.node].is_free_text; });
}

bool Matcher::accept(uint32_t token) {
  const std::string_view bytes = masks_.vocabulary().text_of(token);
  if (bytes.empty()) return false;
  bool was_free = is_free(state_);
  size_t bound = 0;  // bytes from here on have a form
  Machine::State next = state_;
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (next.places.empty()) return false;
    next = machine_.step(next, static_cast<uint8_t>(bytes[i]));
    if (is_free(next)) was_free = true, bound = i + 1;
  }
  if (next.is_dead()) return false;
  if (!was_free && keys_.repeats(bytes)) return false;
  if (was_free) keys_.clear();
  keys_.push(bytes.substr(bound));
  state_ = std::move(next);
  return true;
}

void Matcher::forbid_repeated_keys(std::vector<uint64_t>& allowed) const {
  if (is_free(state_)) return;
  const Vocabulary& vocabulary = masks_.vocabulary();
  const auto check = [&](uint32_t id) {
    if (is_allowed(allowed, id) && keys_.repeats(vocabulary.text_of(id))) forbid(allowed, id);
  };
  for (const uint32_t id : vocabulary.with_quotes()) check(id);
  // One quote ends the key under way, and begins no other one that ends in the same token.
  const std::bitset<256> ways = keys_.ways_to_repeat();
  if (ways.none()) return;
  for (const uint32_t id : vocabulary.with_quote())
    if (ways.test(static_cast<uint8_t>(vocabulary.text_of(id)[0]))) check(id);
}

void Matcher::fill(std::vector<uint64_t>& allowed) {
  const Vocabulary& vocabulary = masks_.vocabulary();
  const Trie trie = vocabulary.nodes();
  MC_ASSERT(allowed.size() * 64 >= vocabulary.size());
  std::fill(allowed.begin(), allowed.end(), 0);
  masks_.note_use();
  std::vector<int32_t> path;
  const auto add = [&](const Vocabulary::Node& node) {
    for (const uint32_t id : vocabulary.tokens_at(node)) allow(allowed, id);
  };
  // The walks push frames that the answer itself does not have.
  const size_t frames = machine_.frames();
  const bool is_walked_whole = state_.places.size() > kPlacesApartMax;
  if (is_walked_whole) {
    Explorer explorer(machine_, masks_.grammar().automaton(), vocabulary.may_split_characters());
    walk(trie, 0, static_cast<uint32_t>(trie.size()), explorer, explorer.add(state_), path, add, [](uint32_t) {});
  }
  for (const Place& place : is_walked_whole ? std::span<const Place>() : std::span<const Place>(state_.places)) {
    const LocalMask& local = masks_.local(place, machine_.depth_of(place));
    for (size_t i = 0; i < local.bits.size(); ++i) allowed[i] |= local.bits[i];
    for (const uint32_t id : local.ids) allow(allowed, id);
    if (local.exits.empty()) continue;
    const Machine::State outside = machine_.after(place);
    std::bitset<256> first;
    for (const Place& next : outside.places)
      for (const ByteEdge& edge : masks_.grammar().automaton().nodes[next.node].bytes)
        for (size_t byte = edge.low; byte <= edge.high; ++byte) first.set(byte);
    if (first.none()) continue;
    Explorer explorer(machine_, masks_.grammar().automaton(), vocabulary.may_split_characters());
    const int32_t from = explorer.add(outside);
    for (const uint32_t exit : local.exits)
      for (uint32_t child = exit + 1; child < trie[exit].end; child = trie[child].end)
        if (first.test(trie[child].byte))
          walk(trie, child, trie[child].end, explorer, from, path, add, [](uint32_t) {});
  }
  for (const Vocabulary::Special* special : masks_.specials())
    if (!after(special->text).is_dead()) allow(allowed, special->id);
  machine_.forget_frames(frames);
  forbid_repeated_keys(allowed);
}

}  // namespace mc::grammar
