// The grammar of a request: what response_format and tool_choice force its answer into, behind the model's reasoning.
#pragma once

#include <string>
#include <vector>

#include "http/openai.h"
#include "text/text.h"

namespace mc::door {

/// The grammar's text for wire::Sampling::grammar; "" where the answer is free. MC4002: a tool without a usable name.
/// MC4029: a schema that is not supported, with its place.
Result<std::string> answer_grammar(const http::GenerateRequest& request, const text::AnswerForm& form);

/// Whether the grammar is made from a schema of the client, which may cost more than the HTTP thread has time for.
bool has_schema(const http::GenerateRequest& request);

/// The names of the request's tools.
std::vector<std::string> tool_names(const Json& tools);

}  // namespace mc::door
