// One rendering: the walk over the tree with its scopes, output and budget. Shared by the files that
// evaluate expressions (eval.cc), run statements and call macros (run.cc), reach into
// values (access.cc), and by the tables of filters, tests and methods, which ask it for what needs state.
#pragma once

#include <algorithm>
#include <array>
#include <initializer_list>
#include <memory>
#include <span>

#include "jinja/jinja.h"

namespace mc::jinja {

struct Scope {
  std::shared_ptr<Scope> parent;
  std::vector<std::pair<uint32_t, Value>> variables;
};
/// Names are looked for one after another; templates have few. So many are free, so many more cost a step.
constexpr size_t kLookedUpPerStep = 64;
using ScopePtr = std::shared_ptr<Scope>;

class Interpreter {
 public:
  Interpreter(const Tree& tree, const Context& context, const Limits& limits);
  ~Interpreter();
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  Result<Str> run();

  // --- for filters, tests, methods and functions ---
  /// Counts towards the limits; LimitError.
  Result<void> spend(size_t steps);
  Result<void> read(size_t chars);
  Result<void> make(size_t chars);
  /// How much comparing is left to do, and its charge when it is done; LimitError.
  Effort effort() const { return {limits_.work - std::min(work_, limits_.work)}; }
  Result<void> spend(const Effort& effort) { return read(effort.used); }
  Result<bool> equals(const Value& a, const Value& b);
  /// Where a dict has a key; nullptr when it has not.
  template <class Key>
  Result<const Value*> find(const Value& dict, const Key& key) {
    Effort comparing = effort();
    const Value* const found = dict.find(key, comparing);
    MC_CHECK(spend(comparing));
    return found;
  }
  /// What list(value) gives. TypeError: not iterable.
  Result<Values> items_of(const Value& value);
  Result<Value> call(const Value& callee, Args args);
  /// object.name and object[key].
  Result<Value> attribute(const Value& object, std::string_view name);
  Result<Value> item(const Value& object, const Value& key);
  /// Methods and properties only, for |attr: missing when there is none.
  Result<Value> own_attribute(const Value& object, std::string_view name);
  Value new_space(Space space);
  /// What may hold itself, or a chain of its kind that no extent tells of: a loop that remembers what changed,
  /// an iterator that was begun. It lives to the end and is emptied there.
  void keep(const Value& value) { kept_.push_back(value); }
  /// A value made when it is first asked for, as Python's generators are.
  /// `args` is what `make` holds besides `over`.
  Value lazy(const Value& over, const Values& args, std::function<Result<Values>(Interpreter&)> make,
             std::string_view type = "generator");
  const std::optional<std::tm>& now() const { return context_.now; }

 private:
  enum class Flow : uint8_t { next, break_, continue_ };
  class ScopeGuard;
  class DepthGuard;

  Result<Value> evaluate(const Node& node);
  Result<Value> evaluate_kind(const Node& node);
  Result<Value> name(uint32_t id, const std::string& name);
  Result<Value> items(const Node& node);
  Result<Value> dict(const Node& node);
  Result<Value> item_node(const Node& node);
  Result<Value> call_node(const Node& node, const Value* caller);
  Result<Args> arguments(const Arguments* arguments);
  Result<Value> filter_node(const Node& node, const Value* text);
  Result<Value> test_node(const Node& node);
  Result<Value> binary(const Node& node);
  Result<Value> unary(const Node& node);
  Result<Value> concat(const Node& node);
  Result<Value> compare(const Node& node);
  Result<Value> condition(const Node& node);

  Result<Flow> run(const Nodes& nodes);
  Result<Flow> run(const Node& node);
  Result<Flow> if_(const Node& node);
  Result<Flow> for_(const Node& node);
  Result<Flow> loop(const Node& node, const Value& over, int64_t depth0);
  Result<Values> filtered(const Node& node, Values items);
  Result<void> set(const Node& node);
  Result<Flow> set_block(const Node& node);
  Result<Flow> with(const Node& node);
  Result<Flow> filter_block(const Node& node);
  Result<void> call_block(const Node& node);
  Result<void> assign(const Node& target, Value value);
  Result<void> emit(const Value& value);
  Result<Flow> captured(const Nodes& body, Str& out);

  Result<Value> call_macro(const Macro& macro, Args args);
  Result<void> bind_macro(const Macro& macro, Args& args, Scope& scope);
  Result<void> default_parameters(const Node& node);
  Result<Value> call_loop(const Value& callee, Args args);
  Value macro_value(const Node& node);

  Result<void> bind(uint32_t id, Value value) { return bind(*scope_, id, std::move(value)); }
  Result<void> bind(Scope& scope, uint32_t id, Value value);
  Error failed(const Node& node, Error error);

  const Tree& tree_;
  const Context& context_;
  const Limits limits_;
  std::vector<Value> outer_;  // by name id: the context's variables and the global functions
  ScopePtr root_, scope_;
  Str* out_ = nullptr;
  size_t steps_ = 0, work_ = 0, chars_ = 0;
  uint32_t depth_ = 0;
  bool placed_ = false;  // the error that is on its way has its position
  // What may hold itself is emptied at the end.
  std::vector<ScopePtr> captured_;
  std::vector<std::shared_ptr<Space>> spaces_;
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
/// `text` repeated or padded to a size: checked before it is made.
Result<Str> repeat(Interpreter& run, StrView text, int64_t count);

// --- formatting (format.cc), JSON (json.cc) ---
/// Python's "%s" % values.
Result<Value> format_percent(Interpreter& run, const Value& format, const Value& values);
/// Python's "{}".format(...).
Result<Value> format_braces(Interpreter& run, const Value& format, const Args& args);
Result<Value> to_json(Interpreter& run, const Value& value, Args& args);

// --- arguments ---
/// Puts `args` into `out` by position and name, as a Python signature does; missing ones stay missing.
/// TypeError: too many, unknown, twice, or fewer than `required`.
Result<void> bind_arguments(std::string_view function, Args& args, std::initializer_list<std::string_view> names,
                            size_t required, std::span<Value> out);
/// An integer (or boolean) argument; TypeError.
Result<int64_t> whole(const Value& value);

/// The global function of that name, or missing.
Value find_function(std::string_view name);
/// A str, list, tuple, dict method, or missing.
Value find_method(const Value& self, std::string_view name);
/// What the sandbox hides: methods that change their object, and double underscores.
bool is_unsafe(const Value& object, std::string_view name);

}  // namespace mc::jinja
