#include "jinja/tree.h"

#include <algorithm>

namespace mc::jinja {

Error placed(Position at, Error error) {
  error.what = "line " + std::to_string(at.line) + ", column " + std::to_string(at.column) + ": " + error.what;
  return error;
}

NodePtr make_node(NodeKind kind, Position at) {
  auto node = std::make_unique<Node>();
  node->kind = kind;
  node->at = at;
  return node;
}

void Node::deepen(const NodePtr& child) {
  if (child) depth = std::max<uint16_t>(depth, child->depth + 1);
}

void Node::add(NodePtr child) {
  deepen(child);
  children.push_back(std::move(child));
}

void Node::add_body(Nodes body) {
  for (const NodePtr& child : body) deepen(child);
  bodies.push_back(std::move(body));
}

void Node::adopt(std::unique_ptr<Arguments> given) {
  for (const NodePtr& child : given->positional) deepen(child);
  for (const auto& [name, child] : given->named) deepen(child);
  deepen(given->star);
  deepen(given->star_star);
  arguments = std::move(given);
}

uint32_t Tree::id_of(std::string_view name) const {
  const auto found = std::find(names.begin(), names.end(), name);
  return found == names.end() ? kNoName : static_cast<uint32_t>(found - names.begin());
}

}  // namespace mc::jinja
