#include "jinja/runner.h"

#include <algorithm>
#include <array>

#include "jinja/filters.h"
#include "jinja/interpreter.h"

namespace mc::jinja {

Result<Str> Runner::run() {
  Str out;
  out_ = &out;
  MC_CHECK(run(tree_.body));
  return out;
}

Result<Str> Runner::text_of(const Nodes& body) {
  Str out;
  MC_CHECK(captured(body, out));
  return out;
}

Value Runner::macro_value(const Node& node) {
  return Value(Kind::macro, std::make_shared<Macro>(Macro{&node, scopes_.capture()}));
}

Result<Runner::Flow> Runner::run(const Nodes& nodes) {
  for (const NodePtr& node : nodes) {
    MC_TRY(flow, run(*node));
    if (flow != Flow::next) return flow;
  }
  return Flow::next;
}

Result<Runner::Flow> Runner::run(const Node& node) {
  if (auto within = budget_.spend(1); !within) return run_.failed(node, std::move(within).error());
  if (auto within = budget_.check_depth(); !within) return run_.failed(node, std::move(within).error());
  const Budget::Level level(budget_);
  auto result = run_kind(node);
  if (!result) return run_.failed(node, std::move(result).error());
  return result;
}

Result<Runner::Flow> Runner::run_kind(const Node& node) {
  switch (node.kind) {
    case NodeKind::data: MC_CHECK(emit(node.value)); return Flow::next;
    case NodeKind::output: {
      MC_TRY(value, expressions_.evaluate(*node.children[0]));
      MC_CHECK(emit(value));
      return Flow::next;
    }
    case NodeKind::if_: return if_(node);
    case NodeKind::for_: return for_(node);
    case NodeKind::set: MC_CHECK(set(node)); return Flow::next;
    case NodeKind::set_block: return set_block(node);
    case NodeKind::macro: MC_CHECK(scopes_.bind(node.id, macro_value(node))); return Flow::next;
    case NodeKind::call_block: MC_CHECK(call_block(node)); return Flow::next;
    case NodeKind::with: return with(node);
    case NodeKind::filter_block: return filter_block(node);
    case NodeKind::block: {
      const Scopes::Within scope(scopes_,
                                 // a block has the template's variables, not those of the scopes around it
                                 scopes_.root());
      return run(node.bodies[0]);
    }
    case NodeKind::scope: {
      const Scopes::Within scope(scopes_, scopes_.current());
      return run(node.bodies[0]);
    }
    case NodeKind::break_: return Flow::break_;
    case NodeKind::continue_: return Flow::continue_;
    default: return type_error("no loader for this environment specified (" + node.name + ")");
  }
}

Result<void> Runner::emit(const Value& value) {
  const auto append = [&](StrView text) -> Result<void> {
    MC_CHECK(budget_.check_output(out_->size(), text.size()));
    MC_CHECK(budget_.read(text.size()));
    // The output reserves more than a long text needs, so that a short text behind it does not copy the long one.
    if (text.size() > out_->capacity() - out_->size()) out_->reserve(out_->size() + text.size() + text.size() / 4 + 64);
    out_->append(text);
    return {};
  };
  if (value.is(Kind::string)) return append(value.chars());
  return append(to_str(value));
}

Result<Runner::Flow> Runner::captured(const Nodes& body, Str& out) {
  Str* const outside = std::exchange(out_, &out);
  auto flow = run(body);
  out_ = outside;
  if (flow) MC_CHECK(budget_.make(out.size()));
  return flow;
}

Result<Runner::Flow> Runner::if_(const Node& node) {
  for (size_t i = 0; i < node.children.size(); ++i) {
    MC_TRY(test, expressions_.evaluate(*node.children[i]));
    if (truth(test)) return run(node.bodies[i]);
  }
  if (node.bodies.size() > node.children.size()) return run(node.bodies.back());
  return Flow::next;
}

Result<Runner::Flow> Runner::for_(const Node& node) {
  MC_TRY(over, expressions_.evaluate(*node.children[1]));
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
Result<Values> Runner::filtered(const Node& node, Values items) {
  const Scopes::Within scope(scopes_, scopes_.current());
  Values out;
  for (Value& item : items) {
    MC_CHECK(assign(*node.children[0], item));
    MC_TRY(test, expressions_.evaluate(*node.children[2]));
    if (truth(test)) out.push_back(std::move(item));
  }
  return out;
}

Result<Runner::Flow> Runner::loop(const Node& node, const Value& over, int64_t depth0) {
  MC_TRY(items, run_.items_of(over));
  if (node.children[2]) {
    MC_TRY(chosen, filtered(node, std::move(items)));
    items = std::move(chosen);
  }
  const auto state = std::make_shared<Loop>();
  state->items = std::move(items);
  state->depth0 = depth0;
  state->recursive = node.is_recursive ? &node : nullptr;
  state->extent = extent_of(state->items);
  // a loop keeps its scope only for recursive calls, because scopes and loops may form a long chain
  if (node.is_recursive) {
    state->scope = scopes_.capture();
  }
  bool finished_one = false;  // an iteration that break or continue has left does not count, as in jinja2
  for (size_t i = 0; i < state->items.size(); ++i) {
    MC_CHECK(budget_.spend(1));
    state->index0 = i;
    const Scopes::Within scope(scopes_, scopes_.current());
    MC_CHECK(assign(*node.children[0], state->items[i]));
    if (node.uses_loop) MC_CHECK(scopes_.bind(tree_.loop_id, Value(Kind::loop, state)));
    MC_TRY(flow, run(node.bodies[0]));
    if (flow == Flow::break_) break;
    if (flow == Flow::next) finished_one = true;
  }
  if (finished_one || node.bodies[1].empty()) return Flow::next;
  const Scopes::Within scope(scopes_, scopes_.current());
  return run(node.bodies[1]);
}

Result<Value> Runner::call_loop(const Value& callee, Args args) {
  const Loop& outer = callee.as<Loop>();
  if (outer.recursive == nullptr)
    return type_error("The loop must have the 'recursive' marker to be called recursively.");
  std::array<Value, 1> over;
  MC_CHECK(bind_arguments("loop", args, {"iterable"}, 1, over));
  Str out;
  Str* const outside = std::exchange(out_, &out);
  auto flow = [&] {
    const Scopes::Back scope(scopes_, outer.scope);
    return loop(*outer.recursive, over[0], outer.depth0 + 1);
  }();
  out_ = outside;
  if (!flow) return std::move(flow).error();
  return Value(std::move(out));
}

Result<void> Runner::assign(const Node& target, Value value) {
  if (target.kind == NodeKind::name) return scopes_.bind(target.id, std::move(value));
  if (target.kind == NodeKind::namespace_ref) return assign_attribute(target, std::move(value));
  return unpack(target, value);
}

Result<void> Runner::assign_attribute(const Node& target, Value value) {
  MC_TRY(space, scopes_.find(target.id, target.name));
  if (!space.is(Kind::space))
    return run_.failed(target, failure("TemplateRuntimeError", "cannot assign attribute on non-namespace object"));
  if (target.attribute.starts_with('_'))
    return run_.failed(target, failure("SecurityError",
                                       "Chat templates cannot store underscore-prefixed attributes on a namespace, but "
                                       "got " +
                                           repr_of(target.attribute) + ". Please rename the attribute."));
  auto& attributes = space.as<Space>().attributes;
  MC_CHECK(budget_.spend(attributes.size() / kLookedUpPerStep));
  for (auto& [key, old] : attributes)
    if (key == target.attribute) {
      old = std::move(value);
      return {};
    }
  attributes.emplace_back(target.attribute, std::move(value));
  return {};
}

Result<void> Runner::unpack(const Node& target, const Value& value) {
  auto unpacked = run_.items_of(value);
  if (!unpacked) {
    const bool plain = value.is_number() || value.is(Kind::none);
    return run_.failed(target,
                       plain ? type_error("cannot unpack non-iterable " + std::string(type_name(value)) + " object")
                             : std::move(unpacked).error());
  }
  const size_t wanted = target.children.size(), got = unpacked->size();
  if (got > wanted)
    return run_.failed(target,
                       failure("ValueError", "too many values to unpack (expected " + std::to_string(wanted) + ")"));
  if (got < wanted)
    return run_.failed(target, failure("ValueError", "not enough values to unpack (expected " + std::to_string(wanted) +
                                                         ", got " + std::to_string(got) + ")"));
  for (size_t i = 0; i < wanted; ++i) MC_CHECK(assign(*target.children[i], std::move((*unpacked)[i])));
  return {};
}

Result<void> Runner::set(const Node& node) {
  MC_TRY(value, expressions_.evaluate(*node.children[1]));
  return assign(*node.children[0], std::move(value));
}

Result<Runner::Flow> Runner::set_block(const Node& node) {
  Str out;
  Value value;
  {
    const Scopes::Within scope(scopes_, scopes_.current());
    MC_TRY(flow, captured(node.bodies[0], out));
    if (flow != Flow::next) return flow;
    value = Value(std::move(out));
    if (node.children[1]) {
      MC_TRY(changed, expressions_.filter_node(*node.children[1], &value));
      value = std::move(changed);
    }
  }
  MC_CHECK(assign(*node.children[0], std::move(value)));
  return Flow::next;
}

Result<Runner::Flow> Runner::with(const Node& node) {
  Values values;
  for (size_t i = 1; i < node.children.size(); i += 2) {
    MC_TRY(value, expressions_.evaluate(*node.children[i]));
    values.push_back(std::move(value));
  }
  const Scopes::Within scope(scopes_, scopes_.current());
  for (size_t i = 0; i < values.size(); ++i) MC_CHECK(assign(*node.children[i * 2], std::move(values[i])));
  return run(node.bodies[0]);
}

Result<Runner::Flow> Runner::filter_block(const Node& node) {
  const Scopes::Within scope(scopes_, scopes_.current());
  Str out;
  MC_TRY(flow, captured(node.bodies[0], out));
  if (flow != Flow::next) return flow;
  const Value text(std::move(out));
  MC_TRY(value, expressions_.filter_node(*node.children[0], &text));
  MC_CHECK(emit(value));
  return Flow::next;
}

Result<void> Runner::call_block(const Node& node) {
  const Value caller = macro_value(node);
  MC_TRY(value, expressions_.call_node(*node.children[0], &caller));
  return emit(value);
}

}  // namespace mc::jinja
