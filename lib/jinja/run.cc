// Statements: what {% %} does. Loops, macros, set blocks and with have scopes of their own; if has not.
#include <algorithm>

#include "jinja/eval.h"
#include "jinja/filters.h"

namespace mc::jinja {

/// A new scope inside `parent` until the end of the block.
class Interpreter::ScopeGuard {
 public:
  ScopeGuard(Interpreter& run, ScopePtr parent) : run_(run), saved_(run.scope_) {
    run_.scope_ = std::make_shared<Scope>();
    run_.scope_->parent = std::move(parent);
  }
  ~ScopeGuard() { run_.scope_ = std::move(saved_); }
  ScopeGuard(const ScopeGuard&) = delete;
  ScopeGuard& operator=(const ScopeGuard&) = delete;

 private:
  Interpreter& run_;
  ScopePtr saved_;
};

Result<void> Interpreter::bind(Scope& scope, uint32_t id, Value value) {
  MC_CHECK(spend(scope.variables.size() / kLookedUpPerStep));
  for (auto& [bound, old] : scope.variables)
    if (bound == id) {
      old = std::move(value);
      return {};
    }
  scope.variables.emplace_back(id, std::move(value));
  return {};
}

Result<Interpreter::Flow> Interpreter::run(const Nodes& nodes) {
  for (const NodePtr& node : nodes) {
    MC_TRY(flow, run(*node));
    if (flow != Flow::next) return flow;
  }
  return Flow::next;
}

Result<Interpreter::Flow> Interpreter::run(const Node& node) {
  if (auto within = spend(1); !within) return failed(node, std::move(within).error());
  if (depth_ > limits_.depth)
    return failed(node, failure("RecursionError", "nested deeper than " + std::to_string(limits_.depth) + " levels"));
  ++depth_;
  auto result = [&]() -> Result<Flow> {
    switch (node.kind) {
      case NodeKind::data: MC_CHECK(emit(node.value)); return Flow::next;
      case NodeKind::output: {
        MC_TRY(value, evaluate(*node.children[0]));
        MC_CHECK(emit(value));
        return Flow::next;
      }
      case NodeKind::if_: return if_(node);
      case NodeKind::for_: return for_(node);
      case NodeKind::set: MC_CHECK(set(node)); return Flow::next;
      case NodeKind::set_block: return set_block(node);
      case NodeKind::macro: MC_CHECK(bind(node.id, macro_value(node))); return Flow::next;
      case NodeKind::call_block: MC_CHECK(call_block(node)); return Flow::next;
      case NodeKind::with: return with(node);
      case NodeKind::filter_block: return filter_block(node);
      case NodeKind::block: {
        const ScopeGuard scope(*this, root_);  // a block sees the template's variables, not those around it
        return run(node.bodies[0]);
      }
      case NodeKind::scope: {
        const ScopeGuard scope(*this, scope_);
        return run(node.bodies[0]);
      }
      case NodeKind::break_: return Flow::break_;
      case NodeKind::continue_: return Flow::continue_;
      default: return type_error("no loader for this environment specified (" + node.name + ")");
    }
  }();
  --depth_;
  if (!result) return failed(node, std::move(result).error());
  return result;
}

Result<void> Interpreter::emit(const Value& value) {
  const auto append = [&](StrView text) -> Result<void> {
    if (text.size() > limits_.output - std::min(out_->size(), limits_.output))
      return failure("LimitError", "the output has more than " + std::to_string(limits_.output) + " characters");
    MC_CHECK(read(text.size()));
    // Room beyond a long text, so that the short one after it does not copy it.
    if (text.size() > out_->capacity() - out_->size()) out_->reserve(out_->size() + text.size() + text.size() / 4 + 64);
    out_->append(text);
    return {};
  };
  if (value.is(Kind::string)) return append(value.chars());
  return append(to_str(value));
}

Result<Interpreter::Flow> Interpreter::captured(const Nodes& body, Str& out) {
  Str* const outside = std::exchange(out_, &out);
  auto flow = run(body);
  out_ = outside;
  if (flow) MC_CHECK(make(out.size()));
  return flow;
}

Result<Interpreter::Flow> Interpreter::if_(const Node& node) {
  for (size_t i = 0; i < node.children.size(); ++i) {
    MC_TRY(test, evaluate(*node.children[i]));
    if (truth(test)) return run(node.bodies[i]);
  }
  if (node.bodies.size() > node.children.size()) return run(node.bodies.back());
  return Flow::next;
}

Result<Interpreter::Flow> Interpreter::for_(const Node& node) {
  MC_TRY(over, evaluate(*node.children[1]));
  if (!node.is_recursive) return loop(node, over, 0);
  Str out;
  Str* const outside = std::exchange(out_, &out);
  auto flow = loop(node, over, 0);
  out_ = outside;
  if (!flow) return flow;
  MC_CHECK(emit(Value(std::move(out))));
  return Flow::next;
}

/// The items for which the loop's `if` holds.
Result<Values> Interpreter::filtered(const Node& node, Values items) {
  const ScopeGuard scope(*this, scope_);
  Values out;
  for (Value& item : items) {
    MC_CHECK(assign(*node.children[0], item));
    MC_TRY(test, evaluate(*node.children[2]));
    if (truth(test)) out.push_back(std::move(item));
  }
  return out;
}

Result<Interpreter::Flow> Interpreter::loop(const Node& node, const Value& over, int64_t depth0) {
  MC_TRY(items, items_of(over));
  if (node.children[2]) {
    MC_TRY(chosen, filtered(node, std::move(items)));
    items = std::move(chosen);
  }
  const auto state = std::make_shared<Loop>();
  state->items = std::move(items);
  state->depth0 = depth0;
  state->recursive = node.is_recursive ? &node : nullptr;
  state->extent = extent_of(state->items);
  if (node.is_recursive) {  // only then is the scope asked for: it may hold another loop, and that one's scope a third
    state->scope = scope_;
    captured_.push_back(scope_);
  }
  bool finished_one = false;  // a body that was left by break or continue does not count, as in jinja2
  for (size_t i = 0; i < state->items.size(); ++i) {
    MC_CHECK(spend(1));
    state->index0 = i;
    const ScopeGuard scope(*this, scope_);
    MC_CHECK(assign(*node.children[0], state->items[i]));
    if (node.uses_loop) MC_CHECK(bind(tree_.loop_id, Value(Kind::loop, state)));
    MC_TRY(flow, run(node.bodies[0]));
    if (flow == Flow::break_) break;
    if (flow == Flow::next) finished_one = true;
  }
  if (finished_one || node.bodies[1].empty()) return Flow::next;
  const ScopeGuard scope(*this, scope_);
  return run(node.bodies[1]);
}

Result<Value> Interpreter::call_loop(const Value& callee, Args args) {
  const Loop& outer = callee.as<Loop>();
  if (outer.recursive == nullptr)
    return type_error("The loop must have the 'recursive' marker to be called recursively.");
  std::array<Value, 1> over;
  MC_CHECK(bind_arguments("loop", args, {"iterable"}, 1, over));
  Str out;
  Str* const outside = std::exchange(out_, &out);
  const ScopePtr saved = std::exchange(scope_, outer.scope);
  auto flow = loop(*outer.recursive, over[0], outer.depth0 + 1);
  scope_ = saved;
  out_ = outside;
  if (!flow) return std::move(flow).error();
  return Value(std::move(out));
}

Result<void> Interpreter::assign(const Node& target, Value value) {
  if (target.kind == NodeKind::name) {
    return bind(target.id, std::move(value));
  }
  if (target.kind == NodeKind::namespace_ref) {
    MC_TRY(space, name(target.id, target.name));
    if (!space.is(Kind::space))
      return failed(target, failure("TemplateRuntimeError", "cannot assign attribute on non-namespace object"));
    if (target.attribute.starts_with('_'))
      return failed(target, failure("SecurityError",
                                    "Chat templates cannot store underscore-prefixed attributes on a namespace, but "
                                    "got " +
                                        repr_of(target.attribute) + ". Please rename the attribute."));
    MC_CHECK(spend(space.as<Space>().attributes.size() / kLookedUpPerStep));
    for (auto& [key, old] : space.as<Space>().attributes)
      if (key == target.attribute) {
        old = std::move(value);
        return {};
      }
    space.as<Space>().attributes.emplace_back(target.attribute, std::move(value));
    return {};
  }
  auto unpacked = items_of(value);
  if (!unpacked) {
    const bool plain = value.is_number() || value.is(Kind::none);
    return failed(target, plain ? type_error("cannot unpack non-iterable " + std::string(type_name(value)) + " object")
                                : std::move(unpacked).error());
  }
  const size_t wanted = target.children.size(), got = unpacked->size();
  if (got > wanted)
    return failed(target, failure("ValueError", "too many values to unpack (expected " + std::to_string(wanted) + ")"));
  if (got < wanted)
    return failed(target, failure("ValueError", "not enough values to unpack (expected " + std::to_string(wanted) +
                                                    ", got " + std::to_string(got) + ")"));
  for (size_t i = 0; i < wanted; ++i) MC_CHECK(assign(*target.children[i], std::move((*unpacked)[i])));
  return {};
}

Result<void> Interpreter::set(const Node& node) {
  MC_TRY(value, evaluate(*node.children[1]));
  return assign(*node.children[0], std::move(value));
}

Result<Interpreter::Flow> Interpreter::set_block(const Node& node) {
  Str out;
  Value value;
  {
    const ScopeGuard scope(*this, scope_);
    MC_TRY(flow, captured(node.bodies[0], out));
    if (flow != Flow::next) return flow;
    value = Value(std::move(out));
    if (node.children[1]) {
      MC_TRY(changed, filter_node(*node.children[1], &value));
      value = std::move(changed);
    }
  }
  MC_CHECK(assign(*node.children[0], std::move(value)));
  return Flow::next;
}

Result<Interpreter::Flow> Interpreter::with(const Node& node) {
  Values values;
  for (size_t i = 1; i < node.children.size(); i += 2) {
    MC_TRY(value, evaluate(*node.children[i]));
    values.push_back(std::move(value));
  }
  const ScopeGuard scope(*this, scope_);
  for (size_t i = 0; i < values.size(); ++i) MC_CHECK(assign(*node.children[i * 2], std::move(values[i])));
  return run(node.bodies[0]);
}

Result<Interpreter::Flow> Interpreter::filter_block(const Node& node) {
  const ScopeGuard scope(*this, scope_);
  Str out;
  MC_TRY(flow, captured(node.bodies[0], out));
  if (flow != Flow::next) return flow;
  const Value text(std::move(out));
  MC_TRY(value, filter_node(*node.children[0], &text));
  MC_CHECK(emit(value));
  return Flow::next;
}

Value Interpreter::macro_value(const Node& node) {
  if (captured_.empty() || captured_.back() != scope_) captured_.push_back(scope_);
  return Value(Kind::macro, std::make_shared<Macro>(Macro{&node, scope_}));
}

Result<void> Interpreter::call_block(const Node& node) {
  const Value caller = macro_value(node);
  MC_TRY(value, call_node(*node.children[0], &caller));
  return emit(value);
}

namespace {

/// Takes the argument of that name out of `args`; missing when there is none.
Value take_named(Args& args, std::string_view name) {
  for (auto at = args.named.begin(); at != args.named.end(); ++at)
    if (at->first == name) {
      Value value = std::move(at->second);
      args.named.erase(at);
      return value;
    }
  return {};
}

}  // namespace

Result<void> Interpreter::bind_macro(const Macro& macro, Args& args, Scope& scope) {
  const Node& node = *macro.node;
  const size_t count = node.parameters.size();
  bool found_caller = false;
  for (size_t i = 0; i < count; ++i) {
    const Parameter& parameter = node.parameters[i];
    const bool given = i < args.positional.size();
    found_caller |= parameter.id == tree_.caller_id;
    MC_CHECK(spend(args.named.size() / kLookedUpPerStep));
    MC_CHECK(bind(scope, parameter.id, given ? args.positional[i] : take_named(args, parameter.name)));
  }
  if (node.uses_caller && !found_caller) {
    Value caller = take_named(args, "caller");
    if (caller.is(Kind::missing) || caller.is(Kind::none)) caller = Value::undefined("No caller defined");
    MC_CHECK(bind(scope, tree_.caller_id, std::move(caller)));
  }
  if (node.uses_kwargs) {
    std::vector<std::pair<Value, Value>> entries;
    for (auto& [name, value] : args.named) entries.emplace_back(Value(std::string_view(name)), std::move(value));
    MC_CHECK(bind(scope, tree_.kwargs_id, Value::dict(std::move(entries))));
  } else if (!args.named.empty()) {
    const bool caller =
        std::any_of(args.named.begin(), args.named.end(), [](const auto& a) { return a.first == "caller"; });
    if (caller)
      return type_error("macro " + repr_of(node.name) +
                        " was invoked with two values for the special caller argument. This is most likely a bug.");
    return type_error("macro " + repr_of(node.name) + " takes no keyword argument " + repr_of(args.named[0].first));
  }
  if (node.uses_varargs) {
    Values rest;
    for (size_t i = count; i < args.positional.size(); ++i) rest.push_back(args.positional[i]);
    MC_CHECK(bind(scope, tree_.varargs_id, Value::tuple(std::move(rest))));
  } else if (args.positional.size() > count) {
    return type_error("macro " + repr_of(node.name) + " takes not more than " + std::to_string(count) + " argument(s)");
  }
  return {};
}

Result<void> Interpreter::default_parameters(const Node& node) {
  const size_t first = node.kind == NodeKind::call_block ? 1 : 0;
  for (size_t i = 0; i < node.parameters.size(); ++i) {
    const Parameter& parameter = node.parameters[i];
    MC_CHECK(spend(scope_->variables.size() / kLookedUpPerStep));
    const auto bound = std::find_if(scope_->variables.begin(), scope_->variables.end(),
                                    [&](const auto& v) { return v.first == parameter.id; });
    if (!bound->second.is(Kind::missing)) continue;
    if (!node.children[first + i]) {
      MC_CHECK(bind(parameter.id, Value::undefined("parameter " + repr_of(parameter.name) + " was not provided")));
      continue;
    }
    MC_TRY(value, evaluate(*node.children[first + i]));
    MC_CHECK(bind(parameter.id, std::move(value)));
  }
  return {};
}

Result<Value> Interpreter::call_macro(const Macro& macro, Args args) {
  const ScopeGuard scope(*this, macro.scope);
  MC_CHECK(bind_macro(macro, args, *scope_));
  MC_CHECK(default_parameters(*macro.node));
  Str out;
  MC_CHECK(captured(macro.node->bodies[0], out));
  return Value(std::move(out));
}

Result<Value> Interpreter::call(const Value& callee, Args args) {
  MC_CHECK(spend(1));
  switch (callee.kind()) {
    case Kind::macro: return call_macro(callee.as<Macro>(), std::move(args));
    case Kind::loop: return call_loop(callee, std::move(args));
    case Kind::method: return callee.as<Method>().call(*this, callee.as<Method>().self, args);
    case Kind::function: return callee.as<Function>().call(*this, args);
    case Kind::joiner: {
      Joiner& joiner = callee.as<Joiner>();
      return std::exchange(joiner.used, true) ? joiner.separator : Value(Str());
    }
    case Kind::undefined: return undefined_error(callee);
    default: return type_error("'" + std::string(type_name(callee)) + "' object is not callable");
  }
}

}  // namespace mc::jinja
