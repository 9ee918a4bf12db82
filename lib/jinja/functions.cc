// The global functions of a template.
#include <algorithm>

#include "jinja/interpreter.h"

namespace mc::jinja {
namespace {

Result<Value> range(Interpreter& run, Args& args) {
  if (!args.named.empty()) return type_error("range() takes no keyword arguments");
  if (args.positional.empty() || args.positional.size() > 3)
    return type_error("range expected " +
                      std::string(args.positional.empty() ? "at least 1 argument" : "at most 3 arguments") + ", got " +
                      std::to_string(args.positional.size()));
  int64_t bounds[3] = {0, 0, 1};
  bool user = false;
  for (size_t i = 0; i < args.positional.size(); ++i) {
    MC_TRY(bound, whole(args.positional[i]));
    bounds[i] = bound;
    user |= args.positional[i].user();
    if (bound > (int64_t{1} << 60) || bound < -(int64_t{1} << 60))
      return failure("OverflowError", "range bound too large");
  }
  if (args.positional.size() == 1) std::swap(bounds[0], bounds[1]);
  if (bounds[2] == 0) return failure("ValueError", "range() arg 3 must not be zero");
  const Range out{bounds[0], bounds[1], bounds[2]};
  constexpr int64_t kRangeMax = 100000;  // jinja2's MAX_RANGE
  if (out.size() > kRangeMax)
    return failure("OverflowError", "Range too big. The sandbox blocks ranges larger than MAX_RANGE (100000).");
  return Value(Kind::range, std::make_shared<Range>(out)).with_user(user);
}

/// The arguments of dict(...) and namespace(...): one mapping or list of pairs, then named values.
Result<std::vector<std::pair<Value, Value>>> entries_of(Interpreter& run, std::string_view function, Args& args) {
  std::vector<std::pair<Value, Value>> out;
  if (args.positional.size() > 1)
    return type_error(std::string(function) + " expected at most 1 argument, got " +
                      std::to_string(args.positional.size()));
  if (!args.positional.empty() && args.positional[0].is(Kind::dict)) {
    out = args.positional[0].entries();
    MC_CHECK(run.budget().make(out.size() * 16));
  } else if (!args.positional.empty()) {
    MC_TRY(pairs, run.items_of(args.positional[0]));
    for (size_t i = 0; i < pairs.size(); ++i) {
      MC_CHECK(run.budget().spend(1 + out.size() / 16));
      MC_TRY(pair, run.items_of(pairs[i]));
      if (pair.size() != 2)
        return failure("ValueError", "dictionary update sequence element #" + std::to_string(i) + " has length " +
                                         std::to_string(pair.size()) + "; 2 is required");
      MC_CHECK(set_entry(run, out, std::move(pair[0]), std::move(pair[1])));
    }
  }
  for (auto& [name, value] : args.named) MC_CHECK(set_entry(run, out, Value(std::string_view(name)), std::move(value)));
  return out;
}

Result<Value> dict(Interpreter& run, Args& args) {
  MC_TRY(entries, entries_of(run, "dict", args));
  return Value::dict(std::move(entries));
}

Result<Value> space(Interpreter& run, Args& args) {
  MC_CHECK(run.budget().spend(32));
  MC_TRY(entries, entries_of(run, "dict", args));
  Space out;
  for (auto& [key, value] : entries) {
    std::string name = narrow(to_str(key));
    if (name.starts_with('_'))
      return failure("SecurityError",
                     "Chat templates cannot store underscore-prefixed attributes on a namespace, but got " +
                         repr_of(name) + ". Please rename the attribute.");
    out.attributes.emplace_back(std::move(name), std::move(value));
  }
  return run.new_space(std::move(out));
}

Result<Value> cycler(Interpreter& run, Args& args) {
  if (args.positional.empty()) return failure("RuntimeError", "at least one item has to be provided");
  const Extent extent = extent_of(args.positional);
  return Value(Kind::cycler, std::make_shared<Cycler>(Cycler{std::move(args.positional), 0, extent}));
}

Result<Value> joiner(Interpreter& run, Args& args) {
  std::array<Value, 1> out;
  MC_CHECK(bind_arguments("joiner", args, {"sep"}, 0, out));
  if (out[0].is(Kind::missing)) out[0] = Value(std::string_view(", "));
  return Value(Kind::joiner, std::make_shared<Joiner>(Joiner{out[0]}));
}

Result<Value> lipsum(Interpreter& run, Args& args) {
  return failure("NotSupported", "lipsum() makes random text, which a prompt must not depend on");
}

Result<Value> raise_exception(Interpreter& run, Args& args) {
  std::array<Value, 1> out;
  MC_CHECK(bind_arguments("raise_exception", args, {"message"}, 1, out));
  return failure("TemplateError", narrow(to_str(out[0])));
}

Result<Value> strftime_now(Interpreter& run, Args& args) {
  std::array<Value, 1> out;
  MC_CHECK(bind_arguments("strftime_now", args, {"format"}, 1, out));
  if (!out[0].is(Kind::string))
    return type_error("strftime() argument 1 must be str, not " + std::string(type_name(out[0])));
  std::string format = narrow(out[0].chars());
  if (format.size() > 256) return failure("LimitError", "a date format of more than 256 bytes");
  const auto fill = [&](std::string_view from, const char* to) {
    for (size_t at = format.find(from); at != std::string::npos; at = format.find(from, at)) format.replace(at, 2, to);
  };
  fill("%f", "000000");  // the time has whole seconds and no zone
  fill("%z", "");
  fill("%Z", "");
  const bool user = !out[0].chars().empty() && (out[0].chars().front() & kUserBit) != 0;
  char text[2048];
  const size_t size = std::strftime(text, sizeof(text), format.c_str(), &*run.now());
  return Value(widen(std::string_view(text, size), user));
}

constexpr Function kFunctions[] = {{"range", range},
                                   {"dict", dict},
                                   {"namespace", space},
                                   {"cycler", cycler},
                                   {"joiner", joiner},
                                   {"lipsum", lipsum},
                                   {"raise_exception", raise_exception},
                                   {"strftime_now", strftime_now}};

}  // namespace

Value find_function(std::string_view name) {
  for (const Function& function : kFunctions)
    if (function.name == name) return Value(Kind::function, std::make_shared<Function>(function));
  return {};
}

}  // namespace mc::jinja
