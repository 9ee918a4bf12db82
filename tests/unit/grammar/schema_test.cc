#include "grammar/schema.h"

#include <algorithm>
#include <utility>

#include "base/errors.h"
#include "base/json.h"
#include "base/rng.h"
#include "forced.h"
#include "grammar/automaton.h"

namespace mc::grammar::test {
namespace {

std::string schema(const std::string& text, bool strict = false) {
  return "{\"schema\":" + text + (strict ? ",\"strict\":true}" : "}");
}

struct Refused {
  const char* schema;
  const char* place;
};

TEST_CASE("grammar: each refused schema is named by the place of its fault") {
  const Refused cases[] = {
      {R"({"type":"object","properties":{"a":{"type":"integer","multipleOf":3}}})", "#/properties/a/multipleOf"},
      {R"({"oneOf":[{"type":"string"}]})", "#/oneOf"},
      {R"({"type":"number","minimum":1})", "#/minimum"},
      {R"({"type":"string","minLength":5,"maxLength":4})", "#: minLength 5 is above maxLength 4"},
      {R"({"type":"integer","minimum":5,"maximum":4})", "#: no integer lies"},
      {R"({"type":"integer","minimum":1.5})", "#/minimum"},
      {R"({"type":"array","minItems":3,"maxItems":2})", "#: minItems 3"},
      {R"({"type":"object","properties":{},"required":["a"],"additionalProperties":false})", "#/required"},
      {R"({"enum":[]})", "#/enum"},
      {R"({"enum":["a"],"type":"integer"})", "#: no value"},
      {R"({"anyOf":[]})", "#/anyOf"},
      {R"({"$ref":"#/nowhere"})", "#/$ref"},
      {R"({"$ref":"http://example.org/a.json"})", "#/$ref"},
      {R"({"$ref":"#"})", "leads back to itself"},
      {R"({"anyOf":[{"$ref":"#/$defs/a"}],"$defs":{"a":{"anyOf":[{"$ref":"#/$defs/b"}]},"b":{"$ref":"#/$defs/a"}}})",
       "leads back to itself"},
      {R"({"$ref":"#/$defs/a","$defs":{"a":{"type":"object","properties":{"n":{"$ref":"#/$defs/a"}},)"
       R"("required":["n"]}}})",
       "#/$defs/a: no document satisfies it"},
      {R"({"type":"strin"})", "#/type"},
      {R"({"type":"array","items":false,"minItems":1})", "#/items"},
      {R"x({"type":"string","pattern":"(?=a)"})x", "#/pattern"},
      {R"({"type":"string","pattern":"a{5,2}"})", "#/pattern"},
      {R"({"type":"string","pattern":"[z-a]"})", "#/pattern"},
      {R"([1])", "#: a schema is an object, not array"},
      {R"({"type":"object","properties":{"a/b":{"type":"string","const":1}}})", "#/properties/a~1b"},
  };
  for (const Refused& one : cases) {
    INFO(one.schema);
    const auto grammar = Grammar::compile(schema(one.schema));
    REQUIRE_FALSE(grammar.has_value());
    CHECK(grammar.error().mc == err::kSchemaUnsupported);
    INFO(grammar.error().what);
    CHECK(grammar.error().what.find(one.place) != std::string::npos);
  }
}

TEST_CASE("grammar: a keyword that JSON schema lacks is an error only in a strict schema") {
  CHECK(Grammar::compile(schema(R"({"type":"string","x-order":1})")).has_value());
  const auto strict = Grammar::compile(schema(R"({"type":"string","x-order":1})", true));
  REQUIRE_FALSE(strict.has_value());
  CHECK(strict.error().what.find("#/x-order") != std::string::npos);
}

TEST_CASE("grammar: schemas that are nested too deep or refer on too long are refused") {
  std::string deep = R"({"type":"string"})";
  for (int i = 0; i < 14; ++i) deep = R"({"type":"array","items":)" + deep + "}";
  auto grammar = Grammar::compile(schema(deep));
  REQUIRE_FALSE(grammar.has_value());
  CHECK(grammar.error().what.find("nested deeper than 12") != std::string::npos);
  std::string chain = R"({"$ref":"#/$defs/d0","$defs":{)";
  for (int i = 0; i < 40; ++i)
    chain += "\"d" + std::to_string(i) + "\":{\"type\":\"array\",\"items\":{\"$ref\":\"#/$defs/d" +
             std::to_string(i + 1) + "\"}},";
  grammar = Grammar::compile(schema(chain + R"("d40":{"type":"null"}}})"));
  REQUIRE_FALSE(grammar.has_value());
  CHECK(grammar.error().what.find("32 references") != std::string::npos);
}

TEST_CASE("grammar: documents of a schema are taken and others are not") {
  const std::string person = schema(R"({"type":"object","properties":{"name":{"type":"string","maxLength":3},
    "age":{"type":"integer","minimum":0,"maximum":150},"tags":{"type":"array","items":{"enum":["a","b"]},"maxItems":2}},
    "required":["name"],"additionalProperties":false})");
  CHECK(takes(person, R"({"name":"Ada"})"));
  CHECK(takes(person, R"({"name": "Ada", "age": 36})"));
  CHECK(takes(person, "{\n  \"name\": \"\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80\",\n  \"tags\": [\"a\", \"b\"]\n}"));
  CHECK(takes(person, R"({"name":"\u00e9\n\""})"));
  CHECK_FALSE(takes(person, R"({"name":"Adam"})"));
  CHECK_FALSE(takes(person, R"({"age":3})"));
  CHECK_FALSE(takes(person, R"({"name":"Ada","age":151})"));
  CHECK_FALSE(takes(person, R"({"name":"Ada","age":-1})"));
  CHECK_FALSE(takes(person, R"({"name":"Ada","age":01})"));
  CHECK_FALSE(takes(person, R"({"name":"Ada","tags":["a","b","a"]})"));
  CHECK_FALSE(takes(person, R"({"name":"Ada","other":1})"));
  CHECK_FALSE(takes(person, R"({"name":"Ada",})"));
  CHECK_FALSE(takes(person, "{\"name\":\"\xC3\"}"));
  CHECK_FALSE(takes(person, R"({"name":"\ud83d"})"));
}

TEST_CASE("grammar: further members never repeat a listed name") {
  const std::string open = schema(R"({"type":"object","properties":{"ab":{"type":"integer"},"a\u00e9":{"type":"null"}},
    "additionalProperties":{"type":"boolean"}})");
  CHECK(takes(open, R"({"ab":1,"abc":true,"a":false})"));
  CHECK(takes(open, "{\"\xC3\xA9\":true}"));
  CHECK_FALSE(takes(open, R"({"ab":true})"));
  CHECK_FALSE(takes(open, "{\"a\xC3\xA9\":true}"));
  CHECK_FALSE(takes(open, R"({"\u0061b":true})"));
}

TEST_CASE("grammar: a key comes once in an object, however it is written") {
  const std::string any = R"({"json":"object"})";
  const std::string more =
      R"({"schema":{"properties":{"x":{"type":"null"}},"additionalProperties":{"type":"integer"}}})";
  const std::string behind = R"({"seq":[{"until":"</think>"},{"json":"object"}]})";
  const std::string either = R"({"schema":{"anyOf":[{"properties":{"x":{}},"additionalProperties":true},{}]}})";
  for (const char* good : {R"({"a":1,"ab":2,"b":{"a":[{"a":1},{"a":2}]},"":0})", R"({"a":"\",\"a\":","\"":1,"\\":2})"})
    CHECK(takes(any, good));
  for (const char* bad : {R"({"a":1,"a":2})", R"({"":1,"":2})", R"({"a":1,"\u0061":2})", R"({"é":1,"\u00E9":2})",
                          R"({"€":1,"\u20ac":2})", R"({"a\"b":1,"a\u0022b":2})", R"({"a":{"a":1},"b":[],"a":2})",
                          R"([{"a":1,"a":2}])", R"({"\/":1,"/":2})", R"({"\n":1,"\u000a":2})"})
    CHECK_FALSE(takes(R"({"json":"value"})", bad));
  CHECK(takes(more, R"({"x":null,"a":1,"b":2})"));
  CHECK_FALSE(takes(more, R"({"x":null,"a":1,"a":2})"));
  CHECK(takes(either, R"({"x":1,"y":2})"));
  CHECK_FALSE(takes(either, R"({"x":1,"y":2,"y":3})"));
  CHECK_FALSE(takes(either, R"({"y":2,"x":1,"y":3})"));
  CHECK(takes(behind, R"(say {"a":1,"a":2, or "{"a</think>{"a":1,"b":2})"));
  CHECK_FALSE(takes(behind, R"(say {"a":1}</think>{"a":1,"a":2})"));
}

TEST_CASE("grammar: an integer is taken exactly when it lies in its range") {
  Rng rng(seed());
  INFO("seed " << seed());
  for (int round = 0; round < 40; ++round) {
    const int64_t low = static_cast<int64_t>(rng.below(4000)) - 2000;
    const int64_t high = low + static_cast<int64_t>(rng.below(3000));
    const std::string grammar = schema("{\"type\":\"integer\",\"minimum\":" + std::to_string(low) +
                                       ",\"maximum\":" + std::to_string(high) + "}");
    const Vocabulary vocabulary = piece_vocabulary();
    MaskStore shared;
    Masks masks(compiled(grammar), vocabulary, shared);
    for (int64_t value = low - 30; value <= high + 30; value += 1 + static_cast<int64_t>(rng.below(9))) {
      Matcher matcher(masks);
      bool taken = true;
      for (const char c : std::to_string(value)) taken = taken && matcher.accept(static_cast<uint8_t>(c));
      INFO("value " << value << " of " << low << " to " << high);
      CHECK((taken && matcher.is_complete()) == (low <= value && value <= high));
    }
  }
}

TEST_CASE("grammar: patterns match as regular expressions of JSON schema do") {
  const auto pattern = [](const char* text) {
    return "{\"schema\":" + Json::object({{"type", "string"}, {"pattern", text}}).dump() + "}";
  };
  CHECK(takes(pattern("^[A-Z]{2}-\\d+$"), "\"AB-12\""));
  CHECK_FALSE(takes(pattern("^[A-Z]{2}-\\d+$"), "\"ABC-12\""));
  CHECK(takes(pattern("b+c?"), "\"abba\""));
  CHECK_FALSE(takes(pattern("b+c?"), "\"aca\""));
  CHECK(takes(pattern("^(?:a|\"x\")*$"), R"("a\"x\"a")"));
  CHECK(takes(pattern("^.$"), "\"\xE2\x82\xAC\""));
  CHECK_FALSE(takes(pattern("^.$"), "\"ab\""));
  CHECK(takes(pattern("^[^a-z]$"), "\"\xC3\xA9\""));
  CHECK(takes(R"({"schema":{"type":"string","format":"date-time"}})", "\"2024-01-28T10:11:12Z\""));
  CHECK_FALSE(takes(R"({"schema":{"type":"string","format":"uuid"}})", "\"123\""));
}

TEST_CASE("grammar: free text up to a mark is followed by what the grammar asks for") {
  const std::string grammar = R"({"seq":[{"until":"</think>"},{"any":[{"text":"yes"},{"json":"object"}]}]})";
  CHECK(takes(grammar, "</think>yes"));
  CHECK(takes(grammar, "a <</th</think>{}"));
  CHECK(takes(grammar, "\xC3\xA9</think>yes"));
  CHECK_FALSE(takes(grammar, "yes"));
  CHECK_FALSE(takes(grammar, "a</think>no"));
}

TEST_CASE("grammar: free text ends at the first occurrence of a mark that overlaps itself") {
  Rng rng(mc::test::seed());
  INFO("seed " << mc::test::seed());
  const auto random_text = [&](size_t most) {
    std::string out;
    for (size_t size = 1 + rng.below(most); out.size() < size;) out += static_cast<char>('a' + rng.below(2));
    return out;
  };
  for (int round = 0; round < 200; ++round) {
    const std::string mark = random_text(6), text = random_text(16);
    INFO(mark << " in " << text);
    const bool ends_at_mark = text.find(mark) != std::string::npos && text.find(mark) + mark.size() == text.size();
    CHECK(takes("{\"until\":\"" + mark + "\"}", text) == ends_at_mark);
  }
}

TEST_CASE("grammar: a mark of 40000 bytes takes less than 300 bytes of memory for each of its own") {
  for (const char* unit : {"a", "ab\\n", "aab"}) {
    std::string mark;
    while (mark.size() < 40'000) mark += unit;
    const auto grammar = Grammar::compile("{\"until\":\"" + mark + "x\"}");
    REQUIRE_OK(grammar);
    CHECK((*grammar)->bytes() < 300 * mark.size());
  }
  const auto wide = Grammar::compile("{\"until\":\"<\xC3\xA9>\"}");
  REQUIRE_FALSE(wide.has_value());
  CHECK(wide.error().what.find("printable ASCII") != std::string::npos);
}

TEST_CASE("grammar: a vocabulary that lacks a needed byte is named with the byte") {
  auto texts = piece_texts();
  texts['{'] = "";
  const Vocabulary vocabulary = Vocabulary::build(texts, std::vector<bool>(texts.size()));
  const auto checked = vocabulary.check(*compiled(R"({"json":"object"})"));
  REQUIRE_FALSE(checked.has_value());
  CHECK(checked.error().what.find("0x7B") != std::string::npos);
  CHECK(piece_vocabulary().check(*compiled(R"({"json":"object"})")).has_value());
}

TEST_CASE("grammar: a special token is drawn only where the grammar asks for its text") {
  auto texts = piece_texts();
  const auto marker = static_cast<uint32_t>(texts.size());
  texts.emplace_back("[TOOL_CALLS]");
  std::vector<bool> special(texts.size());
  special[marker] = true;
  const Vocabulary vocabulary = Vocabulary::build(texts, special);
  MaskStore shared;
  std::vector<uint64_t> mask((texts.size() + 63) / 64);
  Masks calls(compiled(R"({"seq":[{"text":"[TOOL_CALLS]"},{"json":"value"}]})"), vocabulary, shared);
  Matcher matcher(calls);
  matcher.fill(mask);
  CHECK(is_allowed(mask, marker));
  REQUIRE(matcher.accept(marker));
  matcher.fill(mask);
  CHECK_FALSE(is_allowed(mask, marker));
  Masks json(compiled(R"({"json":"value"})"), vocabulary, shared);
  Matcher text(json);
  REQUIRE(text.accept('"'));
  text.fill(mask);
  CHECK_FALSE(is_allowed(mask, marker));
}

TEST_CASE("grammar: settling looks at each way at most twice") {
  Builder builder;
  const NodeId start = builder.node();
  NodeId at = start;
  for (int i = 0; i < 20'000; ++i) at = builder.text(at, "a");
  builder.returns(at);
  for (int i = 0; i < 20'000; ++i) {  // calls of rules that are finished one after the other
    const NodeId rule = builder.node(), to = builder.node();
    builder.call(rule, at, to);
    builder.text(to, "b", at);
    at = rule;
  }
  CHECK(builder.settle() < 200'000);
  CHECK(builder.levels_of(start) == 0);
  CHECK(builder.levels_of(at) == 20'000);
  CHECK(Grammar::compile(schema(R"({"type":"string","pattern":"^((a){900}){30}$"})")).has_value());
}

// The levels as they are defined: the least that all ways allow.
TEST_CASE("grammar: the levels of nodes are the least") {
  const auto grammar = compiled(schema(R"({"$ref":"#/$defs/t","$defs":{"t":{"type":"object","properties":{
    "a":{"anyOf":[{"$ref":"#/$defs/t"},{"type":"array","items":{"$ref":"#/$defs/u"},"minItems":1}]},
    "b":{"type":"string","maxLength":3}},"required":["a"],"additionalProperties":{"$ref":"#/$defs/u"}},
    "u":{"type":"array","items":{"type":"array","items":{"enum":[1,[2],{"k":3}]},"minItems":2},"minItems":1}}})"));
  const auto& nodes = grammar->automaton().nodes;
  std::vector<uint32_t> levels(nodes.size(), kNever);
  for (bool changed = true; changed;) {
    changed = false;
    for (size_t i = 0; i < nodes.size(); ++i) {
      uint32_t least = nodes[i].returns ? 0 : levels[i];
      for (const ByteEdge& edge : nodes[i].bytes) least = std::min(least, levels[edge.to]);
      for (const Jump& jump : nodes[i].jumps) {
        const bool is_call = jump.kind == Jump::Kind::call, is_last = nodes[jump.to].only_returns();
        if (!is_call || levels[jump.callee] == kNever || levels[jump.to] == kNever)
          least = is_call ? least : std::min(least, levels[jump.to]);
        else
          least = std::min(least, std::max(levels[jump.callee] + !is_last, levels[jump.to]));
      }
      changed = changed || least < levels[i];
      levels[i] = least;
    }
  }
  for (size_t i = 0; i < nodes.size(); ++i) CHECK(nodes[i].levels == levels[i]);
}

TEST_CASE("grammar: long names and many of them are refused, not stored by each of their prefixes") {
  const std::string key(250'000, 'k'), rest = R"("additionalProperties":{"type":"integer"}})";
  std::string many;
  for (int i = 0; i < 200; ++i)
    many += (many.empty() ? "\"" : ",\"") + std::to_string(1000 + i) + std::string(1000, 'k') + "\"";
  const std::pair<std::string, const char*> cases[] = {
      {R"({"type":"object","required":[")" + key + "\"]," + rest, "#/required: a name has at most 1024 bytes"},
      {R"({"type":"object","properties":{")" + key + "\":{}}," + rest, "a name has at most 1024 bytes"},
      {R"({"type":"object","required":[)" + many + "]," + rest, "the schema is too large"}};
  for (const auto& [text, why] : cases) {
    const auto grammar = Grammar::compile(schema(text));
    REQUIRE_FALSE(grammar.has_value());
    CHECK(grammar.error().mc == err::kSchemaUnsupported);
    CHECK(grammar.error().what.find(why) != std::string::npos);
  }
  const std::string two = schema(R"({"type":"object","required":["ab","ac\u00e9"],)" + rest);
  CHECK(takes(two, R"({"ab":1,"acé":2,"ac":3,"a":4,"b":5,"acx":6,"abé":7})"));
  CHECK_FALSE(takes(two, R"({"ab":1,"acé":2,"ab":3})"));
}

TEST_CASE("grammar: a schema with too many alternatives at one place is refused") {
  const auto wide = Grammar::compile(schema(R"({"type":"string","pattern":"^(a?){700}$"})"));
  REQUIRE_FALSE(wide.has_value());
  CHECK(wide.error().mc == err::kSchemaUnsupported);
  CHECK(wide.error().what.find("too many alternatives") != std::string::npos);
  CHECK(takes(schema(R"({"type":"string","pattern":"^(a?){100}$"})"), "\"aaa\""));
}

TEST_CASE("grammar: a class of characters is one edge for each run") {
  Builder builder;
  const NodeId from = builder.node(), to = builder.node();
  builder.returns(to);
  REQUIRE_OK(add_pattern(builder, "^[a-zA-Z0-9_]$", "#", from, to));
  builder.settle();
  const Automaton automaton = builder.take(from);
  size_t most = 0;
  for (size_t i = from; i < automaton.nodes.size(); ++i) most = std::max(most, automaton.nodes[i].bytes.size());
  CHECK(most == 4);
}

}  // namespace
}  // namespace mc::grammar::test
