#include "door/answer_grammar.h"

#include "base/errors.h"
#include "grammar/grammar.h"
#include "test.h"

namespace mc::door::answer_grammar_test {
namespace {

http::GenerateRequest chat(const std::string& fields) {
  auto parsed =
      http::parse_chat(R"({"messages":[{"role":"user","content":"x"}])" + fields + "}", {}, {.has_tools = true});
  REQUIRE_OK(parsed);
  return std::move(*parsed);
}

/// Whether an answer of this text follows the grammar to its end, one token a byte.
bool takes(const std::string& grammar, std::string_view answer) {
  std::vector<std::string> bytes;
  for (int byte = 0; byte < 256; ++byte) bytes.emplace_back(1, static_cast<char>(byte));
  const auto vocabulary = grammar::Vocabulary::build(bytes, std::vector<bool>(bytes.size()));
  const auto compiled = grammar::Grammar::compile(grammar);
  REQUIRE_OK(compiled);
  grammar::MaskStore shared;
  grammar::Masks masks(*compiled, vocabulary, shared);
  grammar::Matcher matcher(masks);
  for (const char c : answer)
    if (!matcher.accept(static_cast<uint8_t>(c))) return false;
  return matcher.is_complete();
}

constexpr const char* kTools =
    R"(,"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":
    {"x":{"type":"integer"}},"required":["x"]}}},{"type":"function","function":{"name":"g"}}])";
const text::AnswerForm kTagged{text::CallForm::tagged, false}, kThinks{text::CallForm::tagged, true};

TEST_CASE("door: an answer without a form is free") {
  const auto grammar = answer_grammar(chat(kTools), kTagged);
  REQUIRE_OK(grammar);
  CHECK(grammar->empty());
}

TEST_CASE("door: required and named calls are forced in the form of the template") {
  const std::string required = std::string(kTools) + R"(,"tool_choice":"required")";
  const auto tagged = answer_grammar(chat(required), kTagged);
  REQUIRE_OK(tagged);
  CHECK(takes(*tagged, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n</tool_call>"));
  CHECK(takes(*tagged, "<tool_call>\n{\"name\": \"g\", \"arguments\": {\"any\": [1]}}\n</tool_call>"));
  CHECK_FALSE(takes(*tagged, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": \"1\"}}\n</tool_call>"));
  CHECK_FALSE(takes(*tagged, "No call."));
  const auto llama = answer_grammar(chat(required), {text::CallForm::llama, false});
  REQUIRE_OK(llama);
  CHECK(takes(*llama, "{\"name\": \"f\", \"parameters\": {\"x\": 1}}"));
  const auto mistral = answer_grammar(chat(required), {text::CallForm::mistral, false});
  REQUIRE_OK(mistral);
  CHECK(takes(*mistral, "[TOOL_CALLS][{\"name\": \"g\", \"arguments\": {}}]"));
  const auto named = answer_grammar(
      chat(std::string(kTools) + R"(,"tool_choice":{"type":"function","function":{"name":"g"}})"), kTagged);
  REQUIRE_OK(named);
  CHECK(takes(*named, "<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>"));
  CHECK_FALSE(takes(*named, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n</tool_call>"));
}

TEST_CASE("door: the form binds what follows the reasoning") {
  http::GenerateRequest request = chat(R"(,"response_format":{"type":"json_object"})");
  const auto may_think = answer_grammar(request, kThinks);
  REQUIRE_OK(may_think);
  CHECK(takes(*may_think, "<think>a {</think>\n\n{}"));
  CHECK(takes(*may_think, "{}"));
  CHECK_FALSE(takes(*may_think, "<think>a"));
  request.chat.is_thinking = true;
  const auto thinks = answer_grammar(request, kThinks);
  REQUIRE_OK(thinks);
  CHECK(takes(*thinks, "a {</think>{\"b\":1}"));
  CHECK_FALSE(takes(*thinks, "{}"));
  request.mc.split_reasoning = false;
  const auto whole = answer_grammar(request, kThinks);
  REQUIRE_OK(whole);
  CHECK(takes(*whole, "{}"));
}

TEST_CASE("door: a schema that is not supported names its field and place") {
  const auto refused = answer_grammar(
      chat(R"(,"response_format":{"type":"json_schema","json_schema":{"schema":{"type":"array","items":{"not":{}}}}})"),
      kTagged);
  REQUIRE_FALSE(refused.has_value());
  CHECK(refused.error().mc == err::kSchemaUnsupported);
  CHECK(refused.error().where == "response_format");
  CHECK(refused.error().what.find("#/items/not") != std::string::npos);
  const auto nameless = answer_grammar(
      chat(R"(,"tools":[{"type":"function","function":{"name":"a b"}}],"tool_choice":"required")"), kTagged);
  REQUIRE_FALSE(nameless.has_value());
  CHECK(nameless.error().where == "tools[0].function.name");
}

TEST_CASE("door: a call whose arguments are no object is refused") {
  for (const char* type : {R"("string")", R"(["object","null"])"}) {
    const auto refused = answer_grammar(
        chat(std::string(R"(,"tools":[{"type":"function","function":{"name":"f","parameters":{"type":)") + type +
             R"(}}}],"tool_choice":"required")"),
        kTagged);
    REQUIRE_FALSE(refused.has_value());
    CHECK(refused.error().mc == err::kInvalidField);
    CHECK(refused.error().where == "tools[0].function.parameters.type");
  }
}

TEST_CASE("door: a grammar with a schema of the client is told from one without") {
  const std::string call = R"(,"tool_choice":"required")", json = R"(,"response_format":{"type":"json_object"})";
  CHECK_FALSE(has_schema(chat("")));
  CHECK_FALSE(has_schema(chat(kTools)));
  CHECK_FALSE(has_schema(chat(json)));
  CHECK(has_schema(chat(kTools + json)));
  CHECK(has_schema(chat(kTools + call)));
  CHECK(has_schema(chat(R"(,"response_format":{"type":"json_schema","json_schema":{"schema":{"type":"array"}}})")));
}

}  // namespace
}  // namespace mc::door::answer_grammar_test
