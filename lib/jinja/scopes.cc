#include "jinja/scopes.h"

#include "jinja/interpreter.h"

namespace mc::jinja {

Scopes::Scopes(const Tree& tree, const Context& context, Budget& budget)
    : budget_(budget), root_(std::make_shared<Scope>()), current_(root_) {
  outer_.reserve(tree.names.size());
  for (const std::string& name : tree.names) {
    Value value;
    for (const auto& [key, given] : context.variables)
      if (key == name) value = given;
    if (value.is(Kind::missing) && (name != "strftime_now" || context.now)) value = find_function(name);
    outer_.push_back(std::move(value));
  }
}

Scopes::~Scopes() {
  for (const ScopePtr& scope : captured_) scope->variables.clear();
}

Result<Value> Scopes::find(uint32_t id, const std::string& name) const {
  for (const Scope* scope = current_.get(); scope != nullptr; scope = scope->parent.get()) {
    MC_CHECK(budget_.spend(scope->variables.size() / kLookedUpPerStep));
    for (const auto& [bound, value] : scope->variables)
      if (bound == id) {
        if (value.is(Kind::missing)) return Value::undefined(repr_of(name) + " is undefined");
        return value;
      }
  }
  if (!outer_[id].is(Kind::missing)) return outer_[id];
  return Value::undefined(repr_of(name) + " is undefined");
}

Result<const Value*> Scopes::find_here(uint32_t id) const {
  MC_CHECK(budget_.spend(current_->variables.size() / kLookedUpPerStep));
  for (const auto& [bound, value] : current_->variables)
    if (bound == id) return &value;
  return nullptr;
}

Result<void> Scopes::bind(uint32_t id, Value value) {
  MC_CHECK(budget_.spend(current_->variables.size() / kLookedUpPerStep));
  for (auto& [bound, old] : current_->variables)
    if (bound == id) {
      old = std::move(value);
      return {};
    }
  current_->variables.emplace_back(id, std::move(value));
  return {};
}

ScopePtr Scopes::capture() {
  if (captured_.empty() || captured_.back() != current_) captured_.push_back(current_);
  return current_;
}

}  // namespace mc::jinja
