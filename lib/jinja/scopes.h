// The variables of one rendering: a chain of scopes, and behind them the context's variables and the global functions.
// A loop, a macro, `with` and a set block open a scope; `if` does not. Macros and recursive loops keep the scope in
// which they stand, so a scope may hold a value that holds the scope; such scopes are emptied at the end.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "jinja/budget.h"

namespace mc::jinja {

struct Scope {
  std::shared_ptr<Scope> parent;
  std::vector<std::pair<uint32_t, Value>> variables;
};
using ScopePtr = std::shared_ptr<Scope>;
/// A lookup walks the names of a scope one by one and costs one step for this many names.
constexpr size_t kLookedUpPerStep = 64;

class Scopes {
 public:
  Scopes(const Tree& tree, const Context& context, Budget& budget);
  ~Scopes();
  Scopes(const Scopes&) = delete;
  Scopes& operator=(const Scopes&) = delete;

  /// The innermost variable of that name; undefined when there is none.
  Result<Value> find(uint32_t id, const std::string& name) const;
  /// The variable in the current scope alone; nullptr when it has none.
  Result<const Value*> find_here(uint32_t id) const;
  /// Sets a variable of the current scope.
  Result<void> bind(uint32_t id, Value value);

  const ScopePtr& root() const { return root_; }
  const ScopePtr& current() const { return current_; }
  /// The current scope, for a value that keeps it.
  ScopePtr capture();

  /// Makes `scope` the current one until the end of the block.
  class Back {
   public:
    Back(Scopes& scopes, ScopePtr scope) : scopes_(scopes), saved_(std::exchange(scopes.current_, std::move(scope))) {}
    ~Back() { scopes_.current_ = std::move(saved_); }
    Back(const Back&) = delete;
    Back& operator=(const Back&) = delete;

   private:
    Scopes& scopes_;
    ScopePtr saved_;
  };
  /// Opens a new scope inside `parent` until the end of the block.
  class Within : public Back {
   public:
    Within(Scopes& scopes, ScopePtr parent) : Back(scopes, std::make_shared<Scope>(Scope{std::move(parent), {}})) {}
  };

 private:
  Budget& budget_;
  std::vector<Value> outer_;  // by name id
  ScopePtr root_, current_;
  std::vector<ScopePtr> captured_;
};

}  // namespace mc::jinja
