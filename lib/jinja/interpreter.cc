#include "jinja/interpreter.h"

#include <algorithm>

namespace mc::jinja {
namespace {

Value no_attribute(const Value& object, std::string_view name) {
  return Value::undefined(repr_of(object_name(object)) + " has no attribute " + repr_of(name));
}

/// An attribute of the `loop` variable; missing when it has none of that name.
Value loop_attribute(const Value& self, std::string_view name) {
  const Loop& loop = self.as<Loop>();
  const auto index0 = static_cast<int64_t>(loop.index0), size = static_cast<int64_t>(loop.items.size());
  if (name == "index0") return index0;
  if (name == "index") return index0 + 1;
  if (name == "revindex0") return size - index0 - 1;
  if (name == "revindex") return size - index0;
  if (name == "first") return index0 == 0;
  if (name == "last") return index0 + 1 == size;
  if (name == "length") return size;
  if (name == "depth") return loop.depth0 + 1;
  if (name == "depth0") return loop.depth0;
  if (name == "previtem")
    return index0 == 0 ? Value::undefined("there is no previous item") : loop.items[loop.index0 - 1];
  if (name == "nextitem")
    return index0 + 1 == size ? Value::undefined("there is no next item") : loop.items[loop.index0 + 1];
  return {};
}

Value macro_attribute(const Macro& macro, std::string_view name) {
  if (name == "name") return Value(std::string_view(macro.node->name));
  if (name == "catch_kwargs") return macro.node->uses_kwargs;
  if (name == "catch_varargs") return macro.node->uses_varargs;
  if (name == "caller") return macro.node->uses_caller;
  if (name != "arguments") return {};
  Values out;
  for (const Parameter& parameter : macro.node->parameters) out.push_back(Value(std::string_view(parameter.name)));
  return Value::tuple(std::move(out));
}

/// Resolves a negative index as Python does; false when the index is out of range.
bool in_range(int64_t& index, size_t size) {
  if (index < 0) index += static_cast<int64_t>(size);
  return index >= 0 && index < static_cast<int64_t>(size);
}

/// object[index]; missing when there is nothing there.
Value indexed(const Value& object, const Value& key) {
  if (!key.is_whole()) return {};
  int64_t index = key.integer();
  switch (object.kind()) {
    case Kind::list:
    case Kind::tuple:
      return in_range(index, object.items().size()) ? object.items()[static_cast<size_t>(index)] : Value();
    case Kind::string:
      return in_range(index, object.chars().size()) ? Value(Str(1, object.chars()[static_cast<size_t>(index)]))
                                                    : Value();
    case Kind::range:
      return in_range(index, static_cast<size_t>(object.as<Range>().size())) ? Value(object.as<Range>().at(index))
                                                                             : Value();
    default: return {};
  }
}

Value unsafe_attribute(const Value& object, std::string_view name) {
  return Value::undefined(
      "access to attribute " + repr_of(name) + " of " + repr_of(type_name(object)) + " object is unsafe.", true);
}

}  // namespace

bool is_unsafe(const Value& object, std::string_view name) {
  constexpr std::string_view kList[] = {"append", "clear", "pop", "reverse", "insert", "sort", "extend", "remove"};
  constexpr std::string_view kDict[] = {"clear", "pop", "popitem", "setdefault", "update"};
  // Attributes of every Python object.
  constexpr std::string_view kObject[] = {
      "__class__",   "__delattr__", "__dir__",           "__doc__",         "__eq__",
      "__format__",  "__ge__",      "__getattribute__",  "__getstate__",    "__gt__",
      "__hash__",    "__init__",    "__init_subclass__", "__le__",          "__lt__",
      "__ne__",      "__new__",     "__reduce__",        "__reduce_ex__",   "__repr__",
      "__setattr__", "__sizeof__",  "__str__",           "__subclasshook__"};
  const auto within = [&](std::span<const std::string_view> names) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  if (object.is(Kind::space)) return false;  // a namespace has only the attributes that a template has set
  return within(kObject) || (object.is(Kind::list) && within(kList)) || (object.is(Kind::dict) && within(kDict));
}

Interpreter::Interpreter(const Tree& tree, const Context& context, const Limits& limits)
    : context_(context),
      budget_(limits),
      scopes_(tree, context, budget_),
      evaluator_(*this, budget_, scopes_),
      runner_(*this, tree, budget_, scopes_, evaluator_),
      macros_(tree, budget_, scopes_, evaluator_, runner_) {}

Interpreter::~Interpreter() {
  for (const auto& space : spaces_) space->attributes.clear();
  for (const Value& kept : kept_)
    if (kept.is(Kind::loop))
      kept.as<Loop>().changed = {};
    else
      kept.as<Iterator>().items.clear();
}

Result<Str> render(const Tree& tree, const Context& context, const Limits& limits) {
  return Interpreter(tree, context, limits).run();
}

Result<bool> Interpreter::equals(const Value& a, const Value& b) {
  Effort comparing = budget_.effort();
  const bool out = equal(a, b, comparing);
  MC_CHECK(budget_.spend(comparing));
  return out;
}

Error Interpreter::failed(const Node& node, Error error) {
  if (placed_) return error;
  placed_ = true;
  return placed(node.at, std::move(error));
}

Result<Value> Interpreter::call(const Value& callee, Args args) {
  MC_CHECK(budget_.spend(1));
  switch (callee.kind()) {
    case Kind::macro: return macros_.call(callee.as<Macro>(), std::move(args));
    case Kind::loop: return runner_.call_loop(callee, std::move(args));
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

Result<Value> Interpreter::own_attribute(const Value& object, std::string_view name) {
  if (object.is(Kind::undefined)) return undefined_error(object);
  if (is_unsafe(object, name)) return unsafe_attribute(object, name);
  switch (object.kind()) {
    case Kind::space:
      MC_CHECK(budget_.spend(object.as<Space>().attributes.size() / kLookedUpPerStep));
      for (const auto& [key, value] : object.as<Space>().attributes)
        if (key == name) return value;
      return Value();
    case Kind::loop:
      if (Value found = loop_attribute(object, name); !found.is(Kind::missing)) return found;
      break;
    case Kind::macro: return macro_attribute(object.as<Macro>(), name);
    case Kind::cycler:
      if (name == "current") return object.as<Cycler>().items[object.as<Cycler>().at];
      break;
    case Kind::tuple:
      if (object.as<Items>().group && (name == "grouper" || name == "list"))
        return object.items()[name == "grouper" ? 0 : 1];
      break;
    default: break;
  }
  return find_method(object, name);
}

Result<Value> Interpreter::attribute(const Value& object, std::string_view name) {
  if (object.is(Kind::dict)) MC_CHECK(budget_.spend(object.entries().size() / 16));
  MC_TRY(own, own_attribute(object, name));
  if (!own.is(Kind::missing)) return own;
  if (object.is(Kind::dict)) {
    MC_TRY(found, find(object, name));
    if (found != nullptr) return *found;
  }
  return no_attribute(object, name);
}

Result<Value> Interpreter::item(const Value& object, const Value& key) {
  if (object.is(Kind::undefined)) return undefined_error(object);
  if (object.is(Kind::dict)) {
    MC_CHECK(budget_.spend(object.entries().size() / 16));
    MC_TRY(found, find(object, key));
    if (found != nullptr) return *found;
  } else if (Value found = indexed(object, key); !found.is(Kind::missing)) {
    return found;
  }
  if (!key.is(Kind::string)) return Value::undefined(object_name(object) + " has no element " + narrow(to_repr(key)));
  const std::string name = narrow(key.chars());
  MC_TRY(own, own_attribute(object, name));
  if (!own.is(Kind::missing)) return own;
  return no_attribute(object, name);
}

Result<Values> Interpreter::items_of(const Value& value) {
  Values out;
  switch (value.kind()) {
    case Kind::undefined: return out;
    case Kind::list:
    case Kind::tuple: out = value.items(); break;
    case Kind::string:
      MC_CHECK(budget_.make(value.chars().size() * 24));
      for (const char32_t c : value.chars()) out.push_back(Value(Str(1, c)));
      break;
    case Kind::dict:
      for (const auto& [key, item] : value.entries()) out.push_back(key);
      break;
    case Kind::range: {
      const Range& range = value.as<Range>();
      for (int64_t i = 0; i < range.size(); ++i) out.push_back(Value(range.at(i)));
      break;
    }
    case Kind::view: {
      const View& view = value.as<View>();
      const bool user = view.dict.user();
      for (const auto& [key, item] : view.dict.entries())
        out.push_back(view.of == View::Of::keys     ? key
                      : view.of == View::Of::values ? item
                                                    : Value::tuple({key, item}, user));
      break;
    }
    case Kind::iterator: {
      Iterator& iterator = value.as<Iterator>();
      if (iterator.make) {
        MC_TRY(made, std::exchange(iterator.make, nullptr)(*this));
        iterator.items = std::move(made);
      }
      for (; iterator.next < iterator.items.size(); ++iterator.next) out.push_back(iterator.items[iterator.next]);
      iterator.items.clear();
      iterator.next = 0;
      break;
    }
    default: return type_error("'" + std::string(type_name(value)) + "' object is not iterable");
  }
  MC_CHECK(budget_.spend(out.size() / 4));
  MC_CHECK(budget_.make(out.size() * 8));  // a value counts as eight characters
  return out;
}

Value Interpreter::lazy(const Value& over, const Values& args, std::function<Result<Values>(Interpreter&)> make,
                        std::string_view type) {
  Extent extent = over.extent();
  extent.depth = 1 + std::max(extent.depth, extent_of(args).depth);
  return Value(Kind::iterator, std::make_shared<Iterator>(Iterator{std::move(make), {}, 0, extent, type}));
}

Value Interpreter::new_space(Space space) {
  spaces_.push_back(std::make_shared<Space>(std::move(space)));
  return Value(Kind::space, spaces_.back());
}

Result<void> bind_arguments(std::string_view function, Args& args, std::initializer_list<std::string_view> names,
                            size_t required, std::span<Value> out) {
  const std::string call = std::string(function) + "()";
  if (args.positional.size() > names.size())
    return type_error(call + " takes at most " + std::to_string(names.size()) + " arguments (" +
                      std::to_string(args.positional.size()) + " given)");
  for (size_t i = 0; i < args.positional.size(); ++i) out[i] = args.positional[i];
  for (auto& [name, value] : args.named) {
    const auto* found = std::find(names.begin(), names.end(), name);
    if (found == names.end()) return type_error(call + " got an unexpected keyword argument " + repr_of(name));
    Value& slot = out[static_cast<size_t>(found - names.begin())];
    if (!slot.is(Kind::missing)) return type_error(call + " got multiple values for argument " + repr_of(name));
    slot = value;
  }
  for (size_t i = 0; i < required; ++i)
    if (out[i].is(Kind::missing))
      return type_error(call + " missing required argument: '" + std::string(names.begin()[i]) + "'");
  return {};
}

Result<int64_t> whole(const Value& value) {
  if (value.is(Kind::undefined)) return undefined_error(value);
  if (!value.is_whole())
    return type_error("'" + std::string(type_name(value)) + "' object cannot be interpreted as an integer");
  return value.integer();
}

}  // namespace mc::jinja
