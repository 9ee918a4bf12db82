#include "door/answer_grammar.h"

#include <algorithm>
#include <cctype>
#include <utility>

#include "base/assert.h"
#include "base/errors.h"
#include "grammar/grammar.h"

namespace mc::door {
namespace {

constexpr size_t kForcedToolsMax = 128, kToolNameBytesMax = 64;

Json literal(std::string_view text) {
  Json out = Json::object();
  out.set("text", text);
  return out;
}

Json sequence(Json::Array parts) {
  Json out = Json::object();
  out.set("seq", Json(std::move(parts)));
  return out;
}

Json choice(Json::Array parts) {
  Json out = Json::object();
  out.set("any", Json(std::move(parts)));
  return out;
}

bool is_tool_name(std::string_view name) {
  return !name.empty() && name.size() <= kToolNameBytesMax &&
         std::all_of(name.begin(), name.end(),
                     [](unsigned char c) { return std::isalnum(c) || c == '_' || c == '-' || c == '.'; });
}

/// A call of one tool in the form that the model's template uses.
Json call_of(const Json& function, text::CallForm form) {
  const Json& parameters = function["parameters"];
  Json arguments = Json::object();
  if (parameters.is_object() && parameters.size() > 0)
    arguments.set("schema", parameters).set("strict", function["strict"].as_bool());
  else
    arguments.set("json", "object");
  std::string front, key = "arguments", back;
  switch (form) {
    case text::CallForm::llama: key = "parameters", back = "}"; break;
    case text::CallForm::mistral: front = std::string(text::kMistralStart) + "[", back = "}]"; break;
    default: front = std::string(text::kTagStart) + "\n", back = "}\n" + std::string(text::kTagEnd);
  }
  Json::Array parts;
  parts.push_back(literal(front + "{\"name\": " + function["name"].dump() + ", \"" + key + "\":"));
  parts.push_back(std::move(arguments));
  parts.push_back(literal(back));
  return sequence(std::move(parts));
}

Result<Json> calls_of(const http::GenerateRequest& request, text::CallForm form) {
  MC_ASSERT(request.chat.tools.size() > 0);  // the reader refuses a forced call without tools
  Json::Array any;
  if (request.chat.tools.size() > kForcedToolsMax)
    return user_error(err::kInvalidField,
                      std::to_string(request.chat.tools.size()) + " tools; at most " + std::to_string(kForcedToolsMax) +
                          " can be forced",
                      "tools");
  for (size_t i = 0; i < request.chat.tools.size(); ++i) {
    const Json& function = request.chat.tools[i]["function"];
    if (!is_tool_name(function["name"].as_string()))
      return user_error(err::kInvalidField, "must be 1 to 64 letters, digits, _, - and .",
                        "tools[" + std::to_string(i) + "].function.name");
    // The arguments of a call are an object, whatever a schema says: another answer would be no call.
    const Json& type = function["parameters"]["type"];
    if (!type.is_null() && type.as_string() != "object")
      return user_error(err::kInvalidField, "must be \"object\"",
                        "tools[" + std::to_string(i) + "].function.parameters.type");
    if (request.chat.tool_choice != http::ToolChoice::named || function["name"].as_string() == request.chat.tool_name)
      any.push_back(call_of(function, form));
  }
  MC_ASSERT(!any.empty());  // a named tool is one of the tools
  return choice(std::move(any));
}

/// The reasoning in front of an answer, which no form binds.
Json behind_reasoning(const Json& grammar, const http::GenerateRequest& request, const text::AnswerForm& form) {
  MC_ASSERT(!grammar.is_null());
  if (!request.is_chat || !form.thinks || !request.mc.split_reasoning) return grammar;
  Json end = Json::object(), blanks = Json::object();
  end.set("until", text::kThinkEnd), blanks.set("blanks", true);
  if (request.chat.is_thinking) return sequence(Json::Array{end, blanks, grammar});
  Json reasoning = sequence(Json::Array{literal(text::kThinkStart), end, blanks});
  return sequence(Json::Array{choice(Json::Array{reasoning, blanks}), grammar});
}

bool is_call(const http::GenerateRequest& request) {
  return request.chat.tool_choice == http::ToolChoice::required || request.chat.tool_choice == http::ToolChoice::named;
}

}  // namespace

bool has_schema(const http::GenerateRequest& request) {
  return is_call(request) || request.format.kind == http::ResponseFormat::Kind::json_schema ||
         (request.format.kind == http::ResponseFormat::Kind::json_object && request.chat.tools.size() > 0);
}

std::vector<std::string> tool_names(const Json& tools) {
  std::vector<std::string> out;
  for (const Json& tool : tools.items()) out.emplace_back(tool["function"]["name"].as_string());
  return out;
}

Result<std::string> answer_grammar(const http::GenerateRequest& request, const text::AnswerForm& form) {
  const bool calls_only = is_call(request);
  Json grammar;
  if (calls_only) {
    MC_TRY(calls, calls_of(request, form.calls));
    grammar = std::move(calls);
  } else if (request.format.kind == http::ResponseFormat::Kind::text) {
    return std::string();
  } else {
    grammar = Json::object();
    if (request.format.kind == http::ResponseFormat::Kind::json_object)
      grammar.set("json", "object");
    else
      grammar.set("schema", request.format.schema).set("strict", request.format.strict);
    if (request.chat.tools.size() > 0) {  // the answer is a document or a call, which the model chooses
      MC_TRY(calls, calls_of(request, form.calls));
      grammar = choice(Json::Array{grammar, calls});
    }
  }
  std::string out = behind_reasoning(grammar, request, form).dump();
  MC_ASSERT(!out.empty());
  auto compiled = grammar::Grammar::compile(out);
  if (compiled) return out;
  Error error = std::move(compiled).error();
  error.where = calls_only ? "tools" : "response_format";
  return error;
}

}  // namespace mc::door
