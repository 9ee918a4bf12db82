#include "jinja/expression_parser.h"

#include <algorithm>

#include "jinja/filters.h"

namespace mc::jinja {

Result<NodePtr> ExpressionParser::condition() {
  MC_CHECK(nesting_.enter());
  const Position at = tokens_.current().at;
  MC_TRY(node, or_());
  while (tokens_.skip_name("if")) {
    auto choice = make_node(NodeKind::condition, at);
    MC_TRY(test, or_());
    NodePtr otherwise;
    if (tokens_.skip_name("else")) {
      MC_TRY(parsed, condition());
      otherwise = std::move(parsed);
    }
    choice->add(std::move(test));
    choice->add(std::move(node));
    choice->add(std::move(otherwise));
    MC_TRY(checked, nesting_.bounded(std::move(choice)));
    node = std::move(checked);
  }
  nesting_.leave();
  return node;
}

Result<NodePtr> ExpressionParser::binary(Op op, NodePtr left, NodePtr right, Position at) {
  auto node = make_node(NodeKind::binary, at);
  node->op = op;
  node->add(std::move(left));
  node->add(std::move(right));
  return nesting_.bounded(std::move(node));
}

Result<NodePtr> ExpressionParser::or_() {
  MC_TRY(left, and_());
  while (tokens_.is_name("or")) {
    auto node = make_node(NodeKind::or_, tokens_.current().at);
    tokens_.next();
    MC_TRY(right, and_());
    node->add(std::move(left));
    node->add(std::move(right));
    MC_TRY(checked, nesting_.bounded(std::move(node)));
    left = std::move(checked);
  }
  return left;
}

Result<NodePtr> ExpressionParser::and_() {
  MC_TRY(left, not_());
  while (tokens_.is_name("and")) {
    auto node = make_node(NodeKind::and_, tokens_.current().at);
    tokens_.next();
    MC_TRY(right, not_());
    node->add(std::move(left));
    node->add(std::move(right));
    MC_TRY(checked, nesting_.bounded(std::move(node)));
    left = std::move(checked);
  }
  return left;
}

Result<NodePtr> ExpressionParser::not_() {
  if (!tokens_.is_name("not")) return compare();
  auto node = make_node(NodeKind::unary, tokens_.current().at);
  node->op = Op::not_;
  tokens_.next();
  MC_CHECK(nesting_.enter());
  MC_TRY(operand, not_());
  nesting_.leave();
  node->add(std::move(operand));
  return nesting_.bounded(std::move(node));
}

Result<NodePtr> ExpressionParser::compare() {
  constexpr std::pair<std::string_view, Op> kOps[] = {{"==", Op::eq}, {"!=", Op::ne}, {"<", Op::lt},
                                                      {"<=", Op::le}, {">", Op::gt},  {">=", Op::ge}};
  MC_TRY(first, sum());
  NodePtr node;
  while (true) {
    const Position at = tokens_.current().at;
    Op op = Op::eq;
    const auto* found =
        std::find_if(std::begin(kOps), std::end(kOps), [&](const auto& o) { return tokens_.is_op(o.first); });
    if (found != std::end(kOps)) {
      op = found->second;
      tokens_.next();
    } else if (tokens_.skip_name("in")) {
      op = Op::in;
    } else if (tokens_.is_name("not") && tokens_.ahead().type == TokenType::name && tokens_.ahead().text == "in") {
      op = Op::not_in;
      tokens_.next();
      tokens_.next();
    } else {
      break;
    }
    if (!node) {
      node = make_node(NodeKind::compare, at);
      node->add(std::move(first));
    }
    MC_TRY(operand, sum());
    node->add(std::move(operand));
    node->ops.push_back(op);
  }
  if (!node) return first;
  return nesting_.bounded(std::move(node));
}

Result<NodePtr> ExpressionParser::sum() {
  MC_TRY(left, concat());
  while (tokens_.is_op("+") || tokens_.is_op("-")) {
    const Position at = tokens_.current().at;
    const Op op = tokens_.is_op("+") ? Op::add : Op::sub;
    tokens_.next();
    MC_TRY(right, concat());
    MC_TRY(node, binary(op, std::move(left), std::move(right), at));
    left = std::move(node);
  }
  return left;
}

Result<NodePtr> ExpressionParser::concat() {
  MC_TRY(first, product());
  if (!tokens_.is_op("~")) return first;
  auto node = make_node(NodeKind::concat, tokens_.current().at);
  node->add(std::move(first));
  while (tokens_.skip_op("~")) {
    MC_TRY(operand, product());
    node->add(std::move(operand));
  }
  return nesting_.bounded(std::move(node));
}

Result<NodePtr> ExpressionParser::product() {
  constexpr std::pair<std::string_view, Op> kOps[] = {
      {"*", Op::mul}, {"/", Op::div}, {"//", Op::floor_div}, {"%", Op::mod}};
  MC_TRY(left, power());
  while (true) {
    const auto* found =
        std::find_if(std::begin(kOps), std::end(kOps), [&](const auto& o) { return tokens_.is_op(o.first); });
    if (found == std::end(kOps)) return left;
    const Position at = tokens_.current().at;
    tokens_.next();
    MC_TRY(right, power());
    MC_TRY(node, binary(found->second, std::move(left), std::move(right), at));
    left = std::move(node);
  }
}

Result<NodePtr> ExpressionParser::power() {
  MC_TRY(left, unary());
  while (tokens_.is_op("**")) {
    const Position at = tokens_.current().at;
    tokens_.next();
    MC_TRY(right, unary());
    MC_TRY(node, binary(Op::pow, std::move(left), std::move(right), at));
    left = std::move(node);
  }
  return left;
}

Result<NodePtr> ExpressionParser::unary(bool with_filter) {
  MC_CHECK(nesting_.enter());
  NodePtr node;
  if (tokens_.is_op("-") || tokens_.is_op("+")) {
    node = make_node(NodeKind::unary, tokens_.current().at);
    node->op = tokens_.is_op("-") ? Op::neg : Op::pos;
    tokens_.next();
    MC_TRY(operand, unary(false));
    node->add(std::move(operand));
  } else {
    MC_TRY(parsed, primary());
    node = std::move(parsed);
  }
  MC_TRY(after, postfix(std::move(node)));
  nesting_.leave();
  if (!with_filter) return nesting_.bounded(std::move(after));
  return filter_expression(std::move(after));
}

Result<NodePtr> ExpressionParser::name_or_constant(bool with_namespace) {
  const Token token = tokens_.current();
  tokens_.next();
  auto node = make_node(NodeKind::constant, token.at);
  if (token.text == "true" || token.text == "True") {
    node->value = true;
  } else if (token.text == "false" || token.text == "False") {
    node->value = false;
  } else if (token.text == "none" || token.text == "None") {
    node->value = nullptr;
  } else {
    node->kind = NodeKind::name;
    node->name = token.text;
    node->id = names_.id_of(token.text);
    if (with_namespace && tokens_.skip_op(".")) {
      node->kind = NodeKind::namespace_ref;
      MC_TRY(attribute, tokens_.expect_name());
      node->attribute = std::move(attribute);
    }
  }
  return node;
}

Result<NodePtr> ExpressionParser::primary(bool with_namespace) {
  const Token& token = tokens_.current();
  switch (token.type) {
    case TokenType::name: return name_or_constant(with_namespace);
    case TokenType::string: {
      auto node = make_node(NodeKind::constant, token.at);
      std::string text;
      for (; tokens_.is(TokenType::string); tokens_.next()) text += tokens_.current().text;
      node->value = Value(std::string_view(text));
      return node;
    }
    case TokenType::integer:
    case TokenType::real: {
      auto node = make_node(NodeKind::constant, token.at);
      node->value = token.type == TokenType::integer ? Value(token.integer) : Value(token.real);
      tokens_.next();
      return node;
    }
    default: break;
  }
  if (tokens_.is_op("[")) return list();
  if (tokens_.is_op("{")) return dict();
  if (!tokens_.is_op("(")) return tokens_.fail("unexpected '" + describe(token) + "'");
  tokens_.next();
  MC_TRY(node, tuple({.in_parentheses = true}));
  MC_CHECK(tokens_.expect_op(")"));
  return node;
}

Result<NodePtr> ExpressionParser::tuple(TupleOptions options) {
  auto node = make_node(NodeKind::tuple, tokens_.current().at);
  bool is_tuple = false;
  while (true) {
    if (!node->children.empty()) MC_CHECK(tokens_.expect_op(","));
    if (tokens_.is(TokenType::variable_end) || tokens_.is(TokenType::block_end) || tokens_.is_op(")") ||
        (!options.end_name.empty() && tokens_.is_name(options.end_name)))
      break;
    MC_TRY(item, options.simplified ? primary(options.with_namespace) : options.with_condition ? expression() : or_());
    node->add(std::move(item));
    if (!tokens_.is_op(",")) break;
    is_tuple = true;
  }
  if (!is_tuple) {
    if (!node->children.empty()) return std::move(node->children[0]);
    if (!options.in_parentheses)
      return tokens_.fail("Expected an expression, got '" + describe(tokens_.current()) + "'");
  }
  return nesting_.bounded(std::move(node));
}

Result<NodePtr> ExpressionParser::list() {
  auto node = make_node(NodeKind::list, tokens_.current().at);
  MC_CHECK(tokens_.expect_op("["));
  while (!tokens_.is_op("]")) {
    if (!node->children.empty()) MC_CHECK(tokens_.expect_op(","));
    if (tokens_.is_op("]")) break;
    MC_TRY(item, expression());
    node->add(std::move(item));
  }
  tokens_.next();
  return nesting_.bounded(std::move(node));
}

Result<NodePtr> ExpressionParser::dict() {
  auto node = make_node(NodeKind::dict, tokens_.current().at);
  MC_CHECK(tokens_.expect_op("{"));
  while (!tokens_.is_op("}")) {
    if (!node->children.empty()) MC_CHECK(tokens_.expect_op(","));
    if (tokens_.is_op("}")) break;
    MC_TRY(key, expression());
    MC_CHECK(tokens_.expect_op(":"));
    MC_TRY(value, expression());
    node->add(std::move(key));
    node->add(std::move(value));
  }
  tokens_.next();
  return nesting_.bounded(std::move(node));
}

Result<NodePtr> ExpressionParser::postfix(NodePtr node) {
  while (tokens_.is_op(".") || tokens_.is_op("[") || tokens_.is_op("(")) {
    MC_TRY(after, tokens_.is_op("(") ? call(std::move(node)) : subscript(std::move(node)));
    MC_TRY(checked, nesting_.bounded(std::move(after)));
    node = std::move(checked);
  }
  return node;
}

Result<NodePtr> ExpressionParser::filter_expression(NodePtr node) {
  while (tokens_.is_op("|") || tokens_.is_name("is") || tokens_.is_op("(")) {
    MC_TRY(after, tokens_.is_op("|")   ? filter(std::move(node), false)
                  : tokens_.is_op("(") ? call(std::move(node))
                                       : test(std::move(node)));
    MC_TRY(checked, nesting_.bounded(std::move(after)));
    node = std::move(checked);
  }
  return node;
}

Result<NodePtr> ExpressionParser::subscript(NodePtr object) {
  const Position at = tokens_.current().at;
  if (tokens_.skip_op(".")) {
    const Token token = tokens_.current();
    if (token.type == TokenType::name) {
      tokens_.next();
      auto node = make_node(NodeKind::attribute, at);
      node->name = token.text;
      node->add(std::move(object));
      return node;
    }
    if (token.type != TokenType::integer) {
      tokens_.next();
      return tokens_.fail("expected name or number", token.at);
    }
    tokens_.next();
    auto index = make_node(NodeKind::constant, token.at);
    index->value = Value(token.integer);
    auto node = make_node(NodeKind::item, at);
    node->add(std::move(object));
    node->add(std::move(index));
    return node;
  }
  tokens_.next();
  auto indices = make_node(NodeKind::tuple, at);
  while (!tokens_.is_op("]")) {
    if (!indices->children.empty()) MC_CHECK(tokens_.expect_op(","));
    MC_TRY(index, subscribed());
    indices->add(std::move(index));
  }
  tokens_.next();
  auto node = make_node(NodeKind::item, at);
  node->add(std::move(object));
  node->add(indices->children.size() == 1 ? std::move(indices->children[0]) : std::move(indices));
  return node;
}

Result<NodePtr> ExpressionParser::subscribed() {
  auto node = make_node(NodeKind::slice, tokens_.current().at);
  NodePtr start, stop, step;
  if (!tokens_.is_op(":")) {
    MC_TRY(index, expression());
    if (!tokens_.is_op(":")) return index;
    start = std::move(index);
  }
  tokens_.next();
  const auto ends = [&] { return tokens_.is_op("]") || tokens_.is_op(","); };
  if (!tokens_.is_op(":") && !ends()) {
    MC_TRY(parsed, expression());
    stop = std::move(parsed);
  }
  if (tokens_.skip_op(":") && !ends()) {
    MC_TRY(parsed, expression());
    step = std::move(parsed);
  }
  node->add(std::move(start));
  node->add(std::move(stop));
  node->add(std::move(step));
  return node;
}

Result<void> ExpressionParser::argument(Arguments& out, Position open) {
  const auto misplaced = [&] { return tokens_.fail("invalid syntax for function call expression", open); };
  if (tokens_.is_op("*")) {
    if (out.star || out.star_star) return misplaced();
    tokens_.next();
    MC_TRY(value, expression());
    out.star = std::move(value);
  } else if (tokens_.is_op("**")) {
    if (out.star_star) return misplaced();
    tokens_.next();
    MC_TRY(value, expression());
    out.star_star = std::move(value);
  } else if (tokens_.is(TokenType::name) && tokens_.ahead().type == TokenType::op && tokens_.ahead().text == "=") {
    if (out.star_star) return misplaced();
    std::string key = tokens_.current().text;
    tokens_.next();
    tokens_.next();
    MC_TRY(value, expression());
    out.named.emplace_back(std::move(key), std::move(value));
  } else {
    if (out.star || out.star_star || !out.named.empty()) return misplaced();
    MC_TRY(value, expression());
    out.positional.push_back(std::move(value));
  }
  return {};
}

Result<std::unique_ptr<Arguments>> ExpressionParser::arguments() {
  const Position open = tokens_.current().at;
  MC_CHECK(tokens_.expect_op("("));
  auto out = std::make_unique<Arguments>();
  bool comma = false;
  while (!tokens_.is_op(")")) {
    if (comma) {
      MC_CHECK(tokens_.expect_op(","));
      if (tokens_.is_op(")")) break;
    }
    MC_CHECK(argument(*out, open));
    comma = true;
  }
  tokens_.next();
  return out;
}

Result<NodePtr> ExpressionParser::call(NodePtr callee) {
  auto node = make_node(NodeKind::call, tokens_.current().at);
  node->add(std::move(callee));
  MC_TRY(parsed, arguments());
  node->adopt(std::move(parsed));
  return node;
}

Result<std::string> ExpressionParser::dotted_name() {
  MC_TRY(name, tokens_.expect_name());
  while (tokens_.skip_op(".")) {
    MC_TRY(part, tokens_.expect_name());
    name += "." + part;
  }
  return name;
}

Result<NodePtr> ExpressionParser::filter(NodePtr operand, bool start_inline) {
  while (start_inline || tokens_.is_op("|")) {
    if (!start_inline) tokens_.next();
    start_inline = false;
    auto node = make_node(NodeKind::filter, tokens_.current().at);
    MC_TRY(name, dotted_name());
    node->name = std::move(name);
    if (tokens_.is_op("(")) {
      MC_TRY(parsed, arguments());
      node->adopt(std::move(parsed));
    }
    node->filter = find_filter(node->name);
    node->add(std::move(operand));
    MC_TRY(checked, nesting_.bounded(std::move(node)));
    operand = std::move(checked);
  }
  return operand;
}

Result<NodePtr> ExpressionParser::test(NodePtr operand) {
  auto node = make_node(NodeKind::test, tokens_.current().at);
  tokens_.next();
  const bool negated = tokens_.skip_name("not");
  MC_TRY(name, dotted_name());
  node->name = std::move(name);
  const bool takes_one =
      (tokens_.is(TokenType::name) && !tokens_.is_name("else") && !tokens_.is_name("or") && !tokens_.is_name("and")) ||
      tokens_.is(TokenType::string) || tokens_.is(TokenType::integer) || tokens_.is(TokenType::real) ||
      tokens_.is_op("[") || tokens_.is_op("{");
  if (tokens_.is_op("(")) {
    MC_TRY(parsed, arguments());
    node->adopt(std::move(parsed));
  } else if (takes_one) {
    if (tokens_.is_name("is")) return tokens_.fail("You cannot chain multiple tests with is");
    MC_TRY(parsed, primary());
    MC_TRY(after, postfix(std::move(parsed)));
    auto one = std::make_unique<Arguments>();
    one->positional.push_back(std::move(after));
    node->adopt(std::move(one));
  }
  node->test = find_test(node->name);
  node->add(std::move(operand));
  if (!negated) return node;
  auto outer = make_node(NodeKind::unary, node->at);
  outer->op = Op::not_;
  outer->add(std::move(node));
  return outer;
}

Result<NodePtr> ExpressionParser::target(TupleOptions options) {
  MC_TRY(node, tuple(options));
  const auto assignable = [](const auto& self, const Node& n) -> bool {
    if (n.kind == NodeKind::tuple)
      return std::all_of(n.children.begin(), n.children.end(), [&](const NodePtr& c) { return self(self, *c); });
    return n.kind == NodeKind::name || n.kind == NodeKind::namespace_ref;
  };
  if (!assignable(assignable, *node)) {
    constexpr std::pair<NodeKind, std::string_view> kNames[] = {
        {NodeKind::constant, "const"}, {NodeKind::list, "list"}, {NodeKind::dict, "dict"}, {NodeKind::tuple, "tuple"}};
    std::string name = "expression";
    for (const auto& [kind, text] : kNames)
      if (node->kind == kind) name = text;
    return tokens_.fail("can't assign to '" + name + "'", node->at);
  }
  return node;
}

Result<std::string> ExpressionParser::name_target() {
  const Position at = tokens_.current().at;
  MC_TRY(name, tokens_.expect_name());
  for (std::string_view word : {"true", "false", "none", "True", "False", "None"})
    if (name == word) return tokens_.fail("can't assign to 'name'", at);
  return name;
}

}  // namespace mc::jinja
