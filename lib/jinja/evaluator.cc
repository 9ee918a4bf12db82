#include "jinja/evaluator.h"

#include <array>

#include "jinja/filters.h"
#include "jinja/interpreter.h"

namespace mc::jinja {

Result<Value> Evaluator::evaluate(const Node& node) {
  if (auto within = budget_.spend(1); !within) return run_.failed(node, std::move(within).error());
  if (node.kind == NodeKind::constant) return node.value;
  if (node.kind == NodeKind::name) return scopes_.find(node.id, node.name);
  const Budget::Level level(budget_);
  if (auto within = budget_.check_depth(); !within) return run_.failed(node, std::move(within).error());
  auto result = evaluate_kind(node);
  if (!result) return run_.failed(node, std::move(result).error());
  const Extent extent = result->extent();
  if (extent.depth > kExtentMax.depth || extent.size > kExtentMax.size)
    return run_.failed(
        node, failure("LimitError", "a value nested deeper than " + std::to_string(kExtentMax.depth) +
                                        " levels, or of more than " + std::to_string(kExtentMax.size) + " values"));
  return result;
}

Result<Value> Evaluator::evaluate_kind(const Node& node) {
  switch (node.kind) {
    case NodeKind::tuple:
    case NodeKind::list: return items(node);
    case NodeKind::dict: return dict(node);
    case NodeKind::attribute: {
      MC_TRY(object, evaluate(*node.children[0]));
      return run_.attribute(object, node.name);
    }
    case NodeKind::item: return item_node(node);
    case NodeKind::call: return call_node(node, nullptr);
    case NodeKind::filter: return filter_node(node, nullptr);
    case NodeKind::test: return test_node(node);
    case NodeKind::unary: return unary(node);
    case NodeKind::binary: return binary(node);
    case NodeKind::and_:
    case NodeKind::or_: {
      MC_TRY(left, evaluate(*node.children[0]));
      if (truth(left) == (node.kind == NodeKind::or_)) return left;
      return evaluate(*node.children[1]);
    }
    case NodeKind::concat: return concat(node);
    case NodeKind::compare: return compare(node);
    case NodeKind::condition: return condition(node);
    case NodeKind::slice: return type_error("a slice among indices is not supported");
    default: return failure("RuntimeError", "not an expression");
  }
}

Result<Value> Evaluator::items(const Node& node) {
  Values out;
  out.reserve(node.children.size());
  for (const NodePtr& child : node.children) {
    MC_TRY(value, evaluate(*child));
    out.push_back(std::move(value));
  }
  return node.kind == NodeKind::list ? Value::list(std::move(out)) : Value::tuple(std::move(out));
}

Result<Value> Evaluator::dict(const Node& node) {
  std::vector<std::pair<Value, Value>> entries;
  for (size_t i = 0; i < node.children.size(); i += 2) {
    MC_TRY(key, evaluate(*node.children[i]));
    MC_TRY(value, evaluate(*node.children[i + 1]));
    if (key.is(Kind::list) || key.is(Kind::dict))
      return type_error("unhashable type: '" + std::string(type_name(key)) + "'");
    MC_CHECK(set_entry(run_, entries, std::move(key), std::move(value)));
  }
  return Value::dict(std::move(entries));
}

Result<Value> Evaluator::item_node(const Node& node) {
  MC_TRY(object, evaluate(*node.children[0]));
  const Node& index = *node.children[1];
  if (index.kind != NodeKind::slice) {
    MC_TRY(key, evaluate(index));
    return run_.item(object, key);
  }
  std::array<Value, 3> bounds{nullptr, nullptr, nullptr};
  for (size_t i = 0; i < 3; ++i)
    if (index.children[i]) {
      MC_TRY(bound, evaluate(*index.children[i]));
      bounds[i] = std::move(bound);
    }
  MC_TRY(out, slice(run_, object, bounds[0], bounds[1], bounds[2]));
  if (out.is(Kind::string)) MC_CHECK(budget_.make(out.chars().size()));
  return out;
}

Result<Args> Evaluator::arguments(const Arguments* arguments) {
  Args out;
  if (arguments == nullptr) return out;
  for (const NodePtr& node : arguments->positional) {
    MC_TRY(value, evaluate(*node));
    out.positional.push_back(std::move(value));
  }
  for (const auto& [name, node] : arguments->named) {
    MC_TRY(value, evaluate(*node));
    out.named.emplace_back(name, std::move(value));
  }
  if (arguments->star) {
    MC_TRY(value, evaluate(*arguments->star));
    MC_TRY(more, run_.items_of(value));
    for (Value& item : more) out.positional.push_back(std::move(item));
  }
  if (arguments->star_star) {
    MC_TRY(value, evaluate(*arguments->star_star));
    if (!value.is(Kind::dict))
      return type_error("argument after ** must be a mapping, not " + std::string(type_name(value)));
    for (const auto& [key, item] : value.entries()) {
      if (!key.is(Kind::string)) return type_error("keywords must be strings");
      out.named.emplace_back(narrow(key.chars()), item);
    }
  }
  return out;
}

Result<Value> Evaluator::call_node(const Node& node, const Value* caller) {
  MC_TRY(callee, evaluate(*node.children[0]));
  MC_TRY(args, arguments(node.arguments.get()));
  if (caller != nullptr) args.named.emplace_back("caller", *caller);
  MC_TRY(out, run_.call(callee, std::move(args)));
  if (out.is(Kind::string) && !callee.is(Kind::macro)) MC_CHECK(budget_.make(out.chars().size()));
  return out;
}

Result<Value> Evaluator::filter_node(const Node& node, const Value* text) {
  Value value;
  if (node.children[0]) {
    // The innermost filter of a block has no operand and takes the text of the block.
    MC_TRY(operand, node.children[0]->kind == NodeKind::filter ? filter_node(*node.children[0], text)
                                                               : evaluate(*node.children[0]));
    value = std::move(operand);
  } else {
    value = *text;
  }
  MC_TRY(args, arguments(node.arguments.get()));
  if (node.filter == nullptr)
    return failure("TemplateRuntimeError", "No filter named " + repr_of(node.name) + " found.");
  if (!node.filter->takes_arguments && !(args.positional.empty() && args.named.empty()))
    return type_error("filter " + repr_of(node.name) + " takes no arguments");
  MC_CHECK(budget_.read(value.is(Kind::string) ? value.chars().size() : 1));
  auto out = node.filter->apply(run_, value, args);
  if (!out) return run_.failed(node, std::move(out).error());
  if (out->is(Kind::string) && out->object() != value.object()) MC_CHECK(budget_.make(out->chars().size()));
  return out;
}

Result<Value> Evaluator::test_node(const Node& node) {
  MC_TRY(value, evaluate(*node.children[0]));
  MC_TRY(args, arguments(node.arguments.get()));
  if (node.test == nullptr) return failure("TemplateRuntimeError", "No test named " + repr_of(node.name) + " found.");
  MC_TRY(result, node.test->check(run_, value, args));
  return Value(result);
}

Result<Value> Evaluator::binary(const Node& node) {
  MC_TRY(left, evaluate(*node.children[0]));
  MC_TRY(right, evaluate(*node.children[1]));
  return operate(run_, node.op, std::move(left), right);
}

Result<Value> Evaluator::unary(const Node& node) {
  MC_TRY(value, evaluate(*node.children[0]));
  if (node.op == Op::not_) return Value(!truth(value));
  return negate(value, node.op == Op::neg);
}

Result<Value> Evaluator::concat(const Node& node) {
  Str out;
  for (const NodePtr& child : node.children) {
    MC_TRY(value, evaluate(*child));
    const Str text = to_str(value);
    MC_CHECK(budget_.make(text.size()));
    out += text;
  }
  return Value(std::move(out));
}

Result<Value> Evaluator::compare(const Node& node) {
  MC_TRY(left, evaluate(*node.children[0]));
  for (size_t i = 0; i < node.ops.size(); ++i) {
    MC_TRY(right, evaluate(*node.children[i + 1]));
    MC_TRY(holds, compare_values(run_, node.ops[i], left, right));
    if (!holds) return Value(false);
    left = std::move(right);
  }
  return Value(true);
}

Result<Value> Evaluator::condition(const Node& node) {
  MC_TRY(test, evaluate(*node.children[0]));
  if (truth(test)) return evaluate(*node.children[1]);
  if (node.children[2]) return evaluate(*node.children[2]);
  return Value::undefined("the inline if-expression on line " + std::to_string(node.at.line) +
                          " evaluated to false and no else section was defined.");
}

}  // namespace mc::jinja
