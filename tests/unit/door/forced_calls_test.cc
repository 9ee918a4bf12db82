// Tool calls that grammars force, read back as the API gives them out.
#include <utility>
#include <vector>

#include "door/answer_grammar.h"
#include "text/text.h"
#include "unit/grammar/forced.h"
#include "unit/grammar/random_schema.h"

namespace mc::door::forced_calls_test {
namespace {

namespace forced = grammar::test;

struct Case {
  Json tools = Json::array();
  bool is_named = false;
  std::string named;  // the tool that must be called
  text::CallForm form = text::CallForm::tagged;
};

Json random_parameters(Rng& rng) {
  for (;;) {
    Json schema = forced::random_schema(rng, 0);
    if (schema["type"].as_string() == "object") return schema;
  }
}

Case random_case(Rng& rng) {
  constexpr text::CallForm kForms[] = {text::CallForm::tagged, text::CallForm::llama, text::CallForm::mistral};
  Case out;
  const uint64_t count = 1 + rng.below(4);
  for (uint64_t i = 0; i < count; ++i) {
    // Names that begin alike, so that a mask must keep both open.
    const std::string name = std::string(1 + rng.below(2), 't') + "-" + std::to_string(i);
    Json function = Json::object({{"name", name}});
    if (rng.below(8) > 0) function.set("parameters", random_parameters(rng));
    out.tools.push(Json::object({{"type", "function"}, {"function", std::move(function)}}));
    if (i == 0 || rng.below(2)) out.named = name;
  }
  out.is_named = rng.below(2) == 0;
  out.form = kForms[rng.below(std::size(kForms))];
  return out;
}

http::GenerateRequest request_of(const Case& one) {
  Json body = Json::object({{"messages", Json::array({Json::object({{"role", "user"}, {"content", "x"}})})}});
  body.set("tools", one.tools);
  const Json function = Json::object({{"name", one.named}});
  body.set("tool_choice",
           one.is_named ? Json::object({{"type", "function"}, {"function", function}}) : Json("required"));
  auto request = http::parse_chat(body.dump(), {}, {.has_tools = true});
  REQUIRE_OK(request);
  return std::move(*request);
}

/// The parts of an answer whose text arrives in pieces of some bytes, cut between characters.
std::vector<text::AnswerPart> parts_of(const std::string& answer, const Case& one, Rng& rng) {
  text::AnswerReader reader({.form = {one.form, false}, .is_thinking = false, .tools = tool_names(one.tools)});
  std::vector<text::AnswerPart> parts;
  for (size_t at = 0; at < answer.size();) {
    size_t end = std::min(answer.size(), at + 1 + rng.below(12));
    while (end < answer.size() && (answer[end] & 0xC0) == 0x80) ++end;
    reader.push(std::string_view(answer).substr(at, end - at), parts);
    at = end;
  }
  reader.flush(parts);
  return parts;
}

const Json& parameters_of(const Case& one, const std::string& name) {
  for (const Json& tool : one.tools.items())
    if (tool["function"]["name"].as_string() == name) return tool["function"]["parameters"];
  FAIL("no tool has the name " << name);
  return one.tools;
}

TEST_CASE("door: 500 random sets of tools force one call that parses and satisfies its tool's schema, in each form") {
  Rng rng(grammar::test::seed());
  INFO("seed " << grammar::test::seed());
  const grammar::Vocabulary vocabulary = forced::piece_vocabulary();
  grammar::MaskStore shared;
  for (int i = 0; i < 500; ++i) {
    const Case one = random_case(rng);
    const auto text = answer_grammar(request_of(one), {one.form, false});
    REQUIRE_OK(text);
    grammar::Masks masks(forced::compiled(*text), vocabulary, shared);
    const auto draw = i % 2 == 0 ? forced::Draw::random : forced::Draw::worst;
    const forced::Forced answer = forced::force(masks, rng, rng.below(60), 5000, draw);
    INFO(one.tools.dump());
    INFO(answer.text);
    REQUIRE(answer.is_complete);
    CHECK_FALSE(find_invalid_utf8(answer.text).has_value());
    const auto parts = parts_of(answer.text, one, rng);
    REQUIRE(parts.size() == 1);
    REQUIRE(parts[0].kind == text::AnswerPart::Kind::call);
    if (one.is_named) CHECK(parts[0].call.name == one.named);
    const auto arguments = Json::parse(parts[0].call.arguments);
    REQUIRE_OK(arguments);
    CHECK(arguments->is_object());
    const Json& parameters = parameters_of(one, parts[0].call.name);
    CHECK((parameters.is_null() || forced::satisfies(parameters, *arguments)));
  }
}

}  // namespace
}  // namespace mc::door::forced_calls_test
