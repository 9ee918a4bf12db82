#include "forced.h"

#include <algorithm>

#include "base/json.h"
#include "random_schema.h"

namespace mc::grammar::test {
namespace {

void check_answer(const Json& schema, const Forced& forced) {
  INFO(schema.dump());
  INFO(forced.text);
  CHECK_FALSE(find_invalid_utf8(forced.text).has_value());
  REQUIRE(forced.is_complete);
  const auto value = Json::parse(forced.text);
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
    check_answer(schema, force(masks, rng, 30, 5000, Draw::worst));
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

TEST_CASE("grammar: a token that holds a repeated key, or the end of one, is not allowed") {
  const std::string any = R"({"json":"object"})";
  auto texts = piece_texts();
  const auto id_of = [&](const std::string& text) {
    return static_cast<uint32_t>(std::find(texts.begin(), texts.end(), text) - texts.begin());
  };
  for (const char* text :
       {R"(","a":)", R"(","b":)", R"(b":)", R"(0061":)", R"(","c":{"c":1,"c":)", R"(","c":{"c":1,"d":)"})
    texts.emplace_back(text);
  const Vocabulary vocabulary = Vocabulary::build(texts, std::vector<bool>(texts.size()));
  MaskStore shared;
  Masks masks(compiled(any), vocabulary, shared);
  struct Case {
    std::string front, token;
    bool is_allowed;
  };
  for (const Case& one : {Case{R"({"a":"x)", R"(","a":)", false},
                          {R"({"a":"x)", R"(","b":)", true},
                          {R"({"a":"x)", R"(","c":{"c":1,"c":)", false},
                          {R"({"a":"x)", R"(","c":{"c":1,"d":)", true},
                          {R"({"a":{"b":"x)", R"(","a":)", true},
                          {R"({"ab":1,"a)", R"(b":)", false},
                          {R"({"ab":1,"b)", R"(b":)", true},
                          {R"({"a":1,"\u)", R"(0061":)", false},
                          {R"({"ab":1,"\u)", R"(0061":)", true},
                          {R"({"a":1,"a)", "\"", false},
                          {R"({"a":1,"a)", "a", true},
                          {R"({"a":1,"aa)", "\"", true}}) {
    INFO(one.front << " and " << one.token);
    Matcher matcher(masks);
    for (const char c : one.front) REQUIRE(matcher.accept(static_cast<uint8_t>(c)));
    std::vector<uint64_t> mask((vocabulary.size() + 63) / 64);
    matcher.fill(mask);
    CHECK(is_allowed(mask, id_of(one.token)) == one.is_allowed);
    CHECK(matcher.accept(id_of(one.token)) == one.is_allowed);
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
