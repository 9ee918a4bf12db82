// Random JSON schemas, and what it means for a value to satisfy one.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "base/json.h"
#include "base/rng.h"

namespace mc::grammar::test {

/// A random schema without references; every such schema has a document.
inline Json random_schema(Rng& rng, int depth) {
  switch (rng.below(depth > 3 ? 6 : 9)) {
    case 0: return Json::object({{"type", "boolean"}});
    case 1: return Json::object({{"type", rng.below(2) ? "number" : "null"}});
    case 2: {
      const auto low = static_cast<int64_t>(rng.below(300)) - 150;
      return Json::object(
          {{"type", "integer"}, {"minimum", low}, {"maximum", low + static_cast<int64_t>(rng.below(90))}});
    }
    case 3: {
      const auto low = static_cast<int64_t>(rng.below(4));
      Json out = Json::object({{"type", "string"}, {"minLength", low}});
      if (rng.below(2)) out.set("maxLength", low + static_cast<int64_t>(rng.below(40)));
      return out;
    }
    case 4: {
      Json list = Json::array();
      for (uint64_t i = 0; i <= rng.below(5); ++i)
        list.push(Json(std::string(1 + rng.below(3), "ab\"\xC3"[rng.below(3)])));
      list.push(Json::object({{"k", Json::array({1, nullptr, "\xC3\xA9"})}}));
      return Json::object({{"enum", std::move(list)}});
    }
    case 5: return Json::object({{"const", static_cast<int64_t>(rng.below(1000))}});
    case 6: {
      Json any = Json::array();
      for (uint64_t i = 0; i <= rng.below(3); ++i) any.push(random_schema(rng, depth + 1));
      return Json::object({{"anyOf", std::move(any)}});
    }
    case 7: {
      const auto low = static_cast<int64_t>(rng.below(3));
      Json out = Json::object({{"type", "array"}, {"items", random_schema(rng, depth + 1)}, {"minItems", low}});
      if (rng.below(2)) out.set("maxItems", low + static_cast<int64_t>(rng.below(4)));
      return out;
    }
    default: break;
  }
  Json properties = Json::object(), required = Json::array();
  for (uint64_t i = 0; i < rng.below(5); ++i) {
    const std::string key = rng.below(4) ? std::string(1 + rng.below(2), static_cast<char>('a' + rng.below(3)))
                                         : std::string(rng.below(2) ? "\xC3\xA9" : "q\"");
    if (properties.has(key)) continue;
    properties.set(key, random_schema(rng, depth + 1));
    if (rng.below(2)) required.push(key);
  }
  Json out =
      Json::object({{"type", "object"}, {"properties", std::move(properties)}, {"required", std::move(required)}});
  if (rng.below(2)) out.set("additionalProperties", rng.below(2) ? Json(false) : random_schema(rng, depth + 1));
  return out;
}

inline size_t characters(std::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

/// The meaning of a schema, written apart from the compiler.
inline bool satisfies(const Json& schema, const Json& value) {
  if (schema.is_bool()) return schema.as_bool();
  if (schema.has("enum")) {
    const auto list = schema["enum"].items();
    return std::find(list.begin(), list.end(), value) != list.end();
  }
  if (schema.has("const")) return schema["const"] == value;
  if (schema.has("anyOf")) {
    const auto list = schema["anyOf"].items();
    return std::any_of(list.begin(), list.end(), [&](const Json& one) { return satisfies(one, value); });
  }
  const std::string_view type = schema["type"].as_string();
  if (type == "number" ? !value.is_number() : type != value.kind_name()) return false;
  if (type == "integer")
    return schema["minimum"].as_int() <= value.as_int() && value.as_int() <= schema["maximum"].as_int();
  if (type == "string") {
    const auto count = static_cast<int64_t>(characters(value.as_string()));
    return schema["minLength"].as_int() <= count && count <= schema["maxLength"].as_int(INT64_MAX);
  }
  if (type == "array") {
    const auto count = static_cast<int64_t>(value.size());
    return schema["minItems"].as_int() <= count && count <= schema["maxItems"].as_int(INT64_MAX) &&
           std::all_of(value.items().begin(), value.items().end(),
                       [&](const Json& item) { return satisfies(schema["items"], item); });
  }
  if (type != "object") return true;
  for (const Json& name : schema["required"].items())
    if (!value.has(name.as_string())) return false;
  const Json& more = schema["additionalProperties"];
  for (const auto& [key, member] : value.members()) {
    const Json* own = schema["properties"].find(key);
    if (!own && more.is_bool() && !more.as_bool()) return false;
    if (own ? !satisfies(*own, member) : !more.is_null() && !satisfies(more, member)) return false;
  }
  return true;
}

}  // namespace mc::grammar::test
