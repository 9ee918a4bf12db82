// Evaluates the expressions of a template. An error carries the place of the innermost node that failed.
#pragma once

#include "jinja/scopes.h"

namespace mc::jinja {

class Evaluator {
 public:
  Evaluator(Interpreter& run, Budget& budget, Scopes& scopes) : run_(run), budget_(budget), scopes_(scopes) {}

  Result<Value> evaluate(const Node& node);
  /// Evaluates a call. A `caller` that is not null is passed as one more argument, as {% call %} does.
  Result<Value> call_node(const Node& node, const Value* caller);
  /// Evaluates a chain of filters. `text` is the operand of the innermost filter of a block, which has none in the
  /// tree.
  Result<Value> filter_node(const Node& node, const Value* text);

 private:
  Result<Value> evaluate_kind(const Node& node);
  Result<Value> items(const Node& node);
  Result<Value> dict(const Node& node);
  Result<Value> item_node(const Node& node);
  Result<Args> arguments(const Arguments* arguments);
  Result<Value> test_node(const Node& node);
  Result<Value> binary(const Node& node);
  Result<Value> unary(const Node& node);
  Result<Value> concat(const Node& node);
  Result<Value> compare(const Node& node);
  Result<Value> condition(const Node& node);

  Interpreter& run_;
  Budget& budget_;
  Scopes& scopes_;
};

}  // namespace mc::jinja
