// The parser's state, shared by its two files: expressions (expression.cc) and statements
// (parse.cc). Grammar and messages follow jinja2's parser, error for error.
#pragma once

#include <initializer_list>
#include <map>

#include "jinja/parse.h"

namespace mc::jinja {

class Parser {
 public:
  explicit Parser(std::string_view source) : tokens_(tokenize(source)) {}
  Result<Tree> run();

 private:
  // --- tokens
  const Token& current() const { return tokens_[at_]; }
  const Token& ahead() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  void next() { at_ = std::min(at_ + 1, tokens_.size() - 1); }
  bool is(TokenType type) const { return current().type == type; }
  bool is_op(std::string_view text) const { return is(TokenType::op) && current().text == text; }
  bool is_name(std::string_view text) const { return is(TokenType::name) && current().text == text; }
  bool skip_op(std::string_view text);
  bool skip_name(std::string_view text);
  /// The first error wins, and one of the lexer wins when the parser has reached it.
  Error fail(std::string message) { return fail(std::move(message), current().at); }
  Error fail(std::string message, Position at);
  Error expected(std::string_view what);
  Result<void> expect(TokenType type);
  Result<void> expect_op(std::string_view text);
  Result<void> expect_name(std::string_view text);
  Result<std::string> expect_name();

  // --- nodes
  NodePtr make(NodeKind kind, Position at) const;
  /// Puts a child under the node; null children stay null.
  void add(Node& node, NodePtr child) const;
  void adopt(Node& node, std::unique_ptr<Arguments> arguments) const;
  void add_body(Node& node, Nodes body) const;
  Result<NodePtr> bounded(NodePtr node);
  uint32_t intern(const std::string& name);

  // --- expressions
  Result<NodePtr> expression() { return condition(); }
  Result<NodePtr> condition();
  Result<NodePtr> or_();
  Result<NodePtr> and_();
  Result<NodePtr> not_();
  Result<NodePtr> compare();
  Result<NodePtr> sum();
  Result<NodePtr> concat();
  Result<NodePtr> product();
  Result<NodePtr> power();
  Result<NodePtr> unary(bool with_filter = true);
  Result<NodePtr> primary(bool with_namespace = false);
  Result<NodePtr> name_or_constant(bool with_namespace);
  struct TupleOptions {
    bool simplified = false;  // names and literals only: an assignment's target
    bool with_condition = true;
    std::string_view end_name;  // a name that ends it, "in"
    bool in_parentheses = false;
    bool with_namespace = false;
  };
  Result<NodePtr> tuple(TupleOptions options);
  Result<NodePtr> tuple() { return tuple(TupleOptions{}); }
  Result<NodePtr> list();
  Result<NodePtr> dict();
  Result<NodePtr> postfix(NodePtr node);
  Result<NodePtr> filter_expression(NodePtr node);
  Result<NodePtr> subscript(NodePtr node);
  Result<NodePtr> subscribed();
  Result<NodePtr> call(NodePtr node);
  Result<std::unique_ptr<Arguments>> arguments();
  Result<void> argument(Arguments& out, Position open);
  Result<NodePtr> filter(NodePtr node, bool start_inline);
  Result<NodePtr> test(NodePtr node);
  Result<std::string> dotted_name();
  Result<NodePtr> binary(Op op, NodePtr left, NodePtr right, Position at);

  // --- statements
  using Ends = std::initializer_list<std::string_view>;
  Result<Nodes> body(Ends ends);
  Result<Nodes> statements(Ends ends);
  Result<void> body_part(Nodes& out);
  Result<NodePtr> statement();
  Result<NodePtr> dispatch(const std::string& tag, Position at);
  Result<NodePtr> if_();
  Result<NodePtr> for_();
  Result<NodePtr> set();
  Result<NodePtr> macro();
  Result<NodePtr> call_block();
  Result<NodePtr> with();
  Result<NodePtr> filter_block();
  Result<NodePtr> block();
  Result<NodePtr> print();
  Result<NodePtr> unavailable();
  Result<NodePtr> scoped(std::string_view end, bool takes_expression);
  Result<NodePtr> jump(NodeKind kind);
  Result<void> signature(Node& node);
  Result<void> macro_body(Node& node, std::string_view end);
  Result<NodePtr> target(TupleOptions options);
  Result<std::string> name_target();
  Error unknown_tag(const std::string* name, Position at);

  std::vector<Token> tokens_;
  size_t at_ = 0;
  Tree tree_;
  std::map<std::string, uint32_t, std::less<>> ids_;
  std::vector<std::string> tag_stack_;
  std::vector<Ends> end_stack_;
  uint32_t nesting_ = 0;
};

/// What the compiler of jinja2 refuses once the whole template is parsed: unknown filters and tests,
/// break outside loops, assignments to loop. Marks the loops and macros that use special names.
Result<void> check(Tree& tree);

}  // namespace mc::jinja
