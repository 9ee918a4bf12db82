// Methods of all types other than text.
#include <algorithm>

#include "jinja/interpreter.h"

namespace mc::jinja {

Value find_object_method(const Value& self, std::string_view name);

namespace {

struct ObjectMethod {
  Kind kind;
  std::string_view name;
  Result<Value> (*call)(Interpreter&, const Value&, Args&);
};

template <View::Of of>
Result<Value> view(Interpreter& run, const Value& self, Args& args) {
  MC_CHECK(bind_arguments("dict view", args, {}, 0, {}));
  return Value(Kind::view, std::make_shared<View>(View{self, of}));
}

Result<Value> get(Interpreter& run, const Value& self, Args& args) {
  if (!args.named.empty()) return type_error("dict.get() takes no keyword arguments");
  std::array<Value, 2> a;
  MC_CHECK(bind_arguments("get", args, {"key", "default"}, 1, a));
  MC_CHECK(run.budget().spend(self.entries().size() / 16));
  if (a[0].is(Kind::list) || a[0].is(Kind::dict))
    return type_error("unhashable type: '" + std::string(type_name(a[0])) + "'");
  MC_TRY(found, run.find(self, a[0]));
  if (found != nullptr) return *found;
  return a[1].is(Kind::missing) ? Value(nullptr) : a[1];
}

Result<Value> copy(Interpreter& run, const Value& self, Args& args) {
  return self;  // lists and dicts never change, so the copy is the object itself
}

Result<Value> count(Interpreter& run, const Value& self, Args& args) {
  std::array<Value, 1> a;
  MC_CHECK(bind_arguments("count", args, {"value"}, 1, a));
  MC_TRY(items, run.items_of(self));
  int64_t out = 0;
  for (const Value& item : items) {
    MC_TRY(found, run.equals(item, a[0]));
    out += found ? 1 : 0;
  }
  return Value(out);
}

Result<Value> index(Interpreter& run, const Value& self, Args& args) {
  std::array<Value, 3> a;
  MC_CHECK(bind_arguments("index", args, {"value", "start", "stop"}, 1, a));
  MC_TRY(items, run.items_of(self));
  const auto size = static_cast<int64_t>(items.size());
  int64_t bounds[2] = {0, size};
  for (size_t i = 0; i < 2; ++i)
    if (!a[i + 1].is(Kind::missing)) {
      MC_TRY(bound, whole(a[i + 1]));
      bounds[i] = std::max<int64_t>(bound < 0 ? bound + size : bound, 0);
    }
  for (int64_t i = bounds[0]; i < std::min(bounds[1], size); ++i) {
    MC_TRY(found, run.equals(items[static_cast<size_t>(i)], a[0]));
    if (found) return Value(i);
  }
  return failure("ValueError", narrow(to_repr(a[0])) + " is not in " + std::string(type_name(self)));
}

/// Class methods such as dict.fromkeys are not supported.
Result<Value> no_class_method(Interpreter&, const Value&, Args&) {
  return failure("NotSupported", "dict.fromkeys is not supported in templates here");
}

Result<Value> is_integer(Interpreter&, const Value& self, Args&) {
  return Value(self.real() == static_cast<double>(static_cast<int64_t>(self.real())));
}

Result<Value> cycle(Interpreter& run, const Value& self, Args& args) {
  if (args.positional.empty()) return type_error("no items for cycling given");
  return args.positional[self.as<Loop>().index0 % args.positional.size()];
}

Result<Value> has_changed(Interpreter& run, const Value& self, Args& args) {
  Value now = Value::tuple(args.positional);
  Loop& loop = self.as<Loop>();
  if (loop.changed.is(Kind::tuple)) {
    MC_TRY(alike, run.equals(loop.changed, now));
    if (alike) return Value(false);
  } else {
    run.keep(self);
  }
  loop.changed = std::move(now);
  return Value(true);
}

Result<Value> next(Interpreter& run, const Value& self, Args& args) {
  Cycler& cycler = self.as<Cycler>();
  Value value = cycler.items[cycler.at];
  cycler.at = (cycler.at + 1) % cycler.items.size();
  return value;
}

Result<Value> reset(Interpreter& run, const Value& self, Args& args) {
  self.as<Cycler>().at = 0;
  return Value(nullptr);
}

constexpr ObjectMethod kObjectMethods[] = {
    {Kind::dict, "items", view<View::Of::items>},
    {Kind::dict, "get", get},
    {Kind::dict, "keys", view<View::Of::keys>},
    {Kind::dict, "values", view<View::Of::values>},
    {Kind::dict, "copy", copy},
    {Kind::dict, "fromkeys", no_class_method},
    {Kind::list, "copy", copy},
    {Kind::list, "count", count},
    {Kind::list, "index", index},
    {Kind::tuple, "count", count},
    {Kind::tuple, "index", index},
    {Kind::range, "count", count},
    {Kind::range, "index", index},
    {Kind::real, "is_integer", is_integer},
    {Kind::loop, "cycle", cycle},
    {Kind::loop, "changed", has_changed},
    {Kind::cycler, "next", next},
    {Kind::cycler, "reset", reset},
};

}  // namespace

Value find_object_method(const Value& self, std::string_view name) {
  for (const ObjectMethod& entry : kObjectMethods)
    if (entry.kind == self.kind() && entry.name == name)
      return Value(Kind::method, std::make_shared<Method>(Method{self, entry.name, entry.call}));
  return {};
}

}  // namespace mc::jinja
