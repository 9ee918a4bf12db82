// The pushdown automaton of a grammar (private to lib/grammar). Its nodes are joined by edges that take one byte and by
// jumps that take none. A rule is a part of the automaton that is entered by a call, which pushes the node to go on at,
// and left at a node that returns. A rule has two counters, which its caller sets: `need` items must still come, and
// `room` items may.
//
// Every node knows the number of levels that the stack must still grow to leave its rule. A place whose stack has not
// so many levels left is never entered, so that a document can always be completed within the bound on its depth.
#pragma once

#include <bitset>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace mc::grammar {

using NodeId = uint32_t;
inline constexpr uint32_t kUnbounded = UINT32_MAX;
inline constexpr uint32_t kNever = UINT32_MAX;  // no document: the rule cannot be left
inline constexpr uint32_t kLevelsMax = 48;      // of the stack; a document is not nested deeper
// Nodes that follow one node without a byte in between. A grammar with more is refused.
inline constexpr size_t kFollowersMax = 1024;

struct ByteEdge {
  uint8_t low = 0, high = 0;
  NodeId to = 0;
};

struct Jump {
  // take: counts an item, if there is room. done: only when no item is needed any more.
  enum class Kind : uint8_t { plain, call, take, done };
  Kind kind = Kind::plain;
  NodeId to = 0;      // of a call: where to go on afterwards
  NodeId callee = 0;  // of a call
  uint32_t need = 0, room = kUnbounded;
};

struct Node {
  std::vector<ByteEdge> bytes;
  std::vector<Jump> jumps;
  bool returns = false;
  bool in_character = false;  // between the bytes of a character of any text
  bool is_free_text = false;  // in text up to a mark
  uint32_t levels = kNever;

  /// A call that goes on here needs no frame.
  bool only_returns() const { return returns && bytes.empty() && jumps.empty(); }
};

/// The rules that every grammar has, at equal nodes.
struct Prelude {
  NodeId space = 0;   // a blank, or a line feed with indentation, or nothing
  NodeId string = 0;  // in quotes; its items are characters
  NodeId integer = 0, number = 0;
  NodeId value = 0, object = 0, array = 0;
  NodeId end = 0;  // one past the last node
};

struct Automaton {
  std::vector<Node> nodes;
  Prelude prelude;
  NodeId start = 0;
  std::bitset<256> needed;  // bytes that an answer may have to spell one by one
};

/// Makes automata. Functions with `from` and `to` add ways between two nodes; those that return a node add a way to a
/// new one.
class Builder {
 public:
  static constexpr size_t kNodesMax = size_t{1} << 16;

  Builder();
  NodeId node();
  void returns(NodeId at) { out_.nodes[at].returns = true; }
  void bytes(NodeId from, uint8_t low, uint8_t high, NodeId to);
  /// One edge for each run of characters.
  void characters(NodeId from, const std::bitset<128>& set, NodeId to);
  void jump(NodeId from, NodeId to, Jump::Kind kind = Jump::Kind::plain);
  void call(NodeId from, NodeId callee, NodeId to, uint32_t need = 0, uint32_t room = kUnbounded);
  NodeId text(NodeId from, std::string_view text);
  void text(NodeId from, std::string_view text, NodeId to);
  /// Any one of the texts, which are not empty.
  void texts(NodeId from, std::vector<std::string> texts, NodeId to);
  NodeId space(NodeId from);
  /// A character outside ASCII.
  void wide_character(NodeId from, NodeId to);
  /// Adds all escapes of a string; `from` is behind the backslash.
  void escape(NodeId from, NodeId to);
  /// A character of a string, escapes included, that needs no counting.
  void string_character(NodeId from, NodeId to);
  /// Any text up to the first `mark`, whose bytes are printable ASCII, tabs and line feeds.
  void until(NodeId from, std::string_view mark, NodeId to);

  const Prelude& prelude() const { return out_.prelude; }
  bool is_full() const { return out_.nodes.size() > kNodesMax; }
  uint32_t levels_of(NodeId at) const { return out_.nodes[at].levels; }
  /// Computes the levels of all nodes, and drops ways that lead nowhere. Returns the number of times that it looked at
  /// a way: each byte edge and each jump once, and each call twice.
  size_t settle();
  /// Whether more nodes than an answer's state holds follow some node without a byte in between, or all nodes together
  /// have too many such followers to tell.
  bool is_too_wide() const;
  Automaton take(NodeId start);

 private:
  void build_prelude();
  void build_space();
  void build_string();
  void build_numbers();
  void build_values();
  uint32_t levels_by(const Jump& jump) const;
  Automaton out_;
};

}  // namespace mc::grammar
