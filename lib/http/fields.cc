#include "http/fields.h"

#include <algorithm>
#include <cmath>

namespace mc::http {
namespace {

constexpr size_t kIgnoredMax = 32, kIgnoredBytesMax = 64;

std::string quoted_limit(double value) {
  std::string text;
  append_json_number(text, value);
  if (text.ends_with(".0")) text.resize(text.size() - 2);
  return text;
}

}  // namespace

Fields::Fields(const Json& object, std::string prefix)
    : object_(object), prefix_(std::move(prefix)), known_(object.members().size(), false) {}

const Json* Fields::take(std::string_view name) {
  const auto members = object_.members();
  for (size_t i = 0; i < members.size(); ++i)
    if (members[i].key == name) {
      known_[i] = true;
      return members[i].value.is_null() ? nullptr : &members[i].value;
    }
  return nullptr;
}

void Fields::real(std::string_view name, double low, double high, std::optional<double>& out) {
  const Json* value = take(name);
  if (!value) return;
  const double number = value->as_double(std::nan(""));
  if (!value->is_number() || !(number >= low && number <= high))
    return fail(name, "must be a number from " + quoted_limit(low) + " to " + quoted_limit(high));
  out = number;
}

std::optional<int64_t> Fields::read_integer(std::string_view name, int64_t low, int64_t high) {
  const Json* value = take(name);
  if (!value) return std::nullopt;
  // as_int returns the fallback for fractions and huge doubles. Two calls with different fallbacks reveal such a value.
  const int64_t number = value->as_int(0);
  if (!value->is_number() || number != value->as_int(1) || number < low || number > high) {
    fail(name, "must be an integer from " + std::to_string(low) + " to " + std::to_string(high));
    return std::nullopt;
  }
  return number;
}

void Fields::boolean(std::string_view name, bool& out) {
  const Json* value = take(name);
  if (!value) return;
  if (!value->is_bool()) return fail(name, "must be true or false");
  out = value->as_bool();
}

void Fields::boolean(std::string_view name, std::optional<bool>& out) {
  bool value = out.value_or(false);
  const Json* given = object_.find(name);
  boolean(name, value);
  if (given && given->is_bool()) out = value;
}

void Fields::string(std::string_view name, size_t bytes_max, std::string& out) {
  const Json* value = take(name);
  if (!value) return;
  if (!value->is_string()) return fail(name, "must be a string");
  if (value->as_string().size() > bytes_max)
    return fail(name, "must have at most " + std::to_string(bytes_max) + " bytes");
  out = value->as_string();
}

void Fields::strings(std::string_view name, size_t count_max, size_t bytes_max, std::vector<std::string>& out) {
  const Json* value = take(name);
  if (!value) return;
  const std::span<const Json> list = value->is_array() ? value->items() : std::span<const Json>(value, 1);
  if (list.size() > count_max) return fail(name, "must have at most " + std::to_string(count_max) + " strings");
  for (const Json& item : list) {
    const std::string_view text = item.as_string();
    if (text.empty() || text.size() > bytes_max)
      return fail(name, "must be a string, or a list of strings, of 1 to " + std::to_string(bytes_max) + " bytes");
    out.emplace_back(text);
  }
}

bool read_token_ids(const Json& list, size_t count_max, uint32_t limit, std::vector<uint32_t>& out) {
  if (!list.is_array() || list.items().size() > count_max) return false;
  const int64_t end = limit == 0 ? int64_t{1} << 31 : int64_t{limit};
  out.reserve(list.items().size());
  for (const Json& item : list.items()) {
    const int64_t id = item.is_int() ? item.as_int() : -1;
    if (id < 0 || id >= end) return false;
    out.push_back(static_cast<uint32_t>(id));
  }
  return true;
}

void Fields::token_ids(std::string_view name, size_t count_max, uint32_t limit, std::vector<uint32_t>& out) {
  const Json* value = take(name);
  if (value && !read_token_ids(*value, count_max, limit, out))
    fail(name, "must be a list of at most " + std::to_string(count_max) + " token ids" +
                   (limit > 0 ? " below " + std::to_string(limit) : std::string()));
}

const Json* Fields::object(std::string_view name) {
  const Json* value = take(name);
  if (!value || value->is_object()) return value;
  fail(name, "must be an object");
  return nullptr;
}

const Json* Fields::array(std::string_view name) {
  const Json* value = take(name);
  if (!value || value->is_array()) return value;
  fail(name, "must be a list");
  return nullptr;
}

void Fields::accept(std::initializer_list<std::string_view> names) {
  for (const std::string_view name : names) (void)take(name);
}

void Fields::refuse(std::string_view name, std::string_view why) {
  const Json* value = take(name);
  if (!value) return;
  const bool is_neutral = (value->is_bool() && !value->as_bool()) || (value->is_number() && value->as_double() == 0) ||
                          (value->is_string() && value->as_string().empty()) ||
                          ((value->is_array() || value->is_object()) && value->size() == 0);
  if (!is_neutral) fail_unsupported(name, why);
}

void Fields::fail(std::string_view name, std::string_view what) {
  if (error_) return;
  const std::string field = prefix_ + std::string(name);
  error_ = user_error(err::kInvalidField, field + " " + std::string(what), field);
}

void Fields::fail_unsupported(std::string_view name, std::string_view what) {
  if (error_) return;
  const std::string field = prefix_ + std::string(name);
  error_ = user_error(err::kUnsupportedField, field + " is not supported: " + std::string(what), field);
}

Result<void> Fields::status() const {
  if (error_) return *error_;
  return {};
}

std::vector<std::string> Fields::ignored() const {
  std::vector<std::string> names;
  for (size_t i = 0; i < known_.size() && names.size() < kIgnoredMax; ++i) {
    if (known_[i]) continue;
    std::string name = prefix_ + object_.members()[i].key.substr(0, kIgnoredBytesMax);
    std::replace_if(
        name.begin(), name.end(), [](char c) { return c <= 0x20 || c >= 0x7f; }, '?');
    names.push_back(std::move(name));
  }
  return names;
}

}  // namespace mc::http
