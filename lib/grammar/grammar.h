// Grammars force an answer into a form: a JSON document, a JSON schema, a tool call. A grammar is compiled to a
// pushdown automaton over bytes (grammar/automaton.h). A matcher follows an answer token by token and computes the mask
// of the tokens that may come next.
//
//   MC_TRY(grammar, grammar::Grammar::compile(R"({"schema":{"type":"object"}})"));
//   grammar::Masks masks(grammar, vocabulary, shared);
//   grammar::Matcher matcher(masks);
//   matcher.fill(allowed);        // one bit a token; never all 0 while the document is incomplete
//   matcher.accept(token);
//
// A grammar is written as JSON text, which travels with the request (wire::Sampling::grammar):
//   {"json":"object"}                   any JSON object; "value": any JSON value
//   {"schema":{...},"strict":true}      a document of this JSON schema; strict: unknown keywords are errors
//   {"text":"..."}                      exactly this text
//   {"until":"..."}                     any text up to the first occurrence of this one, which is included
//   {"blanks":true}                     up to two line feeds
//   {"seq":[...]} and {"any":[...]}     grammars one after the other; one of them
//
// The mask of one place of the automaton is computed once, for all answers: it does not depend on what is around the
// place. Only tokens that leave the place's rule are tried against the answer's own stack.
//
// A key comes once in an object, also where a schema leaves keys free: a matcher follows the keys of its answer
// (grammar/object_keys.h), and takes tokens that repeat one out of the mask.
#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/result.h"
#include "grammar/object_keys.h"

namespace mc::grammar {

struct Automaton;

class Grammar {
 public:
  static constexpr size_t kTextBytesMax = size_t{256} << 10;

  /// MC4029: the text is no grammar, its schema has a keyword that is not supported, is too deep or too large, or no
  /// document satisfies it. The error names the place, as "#/properties/age/multipleOf".
  static Result<std::shared_ptr<const Grammar>> compile(std::string_view text);
  ~Grammar();

  const Automaton& automaton() const { return *automaton_; }
  /// The texts that the grammar asks for literally. A special token that is part of one may be drawn.
  std::span<const std::string> literals() const { return literals_; }
  /// The memory of the automaton and of the literals, about.
  size_t bytes() const { return bytes_; }

 private:
  explicit Grammar(std::unique_ptr<const Automaton> automaton, std::vector<std::string> literals);
  std::unique_ptr<const Automaton> automaton_;
  std::vector<std::string> literals_;
  size_t bytes_ = 0;
};

/// The bytes of a model's tokens, as a trie in pre-order.
class Vocabulary {
 public:
  struct Node {
    uint32_t end = 0;    // one past the nodes of the subtree
    uint32_t first = 0;  // of the tokens that end here, in ids()
    uint16_t count = 0;
    uint16_t depth = 0;  // number of bytes
    uint8_t byte = 0;
  };
  struct Special {
    uint32_t id = 0;
    std::string text;
  };

  /// `texts` are the bytes of each token by id; a token without bytes is never drawn. `is_special`: the token is drawn
  /// only where a grammar asks for its text literally.
  static Vocabulary build(std::span<const std::string> texts, const std::vector<bool>& is_special);

  /// One past the highest id.
  size_t size() const { return texts_.size(); }
  std::string_view text_of(uint32_t id) const { return id < texts_.size() ? texts_[id] : std::string_view(); }
  std::span<const Node> nodes() const { return nodes_; }
  std::span<const uint32_t> tokens_at(const Node& node) const {
    return std::span(ids_).subspan(node.first, node.count);
  }
  std::span<const Special> specials() const { return specials_; }
  /// The tokens that have one quote, and those that have more.
  std::span<const uint32_t> with_quote() const { return with_quote_; }
  std::span<const uint32_t> with_quotes() const { return with_quotes_; }
  /// Whether a token may end inside a character: every byte that can go on is a token.
  bool may_split_characters() const { return may_split_; }
  /// unsupported: bytes that the grammar needs have no token of their own, so an answer could not go on.
  Result<void> check(const Grammar& grammar) const;

 private:
  std::vector<std::string> texts_;
  std::vector<Node> nodes_;
  std::vector<uint32_t> ids_;
  std::vector<Special> specials_;
  std::vector<uint32_t> with_quote_, with_quotes_;
  std::bitset<256> single_;  // bytes that are tokens
  bool may_split_ = false;
};

/// A place in the automaton: a node, the counters of the rule it belongs to, and the frame to return to.
struct Place {
  uint32_t node = 0;
  uint32_t need = 0, room = 0;
  uint32_t frame = 0;
  bool operator==(const Place&) const = default;
};

/// The stacks of one answer, with equal stacks stored once, and the steps of the automaton over them.
class Machine {
 public:
  struct State {
    std::vector<Place> places;  // each can take a byte
    bool complete = false;      // the automaton may end here
    bool is_dead() const { return places.empty() && !complete; }
  };
  /// `depth` counts the levels below the bottom frame, which are not this machine's.
  explicit Machine(const Automaton& automaton, uint32_t depth = 0);

  State begin();
  /// The state at one place, whose frame is one of this machine.
  State at(Place place);
  /// The state after the rule of this place has ended.
  State after(const Place& place);
  State step(const State& state, uint8_t byte);
  uint32_t depth_of(const Place& place) const { return frames_[place.frame].depth; }
  /// Places and edges that were looked at so far: what steps cost.
  uint64_t work() const { return work_; }
  size_t frames() const { return frames_.size(); }
  /// Forgets the newest frames, so that `count` are left. No place that is still used has one of them.
  void forget_frames(size_t count);

 private:
  struct Frame {
    uint32_t node = 0;
    uint32_t need = 0, room = 0;
    uint32_t parent = 0;
    uint32_t depth = 0;
  };
  void visit(Place place, State& out);
  void follow(State& out);
  void clear_seen();
  void go(const Place& from, uint32_t node, uint32_t frame, uint32_t need, uint32_t room);
  uint32_t push(const Place& from, uint32_t node);
  void pop(const Place& from, State& out);

  const Automaton& automaton_;
  std::vector<Frame> frames_;
  std::unordered_multimap<uint64_t, uint32_t> by_hash_;
  struct Seen {
    Place place;
    uint32_t next = 0;  // with the same hash, counted from 1; 0 = none
  };
  std::vector<Seen> seen_;              // of the state under construction, in the order of discovery
  std::vector<uint32_t> seen_by_hash_;  // the newest of each hash, counted from 1; 0 = none
  size_t followed_ = 0;                 // of seen_
  uint64_t work_ = 0;
};

/// The masks of one place, valid in all surroundings that leave it the same room.
struct LocalMask {
  std::vector<uint64_t> bits;   // the tokens that do not leave the rule, one bit each; or, when they are few,
  std::vector<uint32_t> ids;    // their ids
  std::vector<uint32_t> exits;  // trie nodes at which the rule has ended and longer tokens exist
};

/// Local masks by place. One thread.
class MaskStore {
 public:
  using Key = std::array<uint32_t, 4>;  // node, need, room, levels left
  LocalMask* find(const Key& key);
  /// The pointer is valid until the next call of keep(), lend() or clear().
  LocalMask* keep(const Key& key, LocalMask mask);
  /// A mask that is not kept. The pointer is valid until the next call of lend().
  LocalMask* lend(LocalMask mask) { return &(lent_ = std::move(mask)); }
  void clear() { masks_.clear(), bytes_ = 0; }
  size_t bytes() const { return bytes_; }
  /// The bytes that a kept mask takes, about.
  static size_t bytes_of(const LocalMask& mask);
  static constexpr size_t kBytesMax = size_t{64} << 20;

 private:
  std::map<Key, LocalMask> masks_;
  LocalMask lent_;
  size_t bytes_ = 0;
};

/// The memory that several grammars and their masks share.
class MaskMemory {
 public:
  virtual ~MaskMemory() = default;
  /// Makes room for a mask of so many bytes, and may clear the masks of any grammar for it. False: there is no room, so
  /// the mask must not be kept.
  virtual bool make_room_for_mask(size_t bytes) = 0;
  /// The number of the next use of masks. Numbers grow.
  uint64_t count_use() { return ++uses_; }
  uint64_t uses() const { return uses_; }

 private:
  uint64_t uses_ = 0;
};

/// The masks of one grammar with one vocabulary. One thread.
class Masks {
 public:
  /// `vocabulary`, `shared` and `memory` outlive this; `shared` holds the masks of the rules that all grammars have,
  /// for this vocabulary. Without `memory` each grammar has MaskStore::kBytesMax for its own masks.
  Masks(std::shared_ptr<const Grammar> grammar, const Vocabulary& vocabulary, MaskStore& shared,
        MaskMemory* memory = nullptr);

  const Grammar& grammar() const { return *grammar_; }
  const Vocabulary& vocabulary() const { return vocabulary_; }
  /// The special tokens that the grammar may ask for.
  std::span<const Vocabulary::Special* const> specials() const { return specials_; }
  const LocalMask& local(const Place& place, uint32_t depth);
  /// The memory of the grammar's own masks, about. The grammar itself takes Grammar::bytes() more.
  size_t bytes() const { return own_.bytes(); }
  /// Frees the grammar's own masks, which are computed again when they are needed.
  void clear() { own_.clear(); }
  /// Notes that an answer uses the masks.
  void note_use() {
    if (memory_) used_ = memory_->count_use();
  }
  /// The number of the last use.
  uint64_t used() const { return used_; }
  /// Masks that were computed so far.
  uint64_t computed() const { return computed_; }

 private:
  LocalMask compute(const MaskStore::Key& key) const;

  std::shared_ptr<const Grammar> grammar_;
  const Vocabulary& vocabulary_;
  MaskStore& shared_;
  MaskMemory* const memory_;
  MaskStore own_;
  uint64_t used_ = 0, computed_ = 0;
  std::vector<const Vocabulary::Special*> specials_;
};

/// Follows one answer. One thread.
class Matcher {
 public:
  /// `masks` outlives the matcher.
  explicit Matcher(Masks& masks);

  /// Goes on by one token. False, and nothing changes, when the grammar does not allow it.
  bool accept(uint32_t token);
  /// Sets the bit of each token that may come next, and clears all others. Holds one bit for each token of the
  /// vocabulary, at least. Tokens that end the answer are the caller's.
  void fill(std::vector<uint64_t>& allowed);
  /// Whether the answer may end here.
  bool is_complete() const { return state_.complete; }
  /// Whether nothing may follow.
  bool is_over() const { return state_.places.empty(); }
  /// The cost of this answer's masks and tokens so far, without the masks that are kept.
  uint64_t work() const { return machine_.work(); }
  /// The stacks that the answer remembers.
  size_t frames() const { return machine_.frames(); }

 private:
  Machine::State after(std::string_view bytes);
  /// Whether the state is in text that no form binds.
  bool is_free(const Machine::State& state) const;
  /// Takes the tokens that repeat a key out of the mask.
  void forbid_repeated_keys(std::vector<uint64_t>& allowed) const;

  Masks& masks_;
  Machine machine_;
  Machine::State state_;
  ObjectKeys keys_;  // of the text behind the last free text
};

/// Sets or clears bit `id`; ids beyond the mask are ignored.
inline void allow(std::vector<uint64_t>& allowed, uint32_t id) {
  if (id / 64 < allowed.size()) allowed[id / 64] |= uint64_t{1} << (id % 64);
}
inline void forbid(std::vector<uint64_t>& allowed, uint32_t id) {
  if (id / 64 < allowed.size()) allowed[id / 64] &= ~(uint64_t{1} << (id % 64));
}
inline bool is_allowed(std::span<const uint64_t> allowed, uint32_t id) {
  return id / 64 < allowed.size() && (allowed[id / 64] >> (id % 64) & 1) != 0;
}

}  // namespace mc::grammar
