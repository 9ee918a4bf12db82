// Operators with Python's rules: which types go together, floor division, slices, comparisons. Integers have 64 bits.
// A result that does not fit is an OverflowError, where Python would use a larger integer.
#include <algorithm>
#include <cmath>

#include "jinja/filters.h"
#include "jinja/interpreter.h"

namespace mc::jinja {
namespace {

constexpr std::string_view kSymbols[] = {"+", "-", "*", "/", "//", "%", "** or pow()"};

Error unsupported(Op op, const Value& left, const Value& right) {
  return type_error("unsupported operand type(s) for " + std::string(kSymbols[static_cast<size_t>(op)]) + ": '" +
                    std::string(type_name(left)) + "' and '" + std::string(type_name(right)) + "'");
}

Error overflow() {
  return failure("OverflowError", "integer result is outside 64 bits");
}

Error by_zero(Op op, bool real) {
  std::string_view text = op == Op::mod ? "integer modulo by zero" : "integer division or modulo by zero";
  if (op == Op::div) text = real ? "float division by zero" : "division by zero";
  if (real && op != Op::div) text = op == Op::mod ? "float modulo" : "float floor division by zero";
  return failure("ZeroDivisionError", std::string(text));
}

Result<Value> power(int64_t base, int64_t exponent) {
  if (exponent < 0) {
    if (base == 0) return failure("ZeroDivisionError", "0.0 cannot be raised to a negative power");
    return Value(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  }
  int64_t out = 1;
  while (exponent > 0) {
    if ((exponent & 1) != 0 && __builtin_mul_overflow(out, base, &out)) return overflow();
    exponent >>= 1;
    if (exponent > 0 && __builtin_mul_overflow(base, base, &base)) return overflow();
  }
  return Value(out);
}

Result<Value> whole_numbers(Op op, int64_t a, int64_t b) {
  int64_t out = 0;
  switch (op) {
    case Op::add: return __builtin_add_overflow(a, b, &out) ? Result<Value>(overflow()) : Value(out);
    case Op::sub: return __builtin_sub_overflow(a, b, &out) ? Result<Value>(overflow()) : Value(out);
    case Op::mul: return __builtin_mul_overflow(a, b, &out) ? Result<Value>(overflow()) : Value(out);
    case Op::div:
      if (b == 0) return by_zero(op, false);
      return Value(static_cast<double>(a) / static_cast<double>(b));
    case Op::floor_div:
    case Op::mod: {
      if (b == 0) return by_zero(op, false);
      if (b == -1) return op == Op::mod ? Result<Value>(Value(0)) : whole_numbers(Op::sub, 0, a);
      const int64_t quotient = a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0);
      return Value(op == Op::mod ? a - quotient * b : quotient);
    }
    default: return power(a, b);
  }
}

Result<Value> real_numbers(Op op, double a, double b) {
  switch (op) {
    case Op::add: return Value(a + b);
    case Op::sub: return Value(a - b);
    case Op::mul: return Value(a * b);
    case Op::div:
      if (b == 0) return by_zero(op, true);
      return Value(a / b);
    case Op::floor_div:
    case Op::mod: {
      if (b == 0) return by_zero(op, true);
      double rest = std::fmod(a, b);
      if (rest != 0 && (rest < 0) != (b < 0)) rest += b;
      if (op == Op::mod) return Value(rest == 0 ? std::copysign(0.0, b) : rest);
      const double quotient = (a - rest) / b;
      const double down = std::floor(quotient);
      return Value(quotient - down > 0.5 ? down + 1 : down);
    }
    default:
      if (a == 0 && b < 0) return failure("ZeroDivisionError", "0.0 cannot be raised to a negative power");
      if (a < 0 && b != std::floor(b)) return type_error("complex numbers are not supported");
      return Value(std::pow(a, b));
  }
}

Result<Value> joined(Value left, const Value& right, Interpreter& run) {
  if (left.is(Kind::string)) {
    MC_CHECK(run.budget().make(right.chars().size()));
    if (left.as<Text>().markup || right.as<Text>().markup) {
      const auto escaped = [&](const Value& v) -> Result<Value> {
        if (v.as<Text>().markup) return v;
        Args none;
        return find_filter("escape")->apply(run, v, none);
      };
      MC_TRY(first, escaped(left));
      MC_TRY(second, escaped(right));
      return Value(first.chars() + second.chars(), true);
    }
    if (Str* own = left.own_chars()) {
      own->append(right.chars());
      return left;
    }
    MC_CHECK(run.budget().make(left.chars().size()));
    Str out;
    out.reserve(left.chars().size() + right.chars().size());
    out.append(left.chars()).append(right.chars());
    return Value(std::move(out));
  }
  Values out = left.items();
  MC_CHECK(run.budget().make((out.size() + right.items().size()) * 8));
  out.insert(out.end(), right.items().begin(), right.items().end());
  const bool user = left.user() || right.user();
  return left.is(Kind::list) ? Value::list(std::move(out), user) : Value::tuple(std::move(out), user);
}

Result<Value> repeated(Interpreter& run, const Value& sequence, int64_t count) {
  count = std::max<int64_t>(count, 0);
  if (sequence.is(Kind::string)) {
    MC_TRY(out, repeat(run, sequence.chars(), count));
    return Value(std::move(out));
  }
  const size_t size = sequence.items().size();
  if (size > 0) MC_CHECK(run.budget().make(static_cast<size_t>(std::min<int64_t>(count, 1 << 30)) * size * 8));
  Values out;
  for (int64_t i = 0; i < count && size > 0; ++i)
    out.insert(out.end(), sequence.items().begin(), sequence.items().end());
  return sequence.is(Kind::list) ? Value::list(std::move(out), sequence.user())
                                 : Value::tuple(std::move(out), sequence.user());
}

bool is_sequence(const Value& value) {
  return value.is(Kind::string) || value.is(Kind::list) || value.is(Kind::tuple);
}

}  // namespace

Result<Str> repeat(Interpreter& run, StrView text, int64_t count) {
  Str out;
  if (count <= 0 || text.empty()) return out;
  if (count > (1 << 30)) return failure("LimitError", "a text repeated " + std::to_string(count) + " times");
  MC_CHECK(run.budget().make(text.size() * static_cast<size_t>(count)));
  out.reserve(text.size() * static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) out.append(text);
  return out;
}

Result<Value> operate(Interpreter& run, Op op, Value left, const Value& right) {
  if (op == Op::mod && left.is(Kind::string)) return format_percent(run, left, right);
  if (left.is(Kind::undefined)) return undefined_error(left);
  if (right.is(Kind::undefined)) return undefined_error(right);
  if (left.is_number() && right.is_number()) {
    const bool user = left.user() || right.user();
    MC_TRY(out, left.is_whole() && right.is_whole() ? whole_numbers(op, left.integer(), right.integer())
                                                    : real_numbers(op, left.real(), right.real()));
    return std::move(out).with_user(user);
  }
  if (op == Op::mul && is_sequence(left) && right.is_whole()) return repeated(run, left, right.integer());
  if (op == Op::mul && left.is_whole() && is_sequence(right)) return repeated(run, right, left.integer());
  if (op == Op::mul && (is_sequence(left) || is_sequence(right)))
    return type_error("can't multiply sequence by non-int of type '" +
                      std::string(type_name(is_sequence(left) ? right : left)) + "'");
  if (op != Op::add || !is_sequence(left)) return unsupported(op, left, right);
  if (left.kind() == right.kind()) return joined(std::move(left), right, run);
  const std::string name(type_name(left));
  return type_error("can only concatenate " + name + " (not \"" + std::string(type_name(right)) + "\") to " + name);
}

Result<Value> negate(const Value& value, bool negative) {
  if (value.is(Kind::undefined)) return undefined_error(value);
  if (!value.is_number())
    return type_error("bad operand type for unary " + std::string(negative ? "-" : "+") + ": '" +
                      std::string(type_name(value)) + "'");
  if (value.is(Kind::real)) return Value(negative ? -value.real() : value.real()).with_user(value.user());
  if (!negative) return Value(value.integer()).with_user(value.user());
  MC_TRY(out, whole_numbers(Op::sub, 0, value.integer()));
  return std::move(out).with_user(value.user());
}

Result<void> set_entry(Interpreter& run, std::vector<std::pair<Value, Value>>& entries, Value key, Value value) {
  for (auto& [old, slot] : entries) {
    MC_TRY(found, run.equals(old, key));
    if (!found) continue;
    slot = std::move(value);
    return {};
  }
  entries.emplace_back(std::move(key), std::move(value));
  return {};
}

Result<bool> less(Interpreter& run, const Value& left, const Value& right) {
  if (left.is(Kind::undefined)) return undefined_error(left);
  if (right.is(Kind::undefined)) return undefined_error(right);
  if (left.is_number() && right.is_number())
    return left.is_whole() && right.is_whole() ? left.integer() < right.integer() : left.real() < right.real();
  if (left.kind() == right.kind()) {
    if (left.is(Kind::string)) {
      Effort comparing = run.budget().effort();
      const bool below = compare(left.chars(), right.chars(), comparing) < 0;
      MC_CHECK(run.budget().spend(comparing));
      return below;
    }
    if (left.is(Kind::list) || left.is(Kind::tuple)) {
      const Values &a = left.items(), &b = right.items();
      for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
        MC_TRY(alike, run.equals(a[i], b[i]));
        if (!alike) return less(run, a[i], b[i]);
      }
      return a.size() < b.size();
    }
  }
  return type_error("'<' not supported between instances of '" + std::string(type_name(left)) + "' and '" +
                    std::string(type_name(right)) + "'");
}

Result<bool> contains(Interpreter& run, const Value& container, const Value& item) {
  switch (container.kind()) {
    case Kind::string:
      if (!item.is(Kind::string))
        return type_error("'in <string>' requires string as left operand, not " + std::string(type_name(item)));
      MC_CHECK(run.budget().read(container.chars().size() + item.chars().size()));
      return find_in(container.chars(), item.chars()) != StrView::npos;
    case Kind::dict:
      MC_CHECK(run.budget().spend(container.entries().size() / 16));
      if (item.is(Kind::list) || item.is(Kind::dict))
        return type_error("unhashable type: '" + std::string(type_name(item)) + "'");
      {
        MC_TRY(found, run.find(container, item));
        return found != nullptr;
      }
    default:
      if (!iterates(container.kind()))
        return type_error("argument of type '" + std::string(type_name(container)) + "' is not iterable");
  }
  MC_TRY(items, run.items_of(container));
  for (const Value& other : items) {
    MC_TRY(found, run.equals(other, item));
    if (found) return true;
  }
  return false;
}

Result<bool> compare_values(Interpreter& run, Op op, const Value& left, const Value& right) {
  const auto extent = std::min(left.extent().size, right.extent().size);
  MC_CHECK(run.budget().spend(extent));
  switch (op) {
    case Op::eq: return run.equals(left, right);
    case Op::in: return contains(run, right, left);
    case Op::ne: {
      MC_TRY(alike, run.equals(left, right));
      return !alike;
    }
    case Op::not_in: {
      MC_TRY(found, contains(run, right, left));
      return !found;
    }
    default: break;
  }
  const bool swapped = op == Op::gt || op == Op::le;  // a > b is b < a, a <= b is not b < a
  auto below = swapped ? less(run, right, left) : less(run, left, right);
  if (!below) {
    if (!below.error().what.starts_with("TypeError")) return below;
    constexpr std::string_view kNames[] = {"<", "<=", ">", ">="};
    const std::string_view name = kNames[static_cast<size_t>(op) - static_cast<size_t>(Op::lt)];
    return type_error("'" + std::string(name) + "' not supported between instances of '" +
                      std::string(type_name(left)) + "' and '" + std::string(type_name(right)) + "'");
  }
  const bool nan = left.is_number() && right.is_number() && (std::isnan(left.real()) || std::isnan(right.real()));
  return op == Op::le || op == Op::ge ? !*below && !nan : *below;
}

Result<Value> slice(Interpreter& run, const Value& object, const Value& start, const Value& stop, const Value& step) {
  if (object.is(Kind::undefined)) return undefined_error(object);
  int64_t size = 0;
  if (object.is(Kind::string))
    size = static_cast<int64_t>(object.chars().size());
  else if (object.is(Kind::list) || object.is(Kind::tuple))
    size = static_cast<int64_t>(object.items().size());
  else if (object.is(Kind::range))
    size = object.as<Range>().size();
  else if (object.is(Kind::dict))
    return type_error("unhashable type: 'slice'");
  else
    return type_error("'" + std::string(type_name(object)) + "' object is not subscriptable");
  for (const Value* bound : {&start, &stop, &step})
    if (!bound->is(Kind::none) && !bound->is_whole())
      return type_error("slice indices must be integers or None or have an __index__ method");
  const int64_t by = step.is(Kind::none) ? 1 : step.integer();
  if (by == 0) return failure("ValueError", "slice step cannot be zero");
  const auto clamp = [&](const Value& bound, int64_t fallback) {
    if (bound.is(Kind::none)) return fallback;
    int64_t at = bound.integer();
    if (at < 0) at = at < -size ? -1 : at + size;
    return std::clamp<int64_t>(at, by < 0 ? -1 : 0, by < 0 ? size - 1 : size);
  };
  const int64_t first = clamp(start, by < 0 ? size - 1 : 0);
  // clamp() gives -1 for a bound below the start, which a positive step takes as 0.
  const int64_t last = clamp(stop, by < 0 ? -1 : size);
  const Range picked{first, last, by};
  if (object.is(Kind::range)) {
    const Range& range = object.as<Range>();
    Range out;
    const auto at = [&](int64_t index, int64_t& value) {
      return !__builtin_mul_overflow(index, range.step, &value) && !__builtin_add_overflow(range.start, value, &value);
    };
    if (!at(first, out.start) || !at(last, out.stop) || __builtin_mul_overflow(range.step, by, &out.step))
      return overflow();
    return Value(Kind::range, std::make_shared<Range>(out));
  }
  MC_CHECK(run.budget().make(static_cast<size_t>(picked.size()) * (object.is(Kind::string) ? 0 : 8)));
  if (object.is(Kind::string)) {
    const Str& chars = object.chars();
    if (by == 1)
      return Value(Str(StrView(chars).substr(static_cast<size_t>(first), static_cast<size_t>(picked.size()))));
    Str out;
    for (int64_t i = 0; i < picked.size(); ++i) out += chars[static_cast<size_t>(picked.at(i))];
    return Value(std::move(out));
  }
  Values out;
  for (int64_t i = 0; i < picked.size(); ++i) out.push_back(object.items()[static_cast<size_t>(picked.at(i))]);
  return object.is(Kind::list) ? Value::list(std::move(out), object.user())
                               : Value::tuple(std::move(out), object.user());
}

}  // namespace mc::jinja
