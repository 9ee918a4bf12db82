#include "jinja/statement_parser.h"

#include <algorithm>

namespace mc::jinja {

Error StatementParser::unknown_tag(const std::string* name, Position at) {
  std::string message = name ? "Encountered unknown tag '" + *name + "'." : "Unexpected end of template.";
  std::string looking;
  bool nested_wrongly = false;
  if (!end_stack_.empty())
    for (std::string_view end : end_stack_.back())
      looking += (looking.empty() ? "'" : " or '") + std::string(end) + "'";
  for (const Ends& ends : end_stack_)
    nested_wrongly |= name && std::find(ends.begin(), ends.end(), *name) != ends.end();
  if (nested_wrongly)
    message +=
        " You probably made a nesting mistake. Jinja is expecting this tag, but currently looking for " + looking + ".";
  else if (!looking.empty())
    message += " Jinja was looking for the following tags: " + looking + ".";
  if (!tag_stack_.empty()) message += " The innermost block that needs to be closed is '" + tag_stack_.back() + "'.";
  return tokens_.fail(std::move(message), at);
}

Result<void> StatementParser::body_part(Nodes& out) {
  switch (tokens_.current().type) {
    case TokenType::data: {
      auto node = make_node(NodeKind::data, tokens_.current().at);
      node->value = Value(std::string_view(tokens_.current().text));
      tokens_.next();
      out.push_back(std::move(node));
      return {};
    }
    case TokenType::variable_begin: {
      tokens_.next();
      auto node = make_node(NodeKind::output, tokens_.current().at);
      MC_TRY(value, expressions_.tuple());
      MC_CHECK(tokens_.expect(TokenType::variable_end));
      node->add(std::move(value));
      out.push_back(std::move(node));
      return {};
    }
    default: break;
  }
  return tokens_.fail("internal parsing error");
}

/// Up to the tag that closes, whose name is then current.
Result<Nodes> StatementParser::body(Ends ends) {
  Nodes out;
  if (ends.size() > 0) end_stack_.push_back(ends);
  while (!tokens_.is(TokenType::end)) {
    if (!tokens_.is(TokenType::block_begin)) {
      MC_CHECK(body_part(out));
      continue;
    }
    tokens_.next();
    if (std::any_of(ends.begin(), ends.end(), [&](std::string_view end) { return tokens_.is_name(end); })) break;
    MC_TRY(node, statement());
    MC_CHECK(tokens_.expect(TokenType::block_end));
    if (node) out.push_back(std::move(node));
  }
  if (ends.size() > 0) end_stack_.pop_back();
  return out;
}

Result<Nodes> StatementParser::statements(Ends ends) {
  tokens_.skip_op(":");
  MC_CHECK(tokens_.expect(TokenType::block_end));
  MC_CHECK(nesting_.enter());
  MC_TRY(out, body(ends));
  nesting_.leave();
  if (tokens_.is(TokenType::end)) {
    end_stack_.push_back(ends);
    return unknown_tag(nullptr, tokens_.current().at);
  }
  return out;
}

Result<NodePtr> StatementParser::statement() {
  if (!tokens_.is(TokenType::name)) return tokens_.fail("tag name expected");
  const std::string tag = tokens_.current().text;
  tag_stack_.push_back(tag);
  MC_TRY(node, dispatch(tag, tokens_.current().at));
  tag_stack_.pop_back();
  if (node) return nesting_.bounded(std::move(node));
  return node;
}

Result<NodePtr> StatementParser::dispatch(const std::string& tag, Position at) {
  if (tag == "for") return for_();
  if (tag == "if") return if_();
  if (tag == "set") return set();
  if (tag == "macro") return macro();
  if (tag == "call") return call_block();
  if (tag == "with") return with();
  if (tag == "filter") return filter_block();
  if (tag == "block") return block();
  if (tag == "print") return print();
  if (tag == "generation") return scoped("endgeneration", false);
  if (tag == "autoescape") return scoped("endautoescape", true);
  if (tag == "break") return jump(NodeKind::break_);
  if (tag == "continue") return jump(NodeKind::continue_);
  if (tag == "include" || tag == "import" || tag == "from" || tag == "extends") return unavailable();
  tag_stack_.pop_back();
  return unknown_tag(&tag, at);
}

Result<NodePtr> StatementParser::jump(NodeKind kind) {
  auto node = make_node(kind, tokens_.current().at);
  tokens_.next();
  return node;
}

Result<NodePtr> StatementParser::if_() {
  auto node = make_node(NodeKind::if_, tokens_.current().at);
  tokens_.next();
  while (true) {
    MC_TRY(test, expressions_.tuple({.with_condition = false}));
    node->add(std::move(test));
    MC_TRY(then, statements({"elif", "else", "endif"}));
    node->add_body(std::move(then));
    if (tokens_.skip_name("elif")) continue;
    if (tokens_.skip_name("else")) {
      MC_TRY(otherwise, statements({"endif"}));
      node->add_body(std::move(otherwise));
    }
    tokens_.next();
    return node;
  }
}

Result<NodePtr> StatementParser::for_() {
  auto node = make_node(NodeKind::for_, tokens_.current().at);
  tokens_.next();
  MC_TRY(item, expressions_.target({.simplified = true, .end_name = "in"}));
  node->add(std::move(item));
  MC_CHECK(tokens_.expect_name("in"));
  MC_TRY(items, expressions_.tuple({.with_condition = false, .end_name = "recursive"}));
  node->add(std::move(items));
  NodePtr filter;
  if (tokens_.skip_name("if")) {
    MC_TRY(parsed, expressions_.expression());
    filter = std::move(parsed);
  }
  node->add(std::move(filter));
  node->is_recursive = tokens_.skip_name("recursive");
  MC_TRY(loop, statements({"endfor", "else"}));
  node->add_body(std::move(loop));
  Nodes otherwise;
  if (tokens_.skip_name("else")) {
    MC_TRY(parsed, statements({"endfor"}));
    otherwise = std::move(parsed);
  }
  tokens_.next();
  node->add_body(std::move(otherwise));
  return node;
}

Result<NodePtr> StatementParser::set() {
  auto node = make_node(NodeKind::set, tokens_.current().at);
  tokens_.next();
  MC_TRY(to, expressions_.target({.simplified = true, .with_namespace = true}));
  node->add(std::move(to));
  if (tokens_.skip_op("=")) {
    MC_TRY(value, expressions_.tuple());
    node->add(std::move(value));
    return node;
  }
  node->kind = NodeKind::set_block;
  MC_TRY(filtered, expressions_.filter(nullptr, false));
  node->add(std::move(filtered));
  MC_TRY(parsed, statements({"endset"}));
  node->add_body(std::move(parsed));
  tokens_.next();
  return node;
}

Result<void> StatementParser::signature(Node& node) {
  MC_CHECK(tokens_.expect_op("("));
  bool defaults = false;
  while (!tokens_.is_op(")")) {
    if (!node.parameters.empty()) MC_CHECK(tokens_.expect_op(","));
    MC_TRY(name, expressions_.name_target());
    NodePtr fallback;
    if (tokens_.skip_op("=")) {
      MC_TRY(value, expressions_.expression());
      fallback = std::move(value);
      defaults = true;
    } else if (defaults) {
      return tokens_.fail("non-default argument follows default argument");
    }
    node.parameters.push_back({name, names_.id_of(name)});
    node.add(std::move(fallback));
  }
  tokens_.next();
  return {};
}

Result<void> StatementParser::macro_body(Node& node, std::string_view end) {
  MC_TRY(parsed, statements({end}));
  node.add_body(std::move(parsed));
  tokens_.next();
  return {};
}

Result<NodePtr> StatementParser::macro() {
  auto node = make_node(NodeKind::macro, tokens_.current().at);
  tokens_.next();
  MC_TRY(name, expressions_.name_target());
  node->id = names_.id_of(name);
  node->name = std::move(name);
  MC_CHECK(signature(*node));
  MC_CHECK(macro_body(*node, "endmacro"));
  return node;
}

Result<NodePtr> StatementParser::call_block() {
  auto node = make_node(NodeKind::call_block, tokens_.current().at);
  tokens_.next();
  node->name = "caller";
  if (tokens_.is_op("(")) MC_CHECK(signature(*node));
  const Position at = tokens_.current().at;
  MC_TRY(called, expressions_.expression());
  if (called->kind != NodeKind::call) return tokens_.fail("expected call", at);
  node->depth = std::max<uint16_t>(node->depth, called->depth + 1);
  node->children.insert(node->children.begin(), std::move(called));
  MC_CHECK(macro_body(*node, "endcall"));
  return node;
}

Result<NodePtr> StatementParser::with() {
  auto node = make_node(NodeKind::with, tokens_.current().at);
  tokens_.next();
  while (!tokens_.is(TokenType::block_end)) {
    if (!node->children.empty()) MC_CHECK(tokens_.expect_op(","));
    MC_TRY(to, expressions_.target({.simplified = true}));
    node->add(std::move(to));
    MC_CHECK(tokens_.expect_op("="));
    MC_TRY(value, expressions_.expression());
    node->add(std::move(value));
  }
  MC_TRY(parsed, statements({"endwith"}));
  node->add_body(std::move(parsed));
  tokens_.next();
  return node;
}

Result<NodePtr> StatementParser::filter_block() {
  auto node = make_node(NodeKind::filter_block, tokens_.current().at);
  tokens_.next();
  MC_TRY(filtered, expressions_.filter(nullptr, true));
  node->add(std::move(filtered));
  MC_TRY(parsed, statements({"endfilter"}));
  node->add_body(std::move(parsed));
  tokens_.next();
  return node;
}

Result<NodePtr> StatementParser::block() {
  auto node = make_node(NodeKind::block, tokens_.current().at);
  tokens_.next();
  MC_TRY(name, tokens_.expect_name());
  node->name = std::move(name);
  tokens_.skip_name("scoped");
  if (tokens_.is_name("required")) return tokens_.fail("required blocks need a template that extends this one");
  if (tokens_.is_op("-"))
    return tokens_.fail(
        "Block names in Jinja have to be valid Python identifiers and may not contain hyphens, use an underscore "
        "instead.");
  MC_TRY(parsed, statements({"endblock"}));
  node->add_body(std::move(parsed));
  tokens_.next();
  tokens_.skip_name(node->name);
  return node;
}

Result<NodePtr> StatementParser::print() {
  auto node = make_node(NodeKind::scope, tokens_.current().at);
  tokens_.next();
  Nodes values;
  while (!tokens_.is(TokenType::block_end)) {
    if (!values.empty()) MC_CHECK(tokens_.expect_op(","));
    auto output = make_node(NodeKind::output, tokens_.current().at);
    MC_TRY(value, expressions_.expression());
    output->add(std::move(value));
    values.push_back(std::move(output));
  }
  node->add_body(std::move(values));
  return node;
}

/// {% generation %} and {% autoescape false %}: a body in a scope of its own.
Result<NodePtr> StatementParser::scoped(std::string_view end, bool takes_expression) {
  auto node = make_node(NodeKind::scope, tokens_.current().at);
  tokens_.next();
  if (takes_expression) {
    MC_TRY(option, expressions_.expression());
    if (option->kind != NodeKind::constant || truth(option->value))
      return tokens_.fail("autoescape is not supported, other than {% autoescape false %}", option->at);
  }
  MC_CHECK(macro_body(*node, end));
  return node;
}

/// A template has no loader, so include, import and extends fail when they are reached, as in jinja2.
Result<NodePtr> StatementParser::unavailable() {
  auto node = make_node(NodeKind::unavailable, tokens_.current().at);
  const bool from = tokens_.is_name("from");
  node->name = tokens_.current().text;
  tokens_.next();
  MC_TRY(source, expressions_.expression());
  node->add(std::move(source));
  if (from) MC_CHECK(tokens_.expect_name("import"));
  while (!tokens_.is(TokenType::block_end) && !tokens_.is(TokenType::end) && !tokens_.is(TokenType::error))
    tokens_.next();
  return node;
}

}  // namespace mc::jinja
