#include "grammar/schema.h"

#include <algorithm>
#include <array>
#include <bitset>
#include <optional>
#include <utility>

#include "base/assert.h"
#include "base/errors.h"
#include "base/units.h"

namespace mc::grammar {
namespace {

constexpr int kDepthMax = 12;  // of schemas inside each other; deeper ones need $ref
constexpr int kReferencesMax = 32;
constexpr size_t kAlternativesMax = 64, kListedMax = 1000, kPropertiesMax = 256, kKeyBytesMax = 1024;
constexpr int64_t kIntegerMax = 999'999'999'999'999;  // 15 digits, which a double holds exactly
constexpr int64_t kCountMax = 1'000'000;

// Keywords that describe and do not constrain.
constexpr std::string_view kAnnotations[] = {"title",    "description", "default",    "examples", "example",
                                             "$schema",  "$id",         "$comment",   "$defs",    "definitions",
                                             "readOnly", "writeOnly",   "deprecated", "$anchor"};
// Keywords that constrain, but that no automaton here can check: always errors, since the answer might break them.
constexpr std::string_view kConstraints[] = {"allOf",
                                             "oneOf",
                                             "not",
                                             "if",
                                             "then",
                                             "else",
                                             "multipleOf",
                                             "patternProperties",
                                             "propertyNames",
                                             "minProperties",
                                             "maxProperties",
                                             "dependentRequired",
                                             "contains",
                                             "minContains",
                                             "maxContains",
                                             "dependentSchemas",
                                             "prefixItems",
                                             "uniqueItems",
                                             "dependencies",
                                             "unevaluatedProperties",
                                             "$dynamicRef",
                                             "$recursiveRef",
                                             "additionalItems",
                                             "unevaluatedItems"};
constexpr std::string_view kTypes[] = {"object", "array", "string", "integer", "number", "boolean", "null"};
// Keywords that belong to one type. In a list of types, each type takes its own.
struct Owned {
  std::string_view keyword, type;
};
constexpr Owned kOwned[] = {{"properties", "object"},
                            {"required", "object"},
                            {"additionalProperties", "object"},
                            {"items", "array"},
                            {"minItems", "array"},
                            {"maxItems", "array"},
                            {"minLength", "string"},
                            {"maxLength", "string"},
                            {"pattern", "string"},
                            {"format", "string"},
                            {"minimum", "integer"},
                            {"maximum", "integer"},
                            {"exclusiveMinimum", "integer"},
                            {"exclusiveMaximum", "integer"}};

template <class List>
bool has(const List& list, std::string_view name) {
  return std::find(std::begin(list), std::end(list), name) != std::end(list);
}

std::optional<std::string_view> owner_of(std::string_view keyword) {
  for (const Owned& owned : kOwned)
    if (owned.keyword == keyword) return owned.type;
  return std::nullopt;
}

std::string escaped(std::string_view key) {
  std::string out;
  for (const char c : key.substr(0, 64)) out += c == '~' ? "~0" : c == '/' ? "~1" : std::string(1, c);
  return out;
}

struct Format {
  std::string_view name, pattern;
};
constexpr Format kFormats[] = {
    {"date", "^[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])$"},
    {"time", "^([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])$"},
    {"date-time",
     "^[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,6})?"
     "(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])$"},
    {"uuid", "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"},
    {"ipv4", "^((25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])\\.){3}(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])$"},
    {"email", "^[A-Za-z0-9_%+-]+(\\.[A-Za-z0-9_%+-]+)*@[A-Za-z0-9-]+(\\.[A-Za-z0-9-]+)+$"},
};

}  // namespace

Error schema_error(const std::string& place, const std::string& what) {
  return user_error(err::kSchemaUnsupported, place + ": " + what, place);
}

Result<void> SchemaCompiler::check_keywords(const Json& schema, std::initializer_list<std::string_view> known,
                                            Text place) const {
  for (const auto& [key, value] : schema.members()) {
    if (has(known, key) || has(kAnnotations, key)) continue;
    const std::string at = place + "/" + escaped(key);
    if (has(kConstraints, key)) return schema_error(at, "the keyword is not supported");
    if (const auto owner = owner_of(key))
      return schema_error(at, "the keyword is supported for the type " + std::string(*owner) + " alone");
    if (has(std::initializer_list<std::string_view>{"type", "enum", "const", "anyOf", "$ref"}, key))
      return schema_error(at, "the keyword is not supported beside the others here");
    if (strict_) return schema_error(at, "JSON schema has no such keyword, and \"strict\" allows no others");
  }
  return {};
}

Result<void> SchemaCompiler::add(NodeId from, NodeId to) {
  return add_value(root_, "#", 0, from, to);
}

Result<void> SchemaCompiler::check_possible() const {
  for (size_t i = made_.size(); i-- > 0;)
    if (builder_.levels_of(made_[i].entry) > kLevelsMax)
      return schema_error(made_[i].place, builder_.levels_of(made_[i].entry) == kNever
                                              ? "no document satisfies it, because it requires itself"
                                              : "its documents are nested deeper than " + std::to_string(kLevelsMax));
  return {};
}

Result<void> SchemaCompiler::add_value(const Json& schema, Text place, int depth, NodeId from, NodeId to) {
  if (depth > kDepthMax)
    return schema_error(place, "schemas are nested deeper than " + std::to_string(kDepthMax) + "; use $ref");
  if (builder_.is_full()) return schema_error(place, "the schema is too large");
  if (schema.is_bool() && schema.as_bool()) return builder_.call(from, builder_.prelude().value, to), Result<void>{};
  if (schema.is_bool()) return schema_error(place, "false allows no value");
  if (!schema.is_object()) return schema_error(place, "a schema is an object, not " + std::string(schema.kind_name()));
  if (schema.has("$ref")) return add_reference(schema, place, from, to);
  if (schema.has("anyOf")) return add_choice(schema, "anyOf", place, depth, from, to);
  // Generators write allOf with one schema beside a description; it is that schema.
  if (schema["allOf"].size() == 1 && schema["allOf"].is_array())
    return add_choice(schema, "allOf", place, depth, from, to);
  if (schema.has("enum") || schema.has("const")) return add_listed(schema, place, from, to);
  const Json& type = schema["type"];
  if (type.is_string()) {
    MC_CHECK(add_type(schema, type.as_string(), place, depth, from, to));
    return {};
  }
  if (type.is_array()) {
    if (type.size() == 0 || type.size() > std::size(kTypes))
      return schema_error(place + "/type", "a list of types has 1 to 7 types");
    Json others = Json::object();
    for (const auto& [key, value] : schema.members())
      if (!owner_of(key)) others.set(key, value);
    MC_CHECK(check_keywords(others, {"type"}, place));
    for (const Json& one : type.items()) {
      Json narrow = Json::object({{"type", one}});
      for (const auto& [key, value] : schema.members())
        if (owner_of(key) == one.as_string()) narrow.set(key, value);
      MC_CHECK(add_type(narrow, one.as_string(), place, depth, from, to));
    }
    return {};
  }
  if (!type.is_null()) return schema_error(place + "/type", "must be a string or a list of strings");
  const auto belongs = [&](std::string_view name) { return schema.has(name); };
  if (belongs("properties") || belongs("required") || belongs("additionalProperties"))
    return add_object(schema, place, depth, from, to);
  if (belongs("items") || belongs("minItems") || belongs("maxItems")) return add_array(schema, place, depth, from, to);
  MC_CHECK(check_keywords(schema, {}, place));
  builder_.call(from, builder_.prelude().value, to);
  return {};
}

Result<void> SchemaCompiler::add_type(const Json& schema, std::string_view type, Text place, int depth, NodeId from,
                                      NodeId to) {
  if (type == "object") return add_object(schema, place, depth, from, to);
  if (type == "array") return add_array(schema, place, depth, from, to);
  if (type == "string") return add_string(schema, place, from, to);
  if (type == "integer") return add_integer(schema, place, from, to);
  MC_CHECK(check_keywords(schema, {"type"}, place));
  if (type == "number")
    builder_.call(from, builder_.prelude().number, to);
  else if (type == "null")
    builder_.text(from, "null", to);
  else if (type == "boolean")
    builder_.texts(from, {"true", "false"}, to);
  else
    return schema_error(place + "/type", "there is no type \"" + escaped(type) + "\"");
  return {};
}

// ---- references, lists, choices --------------------------------------------------------------------

Result<const Json*> SchemaCompiler::find(std::string_view pointer, Text place) const {
  const auto unknown = [&](const char* what) {
    return schema_error(place + "/$ref", "\"" + std::string(pointer.substr(0, 100)) + "\" " + what);
  };
  if (!pointer.starts_with('#')) return unknown("is not a place in this schema, which begins with #");
  const Json* at = &root_;
  std::string_view rest = pointer.substr(1);
  while (!rest.empty()) {
    if (rest[0] != '/') return unknown("is no JSON pointer");
    const size_t end = std::min(rest.find('/', 1), rest.size());
    std::string key;
    for (size_t i = 1; i < end; ++i) {
      const bool tilde = rest[i] == '~' && i + 1 < end && (rest[i + 1] == '0' || rest[i + 1] == '1');
      key += tilde ? (rest[++i] == '0' ? '~' : '/') : rest[i];
    }
    if (at->is_array()) {
      const auto index = parse_u64(key, 0, 1'000'000);
      at = index && *index < at->size() ? &(*at)[*index] : nullptr;
    } else {
      at = at->find(key);
    }
    if (!at) return unknown("names nothing in this schema");
    rest.remove_prefix(end);
  }
  return at;
}

/// The rule of the schema at the pointer; made once, also for a schema that refers to itself.
Result<NodeId> SchemaCompiler::rule_of(std::string_view pointer, Text place) {
  if (const auto known = rules_.find(pointer); known != rules_.end()) return known->second;
  if (nested_ >= kReferencesMax)
    return schema_error(place + "/$ref",
                        "more than " + std::to_string(kReferencesMax) + " references lead to each other in a row");
  MC_TRY(schema, find(pointer, place));
  const NodeId entry = builder_.node(), end = builder_.node();
  builder_.returns(end);
  rules_.emplace(pointer, entry);
  made_.push_back({std::string(pointer), entry});
  direct_.emplace_back(pointer);
  ++nested_;
  MC_CHECK(add_value(*schema, std::string(pointer), 0, entry, end));
  --nested_;
  direct_.pop_back();
  return entry;
}

Result<void> SchemaCompiler::add_reference(const Json& schema, Text place, NodeId from, NodeId to) {
  MC_CHECK(check_keywords(schema, {"$ref"}, place));
  if (!schema["$ref"].is_string()) return schema_error(place + "/$ref", "must be a string");
  const std::string pointer(schema["$ref"].as_string());
  if (has(direct_, pointer))
    return schema_error(place + "/$ref", "\"" + pointer.substr(0, 100) + "\" leads back to itself");
  MC_TRY(rule, rule_of(pointer, place));
  builder_.call(from, rule, to);
  return {};
}

Result<void> SchemaCompiler::add_listed(const Json& schema, Text place, NodeId from, NodeId to) {
  MC_CHECK(check_keywords(schema, {"enum", "const", "type"}, place));
  const Json& list = schema["enum"];
  if (schema.has("enum") && (!list.is_array() || list.size() == 0 || list.size() > kListedMax))
    return schema_error(place + "/enum", "must be a list of 1 to " + std::to_string(kListedMax) + " values");
  const auto is_of = [](const Json& value, std::string_view type) {
    return value.kind_name() == type || (type == "number" && value.is_number()) ||
           (type == "integer" && value.is_number() && value.as_double() == static_cast<double>(value.as_int()));
  };
  const Json& type = schema["type"];
  const auto has_type = [&](const Json& value) {
    if (type.is_null()) return true;
    if (type.is_string()) return is_of(value, type.as_string());
    return std::any_of(type.items().begin(), type.items().end(),
                       [&](const Json& one) { return is_of(value, one.as_string()); });
  };
  std::vector<std::string> texts;
  const auto consider = [&](const Json& value) {
    const bool is_const = !schema.has("const") || value == schema["const"];
    if (is_const && has_type(value)) texts.push_back(value.dump());
  };
  if (schema.has("enum"))
    for (const Json& value : list.items()) consider(value);
  else
    consider(schema["const"]);
  if (texts.empty()) return schema_error(place, "no value of enum, const and type satisfies all three");
  builder_.texts(from, std::move(texts), to);
  return {};
}

Result<void> SchemaCompiler::add_choice(const Json& schema, const char* keyword, Text place, int depth, NodeId from,
                                        NodeId to) {
  MC_CHECK(check_keywords(schema, {keyword}, place));
  const Json& list = schema[keyword];
  if (!list.is_array() || list.size() == 0 || list.size() > kAlternativesMax)
    return schema_error(place + "/" + keyword,
                        "must be a list of 1 to " + std::to_string(kAlternativesMax) + " schemas");
  for (size_t i = 0; i < list.size(); ++i)
    MC_CHECK(add_value(list[i], place + "/" + keyword + "/" + std::to_string(i), depth + 1, from, to));
  return {};
}

// ---- objects ---------------------------------------------------------------------------------

Result<std::vector<SchemaCompiler::Property>> SchemaCompiler::properties_of(const Json& schema, Text place) const {
  const Json& properties = schema["properties"];
  const Json& required = schema["required"];
  const Json& more = schema["additionalProperties"];
  if (!properties.is_null() && !properties.is_object())
    return schema_error(place + "/properties", "must be an object of schemas");
  if (!required.is_null() && !required.is_array()) return schema_error(place + "/required", "must be a list of names");
  if (properties.size() > kPropertiesMax || required.size() > kPropertiesMax)
    return schema_error(place, "an object has at most " + std::to_string(kPropertiesMax) + " properties");
  std::vector<Property> out;
  const auto too_long = [](Text at) {
    return schema_error(at, "a name has at most " + std::to_string(kKeyBytesMax) + " bytes");
  };
  for (const auto& [key, value] : properties.members()) {
    out.push_back({key, &value, false, place + "/properties/" + escaped(key)});
    if (key.size() > kKeyBytesMax) return too_long(out.back().place);
  }
  for (const Json& name : required.items()) {
    if (!name.is_string()) return schema_error(place + "/required", "must be a list of names");
    const std::string key(name.as_string());
    if (key.size() > kKeyBytesMax) return too_long(place + "/required");
    const auto at = std::find_if(out.begin(), out.end(), [&](const Property& p) { return p.key == key; });
    if (at != out.end()) {
      at->required = true;
    } else {
      const bool closed = more.is_bool() && !more.as_bool();
      if (closed)
        return schema_error(place + "/required",
                            "\"" + escaped(key) + "\" is no property, and additionalProperties is false");
      out.push_back({key, more.is_object() ? &more : nullptr, true, place + "/additionalProperties"});
    }
  }
  return out;
}

Result<void> SchemaCompiler::add_object(const Json& schema, Text place, int depth, NodeId from, NodeId to) {
  MC_CHECK(check_keywords(schema, {"type", "properties", "required", "additionalProperties"}, place));
  MC_TRY(listed, properties_of(schema, place));
  const Json& more = schema["additionalProperties"];
  if (!more.is_null() && !more.is_bool() && !more.is_object())
    return schema_error(place + "/additionalProperties", "must be true, false or a schema");
  const bool is_any = more.is_null() && listed.empty();
  if (is_any || (listed.empty() && more.is_bool() && more.as_bool())) {
    builder_.call(from, builder_.prelude().object, to);
    return {};
  }
  // An object whose properties are listed gets those alone, unless the schema asks for more: a document with fewer
  // members satisfies the schema as well.
  auto outer = std::exchange(direct_, {});
  MC_CHECK(add_members(listed, more, place, depth, from, to));
  direct_ = std::move(outer);
  return {};
}

// Members come in the order of the schema. choose[i]: the next member is listed at i or later. after[i]: one of those
// before i was the last. So optional members cost one place each, not one path for each subset.
Result<void> SchemaCompiler::add_members(const std::vector<Property>& listed, const Json& rest, Text place, int depth,
                                         NodeId from, NodeId to) {
  const size_t count = listed.size();
  std::vector<NodeId> choose, after;
  for (size_t i = 0; i <= count; ++i) choose.push_back(builder_.node()), after.push_back(builder_.node());
  const NodeId open = builder_.space(builder_.text(from, "{"));
  const NodeId close = builder_.node();
  builder_.text(close, "}", to);
  builder_.jump(open, choose[0]);
  size_t last_required = 0;  // one past it
  for (size_t i = 0; i < count; ++i)
    if (listed[i].required) last_required = i + 1;
  if (last_required == 0) builder_.jump(open, close);
  for (size_t i = 0; i < count; ++i) {
    const Property& property = listed[i];
    const NodeId value = builder_.space(builder_.text(choose[i], Json(property.key).dump() + ":"));
    if (builder_.is_full()) return schema_error(property.place, "the schema is too large");
    if (property.schema)
      MC_CHECK(add_value(*property.schema, property.place, depth + 1, value, after[i + 1]));
    else
      builder_.call(value, builder_.prelude().value, after[i + 1]);
    if (!property.required) builder_.jump(choose[i], choose[i + 1]);
  }
  for (size_t i = 1; i <= count; ++i) {
    if (i >= last_required) builder_.jump(builder_.space(after[i]), close);
    builder_.jump(builder_.space(builder_.text(after[i], ",")), choose[i]);
  }
  if (rest.is_null() || (rest.is_bool() && !rest.as_bool())) return {};
  MC_TRY(other_key, add_other_key(listed, place, choose[count]));
  const NodeId value = builder_.space(builder_.text(other_key, ":"));
  const NodeId end = builder_.node();
  MC_CHECK(add_value(rest, place + "/additionalProperties", depth + 1, value, end));
  builder_.jump(builder_.space(end), close);
  builder_.jump(builder_.space(builder_.text(end, ",")), choose[count]);
  return {};
}

// A key that differs from the listed ones, without escapes, so that its text is its name. Along the listed keys it may
// leave at each byte; a quote may come where no listed key ends.
Result<NodeId> SchemaCompiler::add_other_key(const std::vector<Property>& listed, Text place, NodeId from) {
  std::bitset<128> plain;  // the characters of ASCII that need no escape
  for (size_t c = 0x20; c <= 0x7E; ++c)
    if (c != '"' && c != '\\') plain.set(c);
  const NodeId end = builder_.node(), apart = builder_.node();
  builder_.text(apart, "\"", end);
  builder_.characters(apart, plain, apart);
  builder_.wide_character(apart, apart);
  struct Prefix {  // of keys that are plain; others begin with a prefix that is
    NodeId at = 0;
    std::map<uint8_t, size_t> next;
    bool is_key = false, goes_wide = false;
  };
  std::vector<Prefix> prefixes(1);
  prefixes[0].at = builder_.text(from, "\"");
  for (const Property& property : listed) {
    size_t at = 0, size = 0;
    for (; size < property.key.size(); ++size) {
      const auto c = static_cast<uint8_t>(property.key[size]);
      prefixes[at].goes_wide = prefixes[at].goes_wide || c >= 0x80;
      if (c >= 0x80 || !plain.test(c)) break;
      const auto [next, fresh] = prefixes[at].next.try_emplace(c, prefixes.size());
      const size_t then = next->second;
      if (fresh) prefixes.emplace_back().at = builder_.node();
      at = then;
    }
    if (size == property.key.size()) prefixes[at].is_key = true;
    if (builder_.is_full()) return schema_error(place, "the schema is too large");
  }
  for (const Prefix& prefix : prefixes) {
    std::bitset<128> others = plain;
    for (const auto& [c, next] : prefix.next) {
      others.reset(c);
      builder_.bytes(prefix.at, c, c, prefixes[next].at);
    }
    if (!prefix.is_key && &prefix != &prefixes.front()) builder_.text(prefix.at, "\"", end);
    builder_.characters(prefix.at, others, apart);
    if (!prefix.goes_wide) builder_.wide_character(prefix.at, apart);
    if (builder_.is_full()) return schema_error(place, "the schema is too large");
  }
  return end;
}

// ---- arrays, strings, numbers ----------------------------------------------------------------------

Result<SchemaCompiler::Bounds> SchemaCompiler::bounds(const Json& schema, const char* low, const char* high,
                                                      Text place) const {
  Bounds out;
  for (const char* name : {low, high}) {
    const Json& value = schema[name];
    if (value.is_null()) continue;
    const int64_t count = value.as_int(-1);
    if (!value.is_number() || count < 0 || count > kCountMax || value.as_double() != static_cast<double>(count))
      return schema_error(place + "/" + name, "must be an integer from 0 to " + std::to_string(kCountMax));
    (name == low ? out.low : out.high) = static_cast<uint32_t>(count);
  }
  if (out.low > out.high)
    return schema_error(
        place, std::string(low) + " " + std::to_string(out.low) + " is above " + high + " " + std::to_string(out.high));
  return out;
}

Result<void> SchemaCompiler::add_array(const Json& schema, Text place, int depth, NodeId from, NodeId to) {
  MC_CHECK(check_keywords(schema, {"type", "items", "minItems", "maxItems"}, place));
  MC_TRY(count, bounds(schema, "minItems", "maxItems", place));
  const NodeId rule = builder_.node(), end = builder_.node(), item = builder_.node(), after = builder_.node();
  builder_.returns(end);
  const NodeId open = builder_.space(builder_.text(rule, "["));
  builder_.jump(open, item, Jump::Kind::take);
  if (count.low == 0) builder_.text(open, "]", end);
  const NodeId value = builder_.node();
  builder_.jump(item, value);
  const Json& items = schema["items"];
  auto outer = std::exchange(direct_, {});
  if (items.is_null())
    builder_.call(value, builder_.prelude().value, after);
  else
    MC_CHECK(add_value(items, place + "/items", depth + 1, value, after));
  direct_ = std::move(outer);
  const NodeId more = builder_.node(), close = builder_.node();
  builder_.jump(after, more, Jump::Kind::take);
  builder_.jump(builder_.space(builder_.text(more, ",")), value);
  builder_.jump(after, close, Jump::Kind::done);
  builder_.text(builder_.space(close), "]", end);
  builder_.call(from, rule, to, count.low, count.high);
  return {};
}

Result<void> SchemaCompiler::add_string(const Json& schema, Text place, NodeId from, NodeId to) {
  MC_CHECK(check_keywords(schema, {"type", "minLength", "maxLength", "pattern", "format"}, place));
  MC_TRY(length, bounds(schema, "minLength", "maxLength", place));
  std::string_view pattern = schema["pattern"].as_string();
  std::string at = place + "/pattern";
  if (schema.has("pattern") && !schema["pattern"].is_string()) return schema_error(at, "must be a string");
  bool is_matched = schema.has("pattern");
  if (schema.has("format")) {
    if (is_matched) return schema_error(place + "/format", "is not supported beside pattern");
    const std::string_view name = schema["format"].as_string();
    const auto* known = std::find_if(std::begin(kFormats), std::end(kFormats), [&](auto& f) { return f.name == name; });
    if (known != std::end(kFormats))
      pattern = known->pattern, is_matched = true, at = place + "/format";
    else if (strict_)
      return schema_error(place + "/format", "\"" + escaped(name) + "\" is not supported");
  }
  if (!is_matched) {
    builder_.call(from, builder_.prelude().string, to, length.low, length.high);
    return {};
  }
  if (length.low > 0 || length.high != kUnbounded)
    return schema_error(at, "is not supported beside minLength and maxLength");
  return add_pattern(builder_, pattern, at, from, to);
}

Result<void> SchemaCompiler::add_integer(const Json& schema, Text place, NodeId from, NodeId to) {
  MC_CHECK(check_keywords(schema, {"type", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}, place));
  int64_t low = -kIntegerMax, high = kIntegerMax;
  bool is_bound = false;
  for (const char* name : {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}) {
    const Json& value = schema[name];
    if (value.is_null()) continue;
    const int64_t bound = value.as_int(INT64_MAX);
    if (!value.is_number() || value.as_double() != static_cast<double>(bound) || bound > kIntegerMax ||
        bound < -kIntegerMax)
      return schema_error(place + "/" + name, "must be an integer of at most 15 digits");
    const std::string_view which(name);
    if (which == "minimum") low = std::max(low, bound);
    if (which == "exclusiveMinimum") low = std::max(low, bound + 1);
    if (which == "maximum") high = std::min(high, bound);
    if (which == "exclusiveMaximum") high = std::min(high, bound - 1);
    is_bound = true;
  }
  if (low > high) return schema_error(place, "no integer lies between the minimum and the maximum");
  if (is_bound)
    add_integers(builder_, low, high, from, to);
  else
    builder_.call(from, builder_.prelude().integer, to);
  return {};
}

}  // namespace mc::grammar
