#include "jinja/parse.h"

#include <algorithm>

#include "jinja/parser.h"

namespace mc::jinja {

Error placed(Position at, Error error) {
  error.what = "line " + std::to_string(at.line) + ", column " + std::to_string(at.column) + ": " + error.what;
  return error;
}

uint32_t Tree::id_of(std::string_view name) const {
  const auto found = std::find(names.begin(), names.end(), name);
  return found == names.end() ? kNoName : static_cast<uint32_t>(found - names.begin());
}

bool Parser::skip_op(std::string_view text) {
  const bool found = is_op(text);
  if (found) next();
  return found;
}
bool Parser::skip_name(std::string_view text) {
  const bool found = is_name(text);
  if (found) next();
  return found;
}

Error Parser::fail(std::string message, Position at) {
  if (is(TokenType::error)) return placed(current().at, failure("TemplateSyntaxError", current().text));
  return placed(at, failure("TemplateSyntaxError", std::move(message)));
}

Error Parser::expected(std::string_view what) {
  if (is(TokenType::end)) return fail("unexpected end of template, expected '" + std::string(what) + "'.");
  return fail("expected token '" + std::string(what) + "', got '" + describe(current()) + "'");
}

Result<void> Parser::expect(TokenType type) {
  if (!is(type)) return expected(describe(Token{type}));
  next();
  return {};
}
Result<void> Parser::expect_op(std::string_view text) {
  if (!skip_op(text)) return expected(text);
  return {};
}
Result<void> Parser::expect_name(std::string_view text) {
  if (!skip_name(text)) return expected(text);
  return {};
}
Result<std::string> Parser::expect_name() {
  if (!is(TokenType::name)) return expected("name");
  std::string name = current().text;
  next();
  return name;
}

NodePtr Parser::make(NodeKind kind, Position at) const {
  auto node = std::make_unique<Node>();
  node->kind = kind;
  node->at = at;
  return node;
}

void Parser::add(Node& node, NodePtr child) const {
  if (child) node.depth = std::max<uint16_t>(node.depth, child->depth + 1);
  node.children.push_back(std::move(child));
}

void Parser::adopt(Node& node, std::unique_ptr<Arguments> arguments) const {
  const auto deepen = [&](const NodePtr& child) {
    if (child) node.depth = std::max<uint16_t>(node.depth, child->depth + 1);
  };
  for (const NodePtr& child : arguments->positional) deepen(child);
  for (const auto& [name, child] : arguments->named) deepen(child);
  deepen(arguments->star);
  deepen(arguments->star_star);
  node.arguments = std::move(arguments);
}

void Parser::add_body(Node& node, Nodes body) const {
  for (const NodePtr& child : body) node.depth = std::max<uint16_t>(node.depth, child->depth + 1);
  node.bodies.push_back(std::move(body));
}

uint32_t Parser::intern(const std::string& name) {
  const auto [at, added] = ids_.try_emplace(name, static_cast<uint32_t>(tree_.names.size()));
  if (added) tree_.names.push_back(name);
  return at->second;
}

Error Parser::unknown_tag(const std::string* name, Position at) {
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
  return fail(std::move(message), at);
}

Result<void> Parser::body_part(Nodes& out) {
  switch (current().type) {
    case TokenType::data: {
      auto node = make(NodeKind::data, current().at);
      node->value = Value(std::string_view(current().text));
      next();
      out.push_back(std::move(node));
      return {};
    }
    case TokenType::variable_begin: {
      next();
      auto node = make(NodeKind::output, current().at);
      MC_TRY(value, tuple());
      MC_CHECK(expect(TokenType::variable_end));
      add(*node, std::move(value));
      out.push_back(std::move(node));
      return {};
    }
    default: break;
  }
  return fail("internal parsing error");
}

/// Up to the tag that closes, whose name is then current.
Result<Nodes> Parser::body(Ends ends) {
  Nodes out;
  if (ends.size() > 0) end_stack_.push_back(ends);
  while (!is(TokenType::end)) {
    if (!is(TokenType::block_begin)) {
      MC_CHECK(body_part(out));
      continue;
    }
    next();
    if (std::any_of(ends.begin(), ends.end(), [&](std::string_view end) { return is_name(end); })) break;
    MC_TRY(node, statement());
    MC_CHECK(expect(TokenType::block_end));
    if (node) out.push_back(std::move(node));
  }
  if (ends.size() > 0) end_stack_.pop_back();
  return out;
}

Result<Nodes> Parser::statements(Ends ends) {
  skip_op(":");
  MC_CHECK(expect(TokenType::block_end));
  if (++nesting_ > kTreeDepthMax) return fail("nested deeper than " + std::to_string(kTreeDepthMax) + " levels");
  MC_TRY(out, body(ends));
  --nesting_;
  if (is(TokenType::end)) {
    end_stack_.push_back(ends);
    return unknown_tag(nullptr, current().at);
  }
  return out;
}

Result<NodePtr> Parser::statement() {
  if (!is(TokenType::name)) return fail("tag name expected");
  const std::string tag = current().text;
  tag_stack_.push_back(tag);
  MC_TRY(node, dispatch(tag, current().at));
  tag_stack_.pop_back();
  if (node) return bounded(std::move(node));
  return node;
}

Result<NodePtr> Parser::dispatch(const std::string& tag, Position at) {
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

Result<NodePtr> Parser::jump(NodeKind kind) {
  auto node = make(kind, current().at);
  next();
  return node;
}

Result<NodePtr> Parser::if_() {
  auto node = make(NodeKind::if_, current().at);
  next();
  while (true) {
    MC_TRY(test, tuple({.with_condition = false}));
    add(*node, std::move(test));
    MC_TRY(then, statements({"elif", "else", "endif"}));
    add_body(*node, std::move(then));
    if (skip_name("elif")) continue;
    if (skip_name("else")) {
      MC_TRY(otherwise, statements({"endif"}));
      add_body(*node, std::move(otherwise));
    }
    next();
    return node;
  }
}

Result<NodePtr> Parser::for_() {
  auto node = make(NodeKind::for_, current().at);
  next();
  MC_TRY(item, target({.simplified = true, .end_name = "in"}));
  add(*node, std::move(item));
  MC_CHECK(expect_name("in"));
  MC_TRY(items, tuple({.with_condition = false, .end_name = "recursive"}));
  add(*node, std::move(items));
  NodePtr filter;
  if (skip_name("if")) {
    MC_TRY(parsed, expression());
    filter = std::move(parsed);
  }
  add(*node, std::move(filter));
  node->is_recursive = skip_name("recursive");
  MC_TRY(loop, statements({"endfor", "else"}));
  add_body(*node, std::move(loop));
  Nodes otherwise;
  if (skip_name("else")) {
    MC_TRY(parsed, statements({"endfor"}));
    otherwise = std::move(parsed);
  }
  next();
  add_body(*node, std::move(otherwise));
  return node;
}

Result<NodePtr> Parser::target(TupleOptions options) {
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
    return fail("can't assign to '" + name + "'", node->at);
  }
  return node;
}

Result<std::string> Parser::name_target() {
  const Position at = current().at;
  MC_TRY(name, expect_name());
  for (std::string_view word : {"true", "false", "none", "True", "False", "None"})
    if (name == word) return fail("can't assign to 'name'", at);
  return name;
}

Result<NodePtr> Parser::set() {
  auto node = make(NodeKind::set, current().at);
  next();
  MC_TRY(to, target({.simplified = true, .with_namespace = true}));
  add(*node, std::move(to));
  if (skip_op("=")) {
    MC_TRY(value, tuple());
    add(*node, std::move(value));
    return node;
  }
  node->kind = NodeKind::set_block;
  MC_TRY(filtered, filter(nullptr, false));
  add(*node, std::move(filtered));
  MC_TRY(parsed, statements({"endset"}));
  add_body(*node, std::move(parsed));
  next();
  return node;
}

Result<void> Parser::signature(Node& node) {
  MC_CHECK(expect_op("("));
  bool defaults = false;
  while (!is_op(")")) {
    if (!node.parameters.empty()) MC_CHECK(expect_op(","));
    MC_TRY(name, name_target());
    NodePtr fallback;
    if (skip_op("=")) {
      MC_TRY(value, expression());
      fallback = std::move(value);
      defaults = true;
    } else if (defaults) {
      return fail("non-default argument follows default argument");
    }
    node.parameters.push_back({name, intern(name)});
    add(node, std::move(fallback));
  }
  next();
  return {};
}

Result<void> Parser::macro_body(Node& node, std::string_view end) {
  MC_TRY(parsed, statements({end}));
  add_body(node, std::move(parsed));
  next();
  return {};
}

Result<NodePtr> Parser::macro() {
  auto node = make(NodeKind::macro, current().at);
  next();
  MC_TRY(name, name_target());
  node->id = intern(name);
  node->name = std::move(name);
  MC_CHECK(signature(*node));
  MC_CHECK(macro_body(*node, "endmacro"));
  return node;
}

Result<NodePtr> Parser::call_block() {
  auto node = make(NodeKind::call_block, current().at);
  next();
  node->name = "caller";
  if (is_op("(")) MC_CHECK(signature(*node));
  const Position at = current().at;
  MC_TRY(called, expression());
  if (called->kind != NodeKind::call) return fail("expected call", at);
  node->depth = std::max<uint16_t>(node->depth, called->depth + 1);
  node->children.insert(node->children.begin(), std::move(called));
  MC_CHECK(macro_body(*node, "endcall"));
  return node;
}

Result<NodePtr> Parser::with() {
  auto node = make(NodeKind::with, current().at);
  next();
  while (!is(TokenType::block_end)) {
    if (!node->children.empty()) MC_CHECK(expect_op(","));
    MC_TRY(to, target({.simplified = true}));
    add(*node, std::move(to));
    MC_CHECK(expect_op("="));
    MC_TRY(value, expression());
    add(*node, std::move(value));
  }
  MC_TRY(parsed, statements({"endwith"}));
  add_body(*node, std::move(parsed));
  next();
  return node;
}

Result<NodePtr> Parser::filter_block() {
  auto node = make(NodeKind::filter_block, current().at);
  next();
  MC_TRY(filtered, filter(nullptr, true));
  add(*node, std::move(filtered));
  MC_TRY(parsed, statements({"endfilter"}));
  add_body(*node, std::move(parsed));
  next();
  return node;
}

Result<NodePtr> Parser::block() {
  auto node = make(NodeKind::block, current().at);
  next();
  MC_TRY(name, expect_name());
  node->name = std::move(name);
  skip_name("scoped");
  if (is_name("required")) return fail("required blocks need a template that extends this one");
  if (is_op("-"))
    return fail(
        "Block names in Jinja have to be valid Python identifiers and may not contain hyphens, use an underscore "
        "instead.");
  MC_TRY(parsed, statements({"endblock"}));
  add_body(*node, std::move(parsed));
  next();
  skip_name(node->name);
  return node;
}

Result<NodePtr> Parser::print() {
  auto node = make(NodeKind::scope, current().at);
  next();
  Nodes values;
  while (!is(TokenType::block_end)) {
    if (!values.empty()) MC_CHECK(expect_op(","));
    auto output = make(NodeKind::output, current().at);
    MC_TRY(value, expression());
    add(*output, std::move(value));
    values.push_back(std::move(output));
  }
  add_body(*node, std::move(values));
  return node;
}

/// {% generation %} and {% autoescape false %}: a body in a scope of its own.
Result<NodePtr> Parser::scoped(std::string_view end, bool takes_expression) {
  auto node = make(NodeKind::scope, current().at);
  next();
  if (takes_expression) {
    MC_TRY(option, expression());
    if (option->kind != NodeKind::constant || truth(option->value))
      return fail("autoescape is not supported, other than {% autoescape false %}", option->at);
  }
  MC_CHECK(macro_body(*node, end));
  return node;
}

/// There is nothing to include or import from; jinja2 says so when it gets there, and so do we.
Result<NodePtr> Parser::unavailable() {
  auto node = make(NodeKind::unavailable, current().at);
  const bool from = is_name("from");
  node->name = current().text;
  next();
  MC_TRY(source, expression());
  add(*node, std::move(source));
  if (from) MC_CHECK(expect_name("import"));
  while (!is(TokenType::block_end) && !is(TokenType::end) && !is(TokenType::error)) next();
  return node;
}

Result<Tree> Parser::run() {
  tree_.loop_id = intern("loop");
  tree_.caller_id = intern("caller");
  tree_.kwargs_id = intern("kwargs");
  tree_.varargs_id = intern("varargs");
  MC_TRY(parsed, body({}));
  tree_.body = std::move(parsed);
  MC_CHECK(check(tree_));
  return std::move(tree_);
}

Result<Tree> parse(std::string_view source) {
  if (source.size() > kSourceBytesMax)
    return Error{Code::invalid, "the template has " + std::to_string(source.size()) + " bytes; the most is " +
                                    std::to_string(kSourceBytesMax)};
  return Parser(source).run();
}

}  // namespace mc::jinja
