// Expressions, from the loosest binding (a if b else c) to the tightest (a name).
#include <algorithm>

#include "jinja/filters.h"
#include "jinja/parser.h"

namespace mc::jinja {

Result<NodePtr> Parser::bounded(NodePtr node) {
  if (node->depth > kTreeDepthMax)
    return fail("nested deeper than " + std::to_string(kTreeDepthMax) + " levels", node->at);
  return node;
}

Result<NodePtr> Parser::condition() {
  if (++nesting_ > kTreeDepthMax) return fail("nested deeper than " + std::to_string(kTreeDepthMax) + " levels");
  const Position at = current().at;
  MC_TRY(node, or_());
  while (skip_name("if")) {
    auto choice = make(NodeKind::condition, at);
    MC_TRY(test, or_());
    NodePtr otherwise;
    if (skip_name("else")) {
      MC_TRY(parsed, condition());
      otherwise = std::move(parsed);
    }
    add(*choice, std::move(test));
    add(*choice, std::move(node));
    add(*choice, std::move(otherwise));
    MC_TRY(checked, bounded(std::move(choice)));
    node = std::move(checked);
  }
  --nesting_;
  return node;
}

Result<NodePtr> Parser::binary(Op op, NodePtr left, NodePtr right, Position at) {
  auto node = make(NodeKind::binary, at);
  node->op = op;
  add(*node, std::move(left));
  add(*node, std::move(right));
  return bounded(std::move(node));
}

Result<NodePtr> Parser::or_() {
  MC_TRY(left, and_());
  while (is_name("or")) {
    auto node = make(NodeKind::or_, current().at);
    next();
    MC_TRY(right, and_());
    add(*node, std::move(left));
    add(*node, std::move(right));
    MC_TRY(checked, bounded(std::move(node)));
    left = std::move(checked);
  }
  return left;
}

Result<NodePtr> Parser::and_() {
  MC_TRY(left, not_());
  while (is_name("and")) {
    auto node = make(NodeKind::and_, current().at);
    next();
    MC_TRY(right, not_());
    add(*node, std::move(left));
    add(*node, std::move(right));
    MC_TRY(checked, bounded(std::move(node)));
    left = std::move(checked);
  }
  return left;
}

Result<NodePtr> Parser::not_() {
  if (!is_name("not")) return compare();
  auto node = make(NodeKind::unary, current().at);
  node->op = Op::not_;
  next();
  if (++nesting_ > kTreeDepthMax) return fail("nested deeper than " + std::to_string(kTreeDepthMax) + " levels");
  MC_TRY(operand, not_());
  --nesting_;
  add(*node, std::move(operand));
  return bounded(std::move(node));
}

Result<NodePtr> Parser::compare() {
  constexpr std::pair<std::string_view, Op> kOps[] = {{"==", Op::eq}, {"!=", Op::ne}, {"<", Op::lt},
                                                      {"<=", Op::le}, {">", Op::gt},  {">=", Op::ge}};
  MC_TRY(first, sum());
  NodePtr node;
  while (true) {
    const Position at = current().at;
    Op op = Op::eq;
    const auto* found = std::find_if(std::begin(kOps), std::end(kOps), [&](const auto& o) { return is_op(o.first); });
    if (found != std::end(kOps)) {
      op = found->second;
      next();
    } else if (skip_name("in")) {
      op = Op::in;
    } else if (is_name("not") && ahead().type == TokenType::name && ahead().text == "in") {
      op = Op::not_in;
      next();
      next();
    } else {
      break;
    }
    if (!node) {
      node = make(NodeKind::compare, at);
      add(*node, std::move(first));
    }
    MC_TRY(operand, sum());
    add(*node, std::move(operand));
    node->ops.push_back(op);
  }
  if (!node) return first;
  return bounded(std::move(node));
}

Result<NodePtr> Parser::sum() {
  MC_TRY(left, concat());
  while (is_op("+") || is_op("-")) {
    const Position at = current().at;
    const Op op = is_op("+") ? Op::add : Op::sub;
    next();
    MC_TRY(right, concat());
    MC_TRY(node, binary(op, std::move(left), std::move(right), at));
    left = std::move(node);
  }
  return left;
}

Result<NodePtr> Parser::concat() {
  MC_TRY(first, product());
  if (!is_op("~")) return first;
  auto node = make(NodeKind::concat, current().at);
  add(*node, std::move(first));
  while (skip_op("~")) {
    MC_TRY(operand, product());
    add(*node, std::move(operand));
  }
  return bounded(std::move(node));
}

Result<NodePtr> Parser::product() {
  constexpr std::pair<std::string_view, Op> kOps[] = {
      {"*", Op::mul}, {"/", Op::div}, {"//", Op::floor_div}, {"%", Op::mod}};
  MC_TRY(left, power());
  while (true) {
    const auto* found = std::find_if(std::begin(kOps), std::end(kOps), [&](const auto& o) { return is_op(o.first); });
    if (found == std::end(kOps)) return left;
    const Position at = current().at;
    next();
    MC_TRY(right, power());
    MC_TRY(node, binary(found->second, std::move(left), std::move(right), at));
    left = std::move(node);
  }
}

Result<NodePtr> Parser::power() {
  MC_TRY(left, unary());
  while (is_op("**")) {
    const Position at = current().at;
    next();
    MC_TRY(right, unary());
    MC_TRY(node, binary(Op::pow, std::move(left), std::move(right), at));
    left = std::move(node);
  }
  return left;
}

Result<NodePtr> Parser::unary(bool with_filter) {
  if (++nesting_ > kTreeDepthMax) return fail("nested deeper than " + std::to_string(kTreeDepthMax) + " levels");
  NodePtr node;
  if (is_op("-") || is_op("+")) {
    node = make(NodeKind::unary, current().at);
    node->op = is_op("-") ? Op::neg : Op::pos;
    next();
    MC_TRY(operand, unary(false));
    add(*node, std::move(operand));
  } else {
    MC_TRY(parsed, primary());
    node = std::move(parsed);
  }
  MC_TRY(after, postfix(std::move(node)));
  --nesting_;
  if (!with_filter) return bounded(std::move(after));
  return filter_expression(std::move(after));
}

Result<NodePtr> Parser::name_or_constant(bool with_namespace) {
  const Token token = current();
  next();
  auto node = make(NodeKind::constant, token.at);
  if (token.text == "true" || token.text == "True") {
    node->value = true;
  } else if (token.text == "false" || token.text == "False") {
    node->value = false;
  } else if (token.text == "none" || token.text == "None") {
    node->value = nullptr;
  } else {
    node->kind = NodeKind::name;
    node->name = token.text;
    node->id = intern(token.text);
    if (with_namespace && skip_op(".")) {
      node->kind = NodeKind::namespace_ref;
      MC_TRY(attribute, expect_name());
      node->attribute = std::move(attribute);
    }
  }
  return node;
}

Result<NodePtr> Parser::primary(bool with_namespace) {
  const Token& token = current();
  switch (token.type) {
    case TokenType::name: return name_or_constant(with_namespace);
    case TokenType::string: {
      auto node = make(NodeKind::constant, token.at);
      std::string text;
      for (; is(TokenType::string); next()) text += current().text;
      node->value = Value(std::string_view(text));
      return node;
    }
    case TokenType::integer:
    case TokenType::real: {
      auto node = make(NodeKind::constant, token.at);
      node->value = token.type == TokenType::integer ? Value(token.integer) : Value(token.real);
      next();
      return node;
    }
    default: break;
  }
  if (is_op("[")) return list();
  if (is_op("{")) return dict();
  if (!is_op("(")) return fail("unexpected '" + describe(token) + "'");
  next();
  MC_TRY(node, tuple({.in_parentheses = true}));
  MC_CHECK(expect_op(")"));
  return node;
}

Result<NodePtr> Parser::tuple(TupleOptions options) {
  auto node = make(NodeKind::tuple, current().at);
  bool is_tuple = false;
  while (true) {
    if (!node->children.empty()) MC_CHECK(expect_op(","));
    if (is(TokenType::variable_end) || is(TokenType::block_end) || is_op(")") ||
        (!options.end_name.empty() && is_name(options.end_name)))
      break;
    MC_TRY(item, options.simplified ? primary(options.with_namespace) : options.with_condition ? expression() : or_());
    add(*node, std::move(item));
    if (!is_op(",")) break;
    is_tuple = true;
  }
  if (!is_tuple) {
    if (!node->children.empty()) return std::move(node->children[0]);
    if (!options.in_parentheses) return fail("Expected an expression, got '" + describe(current()) + "'");
  }
  return bounded(std::move(node));
}

Result<NodePtr> Parser::list() {
  auto node = make(NodeKind::list, current().at);
  MC_CHECK(expect_op("["));
  while (!is_op("]")) {
    if (!node->children.empty()) MC_CHECK(expect_op(","));
    if (is_op("]")) break;
    MC_TRY(item, expression());
    add(*node, std::move(item));
  }
  next();
  return bounded(std::move(node));
}

Result<NodePtr> Parser::dict() {
  auto node = make(NodeKind::dict, current().at);
  MC_CHECK(expect_op("{"));
  while (!is_op("}")) {
    if (!node->children.empty()) MC_CHECK(expect_op(","));
    if (is_op("}")) break;
    MC_TRY(key, expression());
    MC_CHECK(expect_op(":"));
    MC_TRY(value, expression());
    add(*node, std::move(key));
    add(*node, std::move(value));
  }
  next();
  return bounded(std::move(node));
}

Result<NodePtr> Parser::postfix(NodePtr node) {
  while (is_op(".") || is_op("[") || is_op("(")) {
    MC_TRY(after, is_op("(") ? call(std::move(node)) : subscript(std::move(node)));
    MC_TRY(checked, bounded(std::move(after)));
    node = std::move(checked);
  }
  return node;
}

Result<NodePtr> Parser::filter_expression(NodePtr node) {
  while (is_op("|") || is_name("is") || is_op("(")) {
    MC_TRY(after, is_op("|")   ? filter(std::move(node), false)
                  : is_op("(") ? call(std::move(node))
                               : test(std::move(node)));
    MC_TRY(checked, bounded(std::move(after)));
    node = std::move(checked);
  }
  return node;
}

Result<NodePtr> Parser::subscript(NodePtr object) {
  const Position at = current().at;
  if (skip_op(".")) {
    const Token token = current();
    if (token.type == TokenType::name) {
      next();
      auto node = make(NodeKind::attribute, at);
      node->name = token.text;
      add(*node, std::move(object));
      return node;
    }
    if (token.type != TokenType::integer) {
      next();
      return fail("expected name or number", token.at);
    }
    next();
    auto index = make(NodeKind::constant, token.at);
    index->value = Value(token.integer);
    auto node = make(NodeKind::item, at);
    add(*node, std::move(object));
    add(*node, std::move(index));
    return node;
  }
  next();
  auto indices = make(NodeKind::tuple, at);
  while (!is_op("]")) {
    if (!indices->children.empty()) MC_CHECK(expect_op(","));
    MC_TRY(index, subscribed());
    add(*indices, std::move(index));
  }
  next();
  auto node = make(NodeKind::item, at);
  add(*node, std::move(object));
  add(*node, indices->children.size() == 1 ? std::move(indices->children[0]) : std::move(indices));
  return node;
}

Result<NodePtr> Parser::subscribed() {
  auto node = make(NodeKind::slice, current().at);
  NodePtr start, stop, step;
  if (!is_op(":")) {
    MC_TRY(index, expression());
    if (!is_op(":")) return index;
    start = std::move(index);
  }
  next();
  const auto ends = [&] { return is_op("]") || is_op(","); };
  if (!is_op(":") && !ends()) {
    MC_TRY(parsed, expression());
    stop = std::move(parsed);
  }
  if (skip_op(":") && !ends()) {
    MC_TRY(parsed, expression());
    step = std::move(parsed);
  }
  add(*node, std::move(start));
  add(*node, std::move(stop));
  add(*node, std::move(step));
  return node;
}

Result<void> Parser::argument(Arguments& out, Position open) {
  const auto misplaced = [&] { return fail("invalid syntax for function call expression", open); };
  if (is_op("*")) {
    if (out.star || out.star_star) return misplaced();
    next();
    MC_TRY(value, expression());
    out.star = std::move(value);
  } else if (is_op("**")) {
    if (out.star_star) return misplaced();
    next();
    MC_TRY(value, expression());
    out.star_star = std::move(value);
  } else if (is(TokenType::name) && ahead().type == TokenType::op && ahead().text == "=") {
    if (out.star_star) return misplaced();
    std::string key = current().text;
    next();
    next();
    MC_TRY(value, expression());
    out.named.emplace_back(std::move(key), std::move(value));
  } else {
    if (out.star || out.star_star || !out.named.empty()) return misplaced();
    MC_TRY(value, expression());
    out.positional.push_back(std::move(value));
  }
  return {};
}

Result<std::unique_ptr<Arguments>> Parser::arguments() {
  const Position open = current().at;
  MC_CHECK(expect_op("("));
  auto out = std::make_unique<Arguments>();
  bool comma = false;
  while (!is_op(")")) {
    if (comma) {
      MC_CHECK(expect_op(","));
      if (is_op(")")) break;
    }
    MC_CHECK(argument(*out, open));
    comma = true;
  }
  next();
  return out;
}

Result<NodePtr> Parser::call(NodePtr callee) {
  auto node = make(NodeKind::call, current().at);
  add(*node, std::move(callee));
  MC_TRY(parsed, arguments());
  adopt(*node, std::move(parsed));
  return node;
}

Result<std::string> Parser::dotted_name() {
  MC_TRY(name, expect_name());
  while (skip_op(".")) {
    MC_TRY(part, expect_name());
    name += "." + part;
  }
  return name;
}

Result<NodePtr> Parser::filter(NodePtr operand, bool start_inline) {
  while (start_inline || is_op("|")) {
    if (!start_inline) next();
    start_inline = false;
    auto node = make(NodeKind::filter, current().at);
    MC_TRY(name, dotted_name());
    node->name = std::move(name);
    if (is_op("(")) {
      MC_TRY(parsed, arguments());
      adopt(*node, std::move(parsed));
    }
    node->filter = find_filter(node->name);
    add(*node, std::move(operand));
    MC_TRY(checked, bounded(std::move(node)));
    operand = std::move(checked);
  }
  return operand;
}

Result<NodePtr> Parser::test(NodePtr operand) {
  auto node = make(NodeKind::test, current().at);
  next();
  const bool negated = skip_name("not");
  MC_TRY(name, dotted_name());
  node->name = std::move(name);
  const bool takes_one = (is(TokenType::name) && !is_name("else") && !is_name("or") && !is_name("and")) ||
                         is(TokenType::string) || is(TokenType::integer) || is(TokenType::real) || is_op("[") ||
                         is_op("{");
  if (is_op("(")) {
    MC_TRY(parsed, arguments());
    adopt(*node, std::move(parsed));
  } else if (takes_one) {
    if (is_name("is")) return fail("You cannot chain multiple tests with is");
    MC_TRY(parsed, primary());
    MC_TRY(after, postfix(std::move(parsed)));
    auto one = std::make_unique<Arguments>();
    one->positional.push_back(std::move(after));
    adopt(*node, std::move(one));
  }
  node->test = find_test(node->name);
  add(*node, std::move(operand));
  if (!negated) return node;
  auto outer = make(NodeKind::unary, node->at);
  outer->op = Op::not_;
  add(*outer, std::move(node));
  return outer;
}

}  // namespace mc::jinja
