// Parser of a template's body: text, {{ output }} and {% statements %}, after jinja2's grammar and with its messages.
#pragma once

#include <initializer_list>

#include "jinja/expression_parser.h"

namespace mc::jinja {

class StatementParser {
 public:
  explicit StatementParser(ParseState& state)
      : tokens_(state.tokens), names_(state.names), nesting_(state.nesting), expressions_(state) {}

  /// The whole template.
  Result<Nodes> run() { return body({}); }

 private:
  using Ends = std::initializer_list<std::string_view>;
  /// Nodes up to the tag that closes the body; the cursor stands on that tag's name.
  Result<Nodes> body(Ends ends);
  /// The rest of an opening tag, and the body behind it.
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
  Error unknown_tag(const std::string* name, Position at);

  TokenCursor& tokens_;
  NameTable& names_;
  Nesting& nesting_;
  ExpressionParser expressions_;
  std::vector<std::string> tag_stack_;  // the open statements
  std::vector<Ends> end_stack_;         // the tags that may close them
};

}  // namespace mc::jinja
