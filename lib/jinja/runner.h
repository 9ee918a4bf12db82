// Runs the statements of a template and writes its output. Loops, macros, set blocks and `with` open a scope; `if`
// does not.
#pragma once

#include "jinja/evaluator.h"

namespace mc::jinja {

class Runner {
 public:
  Runner(Interpreter& run, const Tree& tree, Budget& budget, Scopes& scopes, Evaluator& expressions)
      : run_(run), tree_(tree), budget_(budget), scopes_(scopes), expressions_(expressions) {}

  /// The text of the whole template.
  Result<Str> run();
  /// The text of a macro's body, in the current scope.
  Result<Str> text_of(const Nodes& body);
  /// A recursive loop's call of itself, `loop(items)`.
  Result<Value> call_loop(const Value& callee, Args args);

 private:
  enum class Flow : uint8_t { next, break_, continue_ };
  Result<Flow> run(const Nodes& nodes);
  Result<Flow> run(const Node& node);
  Result<Flow> run_kind(const Node& node);
  Result<Flow> if_(const Node& node);
  Result<Flow> for_(const Node& node);
  Result<Flow> loop(const Node& node, const Value& over, int64_t depth0);
  Result<Values> filtered(const Node& node, Values items);
  Result<void> set(const Node& node);
  Result<Flow> set_block(const Node& node);
  Result<Flow> with(const Node& node);
  Result<Flow> filter_block(const Node& node);
  Result<void> call_block(const Node& node);
  Value macro_value(const Node& node);
  Result<void> assign(const Node& target, Value value);
  Result<void> assign_attribute(const Node& target, Value value);
  Result<void> unpack(const Node& target, const Value& value);
  Result<void> emit(const Value& value);
  Result<Flow> captured(const Nodes& body, Str& out);

  Interpreter& run_;
  const Tree& tree_;
  Budget& budget_;
  Scopes& scopes_;
  Evaluator& expressions_;
  Str* out_ = nullptr;
};

}  // namespace mc::jinja
