#include "forced.h"

#include <algorithm>

#include "base/json.h"

namespace mc::grammar::test {
namespace {

// A random schema without references; every such schema has a document.
Json random_schema(Rng& rng, int depth) {
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

size_t characters(std::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

// The meaning of a schema, written apart from the compiler.
bool satisfies(const Json& schema, const Json& value) {
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

/// Documents with free keys may repeat one; our parser refuses that, so such a document shows less.
void check_answer(const Json& schema, const Forced& forced) {
  INFO(schema.dump());
  INFO(forced.text);
  CHECK_FALSE(find_invalid_utf8(forced.text).has_value());
  REQUIRE(forced.is_complete);
  const auto value = Json::parse(forced.text);
  if (!value && value.error().what.find("twice") != std::string::npos) return;
  REQUIRE_OK(value);
  CHECK(satisfies(schema, *value));
}

TEST_CASE("grammar: 500 random schemas force answers that parse and satisfy them, whatever tokens are drawn") {
  Rng rng(seed());
  INFO("seed " << seed());
  const Vocabulary vocabulary = piece_vocabulary();
  MaskStore shared;
  for (int i = 0; i < 500; ++i) {
    const Json schema = random_schema(rng, 0);
    Masks masks(compiled(Json::object({{"schema", schema}}).dump()), vocabulary, shared);
    for (const size_t wild : {size_t{0}, size_t{30}}) check_answer(schema, force(masks, rng, wild, 5000));
  }
}

TEST_CASE("grammar: any JSON that is forced parses, however the tokens nest") {
  Rng rng(seed());
  INFO("seed " << seed());
  const Vocabulary vocabulary = piece_vocabulary();
  MaskStore shared;
  Masks masks(compiled(R"({"json":"object"})"), vocabulary, shared);
  for (int i = 0; i < 200; ++i) check_answer(Json(true), force(masks, rng, rng.below(300), 20000));
}

TEST_CASE("grammar: a recursive schema can always be completed") {
  Rng rng(seed());
  INFO("seed " << seed());
  const Json schema = *Json::parse(R"({"$ref":"#/$defs/tree","$defs":{"tree":{"type":"object","properties":{
    "value":{"type":"integer"},"left":{"anyOf":[{"$ref":"#/$defs/tree"},{"type":"null"}]},
    "right":{"type":"array","items":{"$ref":"#/$defs/tree"}}},
    "required":["value","left","right"],"additionalProperties":false}}})");
  const Vocabulary vocabulary = piece_vocabulary();
  MaskStore shared;
  Masks masks(compiled(Json::object({{"schema", schema}}).dump()), vocabulary, shared);
  for (int i = 0; i < 200; ++i) {
    const Forced forced = force(masks, rng, 200, 100000);
    INFO(forced.text);
    REQUIRE(forced.is_complete);
    CHECK(Json::parse(forced.text).has_value());
  }
}

TEST_CASE("grammar: a mask allows exactly the tokens that the grammar takes") {
  Rng rng(seed());
  INFO("seed " << seed());
  const Vocabulary vocabulary = piece_vocabulary();
  MaskStore shared;
  std::vector<uint64_t> mask((vocabulary.size() + 63) / 64);
  for (int i = 0; i < 60; ++i) {
    const Json schema = random_schema(rng, 0);
    Masks masks(compiled(Json::object({{"schema", schema}}).dump()), vocabulary, shared);
    Matcher matcher(masks);
    INFO(schema.dump());
    std::string text;
    for (int step = 0; step < 40 && !matcher.is_over(); ++step) {
      matcher.fill(mask);
      for (uint32_t id = 0; id < vocabulary.size(); ++id) {
        INFO("after " << text << " token " << vocabulary.text_of(id));
        CHECK(is_allowed(mask, id) == Matcher(matcher).accept(id));
      }
      const auto ids = allowed_ids(mask, vocabulary.size());
      if (ids.empty()) break;
      const uint32_t chosen = ids[rng.below(ids.size())];
      REQUIRE(matcher.accept(chosen));
      text += vocabulary.text_of(chosen);
    }
  }
}

TEST_CASE("grammar: no character is split where the vocabulary cannot complete it") {
  auto texts = piece_texts();
  for (size_t byte = 0x90; byte < 0x98; ++byte) texts[byte] = "";
  const Vocabulary vocabulary = Vocabulary::build(texts, std::vector<bool>(texts.size()));
  REQUIRE_FALSE(vocabulary.may_split_characters());
  MaskStore shared;
  Masks masks(compiled(R"({"json":"value"})"), vocabulary, shared);
  Matcher matcher(masks);
  REQUIRE(matcher.accept('"'));
  std::vector<uint64_t> mask((vocabulary.size() + 63) / 64);
  matcher.fill(mask);
  for (uint32_t id = 0; id < vocabulary.size(); ++id)
    if (is_allowed(mask, id)) CHECK_FALSE(find_invalid_utf8(vocabulary.text_of(id)).has_value());
  const auto whole = std::find(texts.begin(), texts.end(), "\xC3\xA9") - texts.begin();
  CHECK(is_allowed(mask, static_cast<uint32_t>(whole)));
}

TEST_CASE("grammar: a mask of many places costs no more than one walk") {
  // 128 live places in the middle of the string, each of which can go on in two ways.
  std::string pattern = "^(";
  for (int i = 0; i < 128; ++i) pattern += (i == 0 ? "" : "|") + std::string("[a-z]+[0-9]?");
  const Vocabulary vocabulary = piece_vocabulary();
  MaskStore shared;
  Masks masks(compiled(R"({"schema":{"type":"string","pattern":")" + pattern + ")$\"}}"), vocabulary, shared);
  Matcher matcher(masks);
  std::vector<uint64_t> mask((vocabulary.size() + 63) / 64);
  for (const char c : std::string_view("\"ab")) {
    REQUIRE(matcher.accept(static_cast<uint8_t>(c)));
    const uint64_t before = matcher.work();
    matcher.fill(mask);
    CHECK(matcher.work() - before < 2'500'000);
    CHECK(masks.bytes() < 20'000);
    for (uint32_t id = 0; id < vocabulary.size(); ++id)
      if (is_allowed(mask, id)) CHECK(Matcher(matcher).accept(id));
  }
  CHECK(is_allowed(mask, 'c'));
  CHECK(is_allowed(mask, '7'));
}

TEST_CASE("grammar: many names of one schema leave the schema's own way open") {
  Json defs = Json::object({{"b", Json::object({{"type", "string"}})}});
  Json any = Json::array();
  for (int group = 0; group < 5; ++group) {
    Json inner = Json::array();
    for (int i = 0; i < 52; ++i) {
      const std::string name = "a" + std::to_string(52 * group + i);
      defs.set(name, Json::object({{"$ref", "#/$defs/b"}}));
      inner.push(Json::object({{"$ref", "#/$defs/" + name}}));
    }
    any.push(Json::object({{"anyOf", std::move(inner)}}));
  }
  const Json schema = Json::object({{"anyOf", std::move(any)}, {"$defs", std::move(defs)}});
  CHECK(takes(Json::object({{"schema", schema}}).dump(), "\"x\""));
}

TEST_CASE("grammar: a token is not allowed to end a string that needs more characters than it has") {
  auto texts = piece_texts();
  const auto ends = static_cast<uint32_t>(texts.size());
  texts.push_back(std::string(20, 'x') + "\"");
  texts.push_back(std::string(20, 'x'));
  const Vocabulary vocabulary = Vocabulary::build(texts, std::vector<bool>(texts.size()));
  MaskStore shared;
  Masks masks(compiled(R"({"schema":{"type":"string","minLength":100}})"), vocabulary, shared);
  Matcher matcher(masks);
  REQUIRE(matcher.accept('"'));
  std::vector<uint64_t> mask((vocabulary.size() + 63) / 64);
  matcher.fill(mask);
  CHECK_FALSE(is_allowed(mask, ends));
  CHECK(is_allowed(mask, ends + 1));
}

TEST_CASE("grammar: the masks of an answer leave nothing behind in it") {
  const Vocabulary vocabulary = piece_vocabulary();
  MaskStore shared;
  Masks masks(compiled(R"({"json":"value"})"), vocabulary, shared);
  Matcher matcher(masks);
  std::vector<uint64_t> mask((vocabulary.size() + 63) / 64);
  for (const char c : std::string_view(R"([[{"a":[1,{"b":"c"},)")) {
    const size_t frames = matcher.frames();
    matcher.fill(mask);
    CHECK(matcher.frames() == frames);
    REQUIRE(matcher.accept(static_cast<uint8_t>(c)));
  }
}

}  // namespace
}  // namespace mc::grammar::test
