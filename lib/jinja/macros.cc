#include "jinja/macros.h"

#include <algorithm>

#include "base/assert.h"
#include "jinja/interpreter.h"

namespace mc::jinja {
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

Result<void> Macros::bind_arguments(const Node& node, Args& args) {
  const size_t count = node.parameters.size();
  bool found_caller = false;
  for (size_t i = 0; i < count; ++i) {
    const Parameter& parameter = node.parameters[i];
    const bool given = i < args.positional.size();
    found_caller |= parameter.id == tree_.caller_id;
    MC_CHECK(budget_.spend(args.named.size() / kLookedUpPerStep));
    MC_CHECK(scopes_.bind(parameter.id, given ? args.positional[i] : take_named(args, parameter.name)));
  }
  if (node.uses_caller && !found_caller) {
    Value caller = take_named(args, "caller");
    if (caller.is(Kind::missing) || caller.is(Kind::none)) caller = Value::undefined("No caller defined");
    MC_CHECK(scopes_.bind(tree_.caller_id, std::move(caller)));
  }
  if (node.uses_kwargs) {
    std::vector<std::pair<Value, Value>> entries;
    for (auto& [name, value] : args.named) entries.emplace_back(Value(std::string_view(name)), std::move(value));
    MC_CHECK(scopes_.bind(tree_.kwargs_id, Value::dict(std::move(entries))));
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
    MC_CHECK(scopes_.bind(tree_.varargs_id, Value::tuple(std::move(rest))));
  } else if (args.positional.size() > count) {
    return type_error("macro " + repr_of(node.name) + " takes not more than " + std::to_string(count) + " argument(s)");
  }
  return {};
}

Result<void> Macros::bind_defaults(const Node& node) {
  const size_t first = node.kind == NodeKind::call_block ? 1 : 0;
  for (size_t i = 0; i < node.parameters.size(); ++i) {
    const Parameter& parameter = node.parameters[i];
    MC_TRY(bound, scopes_.find_here(parameter.id));
    MC_ASSERT(bound != nullptr);  // bind_arguments() has bound every parameter
    if (!bound->is(Kind::missing)) continue;
    if (!node.children[first + i]) {
      MC_CHECK(
          scopes_.bind(parameter.id, Value::undefined("parameter " + repr_of(parameter.name) + " was not provided")));
      continue;
    }
    MC_TRY(value, expressions_.evaluate(*node.children[first + i]));
    MC_CHECK(scopes_.bind(parameter.id, std::move(value)));
  }
  return {};
}

Result<Value> Macros::call(const Macro& macro, Args args) {
  const Scopes::Within scope(scopes_, macro.scope);
  MC_CHECK(bind_arguments(*macro.node, args));
  MC_CHECK(bind_defaults(*macro.node));
  MC_TRY(text, statements_.text_of(macro.node->bodies[0]));
  return Value(std::move(text));
}

}  // namespace mc::jinja
