// One rendering, put together from its parts: budget, scopes, evaluator, runner and macros. Filters, tests, methods
// and functions receive it as `run` and use it for everything that needs state.
#pragma once

#include <array>
#include <initializer_list>
#include <memory>
#include <span>

#include "jinja/macros.h"

namespace mc::jinja {

class Interpreter {
 public:
  Interpreter(const Tree& tree, const Context& context, const Limits& limits);
  ~Interpreter();
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  Result<Str> run() { return runner_.run(); }

  Budget& budget() { return budget_; }
  Result<bool> equals(const Value& a, const Value& b);
  /// The value of a dict's key; nullptr when it has no such key.
  template <class Key>
  Result<const Value*> find(const Value& dict, const Key& key) {
    Effort comparing = budget_.effort();
    const Value* const found = dict.find(key, comparing);
    MC_CHECK(budget_.spend(comparing));
    return found;
  }
  /// The items of Python's list(value). TypeError: not iterable.
  Result<Values> items_of(const Value& value);
  Result<Value> call(const Value& callee, Args args);
  /// object.name and object[key].
  Result<Value> attribute(const Value& object, std::string_view name);
  Result<Value> item(const Value& object, const Value& key);
  /// A method or property of the object, for |attr. The value is missing when the object has none of that name.
  Result<Value> own_attribute(const Value& object, std::string_view name);
  Value new_space(Space space);
  /// Keeps a loop or an iterator until the interpreter ends and empties it then. Such a value may hold itself or a
  /// chain of loops of any length, because its extent does not count the values that it remembers.
  void keep(const Value& value) { kept_.push_back(value); }
  /// An iterator whose items `make` gives when they are first asked for, as Python's generators do. `args` are the
  /// values that `make` holds besides `over`.
  Value lazy(const Value& over, const Values& args, std::function<Result<Values>(Interpreter&)> make,
             std::string_view type = "generator");
  const std::optional<std::tm>& now() const { return context_.now; }
  /// Puts the node's place in front of an error that has none yet.
  Error failed(const Node& node, Error error);

 private:
  const Context& context_;
  Budget budget_;
  Scopes scopes_;
  Evaluator evaluator_;
  Runner runner_;
  Macros macros_;
  bool placed_ = false;                         // the error that is being returned has its place
  std::vector<std::shared_ptr<Space>> spaces_;  // a namespace may hold itself, so these are emptied at the end
  Values kept_;
};

// --- operators (ops.cc) ---
Result<Value> operate(Interpreter& run, Op op, Value left, const Value& right);
Result<Value> negate(const Value& value, bool negative);
Result<bool> compare_values(Interpreter& run, Op op, const Value& left, const Value& right);
Result<bool> contains(Interpreter& run, const Value& container, const Value& item);
/// entries[key] = value.
Result<void> set_entry(Interpreter& run, std::vector<std::pair<Value, Value>>& entries, Value key, Value value);
/// left < right, as sorted() asks. TypeError.
Result<bool> less(Interpreter& run, const Value& left, const Value& right);
Result<Value> slice(Interpreter& run, const Value& object, const Value& start, const Value& stop, const Value& step);
/// `text` repeated `count` times. The budget is charged before the text is made.
Result<Str> repeat(Interpreter& run, StrView text, int64_t count);

// --- formatting (format.cc), JSON (json.cc) ---
/// Python's "%s" % values.
Result<Value> format_percent(Interpreter& run, const Value& format, const Value& values);
/// Python's "{}".format(...).
Result<Value> format_braces(Interpreter& run, const Value& format, const Args& args);
Result<Value> to_json(Interpreter& run, const Value& value, Args& args);

// --- arguments ---
/// Puts `args` into `out` by position and name, as a Python signature does. An argument that is not given stays
/// missing. TypeError: too many arguments, an unknown name, an argument given twice, or fewer than `required`.
Result<void> bind_arguments(std::string_view function, Args& args, std::initializer_list<std::string_view> names,
                            size_t required, std::span<Value> out);
/// An integer (or boolean) argument; TypeError.
Result<int64_t> whole(const Value& value);

/// The global function of that name, or missing.
Value find_function(std::string_view name);
/// The method of a str, list, tuple or dict, or missing.
Value find_method(const Value& self, std::string_view name);
/// The sandbox hides this attribute: it changes its object, or it is one of Python's double-underscore names.
bool is_unsafe(const Value& object, std::string_view name);

}  // namespace mc::jinja
