// The parser's parts, each by itself: the cursor, expressions and statements. golden_test.cc compares whole templates
// with Jinja's.
#include "jinja/expression_parser.h"
#include "jinja/statement_parser.h"
#include "test.h"

using namespace mc;
using namespace mc::jinja;

namespace {

/// The tree as text: "(binary left right)"; a name and a constant as they are written.
std::string shown(const NodePtr& node) {
  if (!node) return "-";
  if (node->kind == NodeKind::constant) return narrow(to_repr(node->value));
  if (node->kind == NodeKind::name) return node->name;
  std::string out = "(" + std::to_string(static_cast<int>(node->kind));
  for (const NodePtr& child : node->children) out += " " + shown(child);
  return out + ")";
}

std::string kind(NodeKind kind) {
  return "(" + std::to_string(static_cast<int>(kind)) + " ";
}

/// The expression of {{ source }}.
Result<NodePtr> expression(std::string_view source) {
  ParseState state("{{ " + std::string(source) + " }}");
  state.tokens.next();
  return ExpressionParser(state).tuple();
}

}  // namespace

TEST_CASE("jinja: the cursor stays on the last token") {
  TokenCursor tokens("{{ a }}");
  for (int i = 0; i < 9; ++i) tokens.next();
  CHECK(tokens.is(TokenType::end));
  CHECK(tokens.ahead().type == TokenType::end);
  CHECK_FALSE(tokens.expect_name());
}

TEST_CASE("jinja: the cursor's error is the lexer's where the lexer has stopped") {
  TokenCursor tokens("{{ a ? }}");
  tokens.next();
  CHECK(tokens.fail("mine").what == "line 1, column 4: TemplateSyntaxError: mine");
  tokens.next();
  CHECK(tokens.fail("mine").what.find("mine") == std::string::npos);
}

TEST_CASE("jinja: an expression's operators bind as in Jinja") {
  const std::string add = kind(NodeKind::binary);
  const std::pair<std::string, std::string> cases[] = {
      {"a + b * c", add + "a " + add + "b c))"},
      {"a ~ b + c", add + kind(NodeKind::concat) + "a b) c)"},
      {"a or b and c", kind(NodeKind::or_) + "a " + kind(NodeKind::and_) + "b c))"},
      {"-a ** 2", add + kind(NodeKind::unary) + "a) 2)"},
      {"a if b else c", kind(NodeKind::condition) + "b a c)"},
      {"a if b", kind(NodeKind::condition) + "b a -)"},
      {"a | f + b", add + kind(NodeKind::filter) + "a) b)"},
      {"a, 1", kind(NodeKind::tuple) + "a 1)"},
      {"a.b[1:]", kind(NodeKind::item) + kind(NodeKind::attribute) + "a) " + kind(NodeKind::slice) + "1 - -))"},
  };
  for (const auto& [source, tree] : cases) {
    INFO(source);
    const auto node = expression(source);
    REQUIRE_OK(node);
    CHECK(shown(*node) == tree);
  }
}

TEST_CASE("jinja: an expression that nests too deeply is refused, not parsed by recursion") {
  for (const char* open : {"(", "[", "-", "not ", "a if b else "}) {
    INFO(open);
    std::string source;
    for (int i = 0; i < 100'000; ++i) source += open;
    const auto node = expression(source + "a");
    REQUIRE_FALSE(node);
    CHECK(node.error().what.find("nested deeper than 300 levels") != std::string::npos);
  }
}

TEST_CASE("jinja: a name has one id, however often it is met") {
  ParseState state("{{ a + b + a }}");
  state.tokens.next();
  REQUIRE_OK(ExpressionParser(state).expression());
  CHECK(state.names.take() == std::vector<std::string>{"a", "b"});
}

TEST_CASE("jinja: a body ends at its own tag, and an open one names the tags that close it") {
  ParseState state("a{% if x %}b{% else %}c{% endif %}d");
  const auto body = StatementParser(state).run();
  REQUIRE_OK(body);
  REQUIRE(body->size() == 3);
  CHECK((*body)[1]->kind == NodeKind::if_);
  CHECK((*body)[1]->bodies.size() == 2);
  ParseState open("{% for i in x %}{% if i %}");
  const auto missing = StatementParser(open).run();
  REQUIRE_FALSE(missing);
  CHECK(missing.error().what.find(
            "'elif' or 'else' or 'endif'. The innermost block that needs to be closed is 'if'.") != std::string::npos);
}
