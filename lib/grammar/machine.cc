// The steps of the automaton over the stacks of one answer. A state is the set of places that the text so far can have
// led to. Places are found by following all jumps, so each one takes a byte next. Equal stacks are one stack, which
// keeps the sets small where a grammar is ambiguous.
#include <algorithm>

#include "base/assert.h"
#include "grammar/automaton.h"
#include "grammar/grammar.h"

namespace mc::grammar {
namespace {

// The places of one state that take a byte, and all that are looked at to find them. Alternatives beyond them are not
// followed: the answer has one form less, not one too many. What follows the first place is always looked at to its
// end, so a state is never empty while the answer can go on.
constexpr size_t kPlacesMax = 512, kSeenMax = 2 * kFollowersMax;
constexpr size_t kSeenHashes = 256;

uint64_t hash_of(uint32_t node, uint32_t need, uint32_t room, uint32_t parent) {
  uint64_t hash = (uint64_t{node} << 32 | parent) * 0x9E3779B97F4A7C15u;
  hash ^= (uint64_t{need} << 32 | room) * 0xC2B2AE3D27D4EB4Fu;
  return hash ^ hash >> 29;
}

}  // namespace

Machine::Machine(const Automaton& automaton, uint32_t depth) : automaton_(automaton) {
  MC_ASSERT_LE(depth, kLevelsMax);
  frames_.push_back({0, 0, 0, 0, depth});
  seen_by_hash_.resize(kSeenHashes);
}

uint32_t Machine::push(const Place& from, uint32_t node) {
  const uint64_t hash = hash_of(node, from.need, from.room, from.frame);
  const auto [begin, end] = by_hash_.equal_range(hash);
  for (auto it = begin; it != end; ++it) {
    const Frame& f = frames_[it->second];
    if (f.node == node && f.need == from.need && f.room == from.room && f.parent == from.frame) return it->second;
  }
  const auto id = static_cast<uint32_t>(frames_.size());
  frames_.push_back({node, from.need, from.room, from.frame, frames_[from.frame].depth + 1});
  by_hash_.emplace(hash, id);
  return id;
}

/// Adds a place to the state under construction, unless it is there or the stack has no room to leave it again.
void Machine::go(const Place& from, uint32_t node, uint32_t frame, uint32_t need, uint32_t room) {
  const uint32_t levels = automaton_.nodes[node].levels;
  if (levels == kNever || frames_[frame].depth + levels > kLevelsMax || seen_.size() >= kSeenMax) return;
  const Place place{node, need, room, frame};
  uint32_t& newest = seen_by_hash_[hash_of(node, need, room, frame) >> 32 & (kSeenHashes - 1)];
  ++work_;
  for (uint32_t at = newest; at != 0; at = seen_[at - 1].next, ++work_)
    if (seen_[at - 1].place == place) return;
  seen_.push_back({place, newest});
  newest = static_cast<uint32_t>(seen_.size());
}

void Machine::pop(const Place& from, State& out) {
  if (from.frame == 0) {
    out.complete = true;
    return;
  }
  const Frame frame = frames_[from.frame];
  go(from, frame.node, frame.parent, frame.need, frame.room);
}

void Machine::visit(Place place, State& out) {
  const Node& node = automaton_.nodes[place.node];
  if (!node.bytes.empty() && out.places.size() < kPlacesMax) out.places.push_back(place);
  if (node.returns) pop(place, out);
  for (const Jump& jump : node.jumps) {
    switch (jump.kind) {
      case Jump::Kind::plain: go(place, jump.to, place.frame, place.need, place.room); break;
      case Jump::Kind::done:
        if (place.need == 0) go(place, jump.to, place.frame, 0, place.room);
        break;
      case Jump::Kind::take:
        if (place.room > 0)
          go(place, jump.to, place.frame, place.need - (place.need > 0),
             place.room == kUnbounded ? kUnbounded : place.room - 1);
        break;
      case Jump::Kind::call: {
        if (automaton_.nodes[jump.to].only_returns()) {
          go(place, jump.callee, place.frame, jump.need, jump.room);
          break;
        }
        const uint32_t depth = frames_[place.frame].depth, after = automaton_.nodes[jump.to].levels;
        if (after == kNever || depth + after > kLevelsMax || depth >= kLevelsMax) break;
        go(place, jump.callee, push(place, jump.to), jump.need, jump.room);
        break;
      }
    }
  }
}

/// Looks at all places behind those that were added.
void Machine::follow(State& out) {
  for (; followed_ < seen_.size(); ++followed_) visit(seen_[followed_].place, out);
  MC_ASSERT_LE(seen_.size(), kSeenMax);
}

void Machine::clear_seen() {
  if (!seen_.empty()) std::fill(seen_by_hash_.begin(), seen_by_hash_.end(), 0);
  seen_.clear();
  followed_ = 0;
}

void Machine::forget_frames(size_t count) {
  MC_ASSERT(seen_.empty() && count > 0 && count <= frames_.size());
  for (; frames_.size() > count; frames_.pop_back()) {
    const Frame& f = frames_.back();
    auto [it, end] = by_hash_.equal_range(hash_of(f.node, f.need, f.room, f.parent));
    while (it != end && it->second != frames_.size() - 1) ++it;
    MC_ASSERT(it != end);
    by_hash_.erase(it);
  }
}

Machine::State Machine::begin() {
  return at({automaton_.start, 0, kUnbounded, 0});
}

Machine::State Machine::at(Place place) {
  MC_ASSERT_LT(place.frame, frames_.size());
  State out;
  go(place, place.node, place.frame, place.need, place.room);
  follow(out);
  clear_seen();
  return out;
}

Machine::State Machine::after(const Place& place) {
  State out;
  pop(place, out);
  follow(out);
  clear_seen();
  return out;
}

Machine::State Machine::step(const State& state, uint8_t byte) {
  State out;
  for (const Place& place : state.places) {
    const Node& node = automaton_.nodes[place.node];
    work_ += node.bytes.size();
    for (const ByteEdge& edge : node.bytes) {
      if (byte < edge.low || edge.high < byte) continue;
      go(place, edge.to, place.frame, place.need, place.room);
      follow(out);
    }
  }
  clear_seen();
  return out;
}

}  // namespace mc::grammar
