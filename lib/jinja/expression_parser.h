// Parser of expressions, after jinja2's grammar and with its messages. Each method parses one level of binding, from
// the loosest (a if b else c) to the tightest (a name), and leaves the cursor behind what it has parsed.
#pragma once

#include "jinja/parse_state.h"

namespace mc::jinja {

class ExpressionParser {
 public:
  explicit ExpressionParser(ParseState& state) : tokens_(state.tokens), names_(state.names), nesting_(state.nesting) {}

  Result<NodePtr> expression() { return condition(); }
  struct TupleOptions {
    bool simplified = false;  // names and literals only: an assignment's target
    bool with_condition = true;
    std::string_view end_name;  // a name that ends the tuple, as "in" does
    bool in_parentheses = false;
    bool with_namespace = false;
  };
  /// One expression, or a tuple where a comma follows it.
  Result<NodePtr> tuple(TupleOptions options);
  Result<NodePtr> tuple() { return tuple(TupleOptions{}); }
  /// The filters that follow `operand`. With `start_inline` the first filter has no | in front. A null operand stands
  /// for the text of a block.
  Result<NodePtr> filter(NodePtr operand, bool start_inline);
  /// The left side of an assignment: names, attributes of namespaces, and tuples of them.
  Result<NodePtr> target(TupleOptions options);
  /// A name that a macro or a parameter may have.
  Result<std::string> name_target();

 private:
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
  Result<NodePtr> list();
  Result<NodePtr> dict();
  Result<NodePtr> postfix(NodePtr node);
  Result<NodePtr> filter_expression(NodePtr node);
  Result<NodePtr> subscript(NodePtr node);
  Result<NodePtr> subscribed();
  Result<NodePtr> call(NodePtr node);
  Result<std::unique_ptr<Arguments>> arguments();
  Result<void> argument(Arguments& out, Position open);
  Result<NodePtr> test(NodePtr node);
  Result<std::string> dotted_name();
  Result<NodePtr> binary(Op op, NodePtr left, NodePtr right, Position at);

  TokenCursor& tokens_;
  NameTable& names_;
  Nesting& nesting_;
};

}  // namespace mc::jinja
