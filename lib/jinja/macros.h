// Calls macros and call blocks: binds the arguments and the defaults to parameters, then runs the body.
#pragma once

#include "jinja/runner.h"

namespace mc::jinja {

class Macros {
 public:
  Macros(const Tree& tree, Budget& budget, Scopes& scopes, Evaluator& expressions, Runner& statements)
      : tree_(tree), budget_(budget), scopes_(scopes), expressions_(expressions), statements_(statements) {}

  Result<Value> call(const Macro& macro, Args args);

 private:
  Result<void> bind_arguments(const Node& node, Args& args);
  Result<void> bind_defaults(const Node& node);

  const Tree& tree_;
  Budget& budget_;
  Scopes& scopes_;
  Evaluator& expressions_;
  Runner& statements_;
};

}  // namespace mc::jinja
