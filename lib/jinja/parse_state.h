// The state that the parsers of one template share: the tokens, the ids of names, and the parser's nesting depth.
#pragma once

#include <map>

#include "jinja/token_cursor.h"
#include "jinja/tree.h"

namespace mc::jinja {

/// Numbers the names of a template in the order in which the parser meets them.
class NameTable {
 public:
  uint32_t id_of(const std::string& name) {
    const auto [at, added] = ids_.try_emplace(name, static_cast<uint32_t>(names_.size()));
    if (added) names_.push_back(name);
    return at->second;
  }
  /// The names by id. The table is empty afterwards.
  std::vector<std::string> take() {
    ids_.clear();
    return std::move(names_);
  }

 private:
  std::map<std::string, uint32_t, std::less<>> ids_;
  std::vector<std::string> names_;
};

/// Bounds the parser's recursion and the depth of the nodes it makes by kTreeDepthMax.
class Nesting {
 public:
  explicit Nesting(const TokenCursor& tokens) : tokens_(tokens) {}

  /// The caller of an enter() that succeeds calls leave(), unless the parse fails.
  Result<void> enter() {
    if (++depth_ > kTreeDepthMax) return too_deep(tokens_.current().at);
    return {};
  }
  void leave() { --depth_; }
  Result<NodePtr> bounded(NodePtr node) const {
    if (node->depth > kTreeDepthMax) return too_deep(node->at);
    return node;
  }

 private:
  Error too_deep(Position at) const {
    return tokens_.fail("nested deeper than " + std::to_string(kTreeDepthMax) + " levels", at);
  }

  const TokenCursor& tokens_;
  uint32_t depth_ = 0;
};

struct ParseState {
  explicit ParseState(std::string_view source) : tokens(source) {}
  TokenCursor tokens;
  NameTable names;
  Nesting nesting{tokens};
};

}  // namespace mc::jinja
