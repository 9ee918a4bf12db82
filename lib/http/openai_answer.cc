// Answers of the OpenAI API. Stream chunks are written as text directly, because every token of every stream makes
// one.
#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <utility>

#include "base/assert.h"
#include "http/openai.h"

namespace mc::http {
namespace {

constexpr size_t kArgumentsPiece = 1024;  // bytes of a call's arguments in one chunk

void append_integer(std::string& out, uint64_t value) {
  out += std::to_string(value);
}

Json ids_json(std::span<const uint32_t> ids) {
  Json::Array list;
  list.reserve(ids.size());
  for (const uint32_t id : ids) list.emplace_back(id);
  return Json(std::move(list));
}

Json bytes_json(std::string_view text) {
  Json::Array list;
  for (const char c : text) list.emplace_back(static_cast<int>(static_cast<uint8_t>(c)));
  return Json(std::move(list));
}

/// The text of a token in log-probabilities. OpenAI writes the bytes of a token that ends inside a character.
std::string token_text(std::string_view token) {
  if (!find_invalid_utf8(token)) return std::string(token);
  static constexpr char kHex[] = "0123456789abcdef";
  std::string out = "bytes:";
  for (const char c : token) {
    out += "\\x";
    out += kHex[static_cast<uint8_t>(c) >> 4];
    out += kHex[static_cast<uint8_t>(c) & 15];
  }
  return out;
}

/// JSON has no -inf; clients expect a number (vLLM's floor).
double floor_logprob(double logprob) {
  return std::isfinite(logprob) ? std::max(logprob, -9999.0) : -9999.0;
}

Json logprob_json(const std::optional<double>& logprob) {
  return logprob ? Json(floor_logprob(*logprob)) : Json();
}

size_t count_characters(std::string_view text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<uint8_t>(c) & 0xC0) != 0x80; }));
}

Json chat_logprobs(std::span<const TokenLogprob> logprobs) {
  const auto entry = [](std::string_view token, const std::optional<double>& logprob) {
    return Json::object(
        {{"token", token_text(token)}, {"logprob", logprob_json(logprob)}, {"bytes", bytes_json(token)}});
  };
  Json::Array content;
  for (const TokenLogprob& item : logprobs) {
    Json::Array top;
    for (const auto& [token, logprob] : item.top) top.push_back(entry(token, logprob));
    content.push_back(entry(item.token, item.logprob));
    content.back().set("top_logprobs", std::move(top));
  }
  return Json::object({{"content", std::move(content)}, {"refusal", nullptr}});
}

/// The older form: parallel lists. `offset` is where the first token's text begins in
/// the answer, in characters.
Json completion_logprobs(std::span<const TokenLogprob> logprobs, size_t& offset) {
  Json::Array tokens, values, tops, offsets;
  for (const TokenLogprob& item : logprobs) {
    tokens.emplace_back(token_text(item.token));
    values.push_back(logprob_json(item.logprob));
    Json top = item.logprob ? Json::object() : Json();
    for (const auto& [token, logprob] : item.top) top.set(token_text(token), floor_logprob(logprob));
    tops.push_back(std::move(top));
    offsets.emplace_back(static_cast<int64_t>(offset));
    if (!item.hidden) offset += count_characters(item.token) - item.lost;
  }
  return Json::object({{"text_offset", std::move(offsets)},
                       {"token_logprobs", std::move(values)},
                       {"tokens", std::move(tokens)},
                       {"top_logprobs", std::move(tops)}});
}

/// vLLM's form: null for the first token, then an object by token id. It is written as text, because a tree of so many
/// small objects takes several times as long on the thread that serves all requests.
void append_prompt_logprobs(std::string& out, const Choice& choice) {
  out += '[';
  std::span<const PromptLogprob> rows;
  if (choice.prompt_logprobs) rows = *choice.prompt_logprobs;
  for (const PromptLogprob& row : rows) {
    if (&row != rows.data()) out += ',';
    if (row.entries.empty()) {
      out += "null";
      continue;
    }
    char mark = '{';
    for (const auto& e : row.entries) {
      out += std::exchange(mark, ',');
      out += '"';
      append_integer(out, e.id);
      out += "\":{\"logprob\":";
      append_json_number(out, floor_logprob(e.logprob));
      out += ",\"rank\":";
      append_integer(out, e.rank);
      out += ",\"decoded_token\":";
      append_json_string(out, token_text(e.token));
      out += '}';
    }
    out += '}';
  }
  out += ']';
}

/// Adds one more member to the object at the end of `out`.
void add_prompt_logprobs(std::string& out, const Choice& choice) {
  MC_ASSERT(out.ends_with('}'));
  out.pop_back();
  out += ",\"prompt_logprobs\":";
  append_prompt_logprobs(out, choice);
  out += '}';
}

Json message_json(const Choice& choice) {
  Json out = Json::object({{"role", "assistant"}, {"content", choice.text}});
  if (!choice.reasoning.empty()) out.set("reasoning_content", choice.reasoning);
  if (choice.tool_calls.empty()) return out;
  if (choice.text.empty()) out.set("content", nullptr);
  Json calls = Json::array();
  for (const CalledTool& call : choice.tool_calls)
    calls.push(Json::object({{"id", call.id},
                             {"type", "function"},
                             {"function", Json::object({{"name", call.name}, {"arguments", call.arguments}})}}));
  out.set("tool_calls", std::move(calls));
  return out;
}

Json choice_json(const GenerateRequest& request, const Choice& choice) {
  Json out = Json::object({{"index", choice.index}});
  size_t offset = 0;
  if (request.is_chat) {
    out.set("message", message_json(choice));
    out.set("logprobs", request.sampling.logprobs ? chat_logprobs(choice.logprobs) : Json());
  } else {
    out.set("text", choice.text);
    out.set("logprobs", request.sampling.logprobs ? completion_logprobs(choice.logprobs, offset) : Json());
  }
  out.set("finish_reason", choice.finish_reason);
  out.set("stop_reason", choice.stop_reason);
  if (request.return_token_ids) {
    out.set("token_ids", ids_json(choice.token_ids));
    if (!request.is_chat) out.set("prompt_token_ids", ids_json(choice.prompt_token_ids));
  }
  return out;
}

Json model_json(const ModelCard& model) {
  return Json::object({{"id", model.id},
                       {"object", "model"},
                       {"created", model.created},
                       {"owned_by", "mooncake"},
                       {"root", model.root},
                       {"parent", nullptr},
                       {"max_model_len", model.max_model_len}});
}

int64_t whole_ms(Duration duration) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(duration).count();
}

}  // namespace

Json usage_json(const Usage& usage) {
  return Json::object({{"prompt_tokens", usage.prompt_tokens},
                       {"completion_tokens", usage.completion_tokens},
                       {"total_tokens", uint64_t{usage.prompt_tokens} + usage.completion_tokens},
                       {"prompt_tokens_details", Json::object({{"cached_tokens", usage.cached_tokens}})},
                       {"completion_tokens_details", Json::object({{"reasoning_tokens", usage.reasoning_tokens}})}});
}

std::string answer_id(bool is_chat, std::string_view request_id) {
  if (request_id.starts_with("req_")) request_id.remove_prefix(4);
  return (is_chat ? "chatcmpl-" : "cmpl-") + std::string(request_id);
}

std::string answer_body(const AnswerHead& head, const GenerateRequest& request, std::span<const Choice> choices,
                        const Usage& usage, const Json& mc) {
  const bool tells_prompt = request.sampling.prompt_logprobs.has_value();
  Json tail = Json::object({{"usage", usage_json(usage)}});
  if (request.is_chat && request.return_token_ids && !choices.empty())
    tail.set("prompt_token_ids", ids_json(choices[0].prompt_token_ids));
  if (!mc.is_null()) tail.set("mc", mc);
  std::string out = Json::object({{"id", head.id},
                                  {"object", request.is_chat ? "chat.completion" : "text_completion"},
                                  {"created", head.created},
                                  {"model", head.model}})
                        .dump();
  out.pop_back();  // more members follow
  out += ",\"choices\":[";
  for (const Choice& choice : choices) {
    if (&choice != choices.data()) out += ',';
    choice_json(request, choice).dump_to(out);
    if (tells_prompt && !request.is_chat) add_prompt_logprobs(out, choice);
  }
  out += "],";
  out.append(tail.dump(), 1);
  if (tells_prompt && request.is_chat && !choices.empty()) add_prompt_logprobs(out, choices[0]);
  return out;
}

namespace {

void append_base64(std::string& out, std::span<const float> values) {
  static constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  static_assert(std::endian::native == std::endian::little);
  const auto bytes = std::as_bytes(values);
  for (size_t i = 0; i < bytes.size(); i += 3) {
    const auto at = [&](size_t k) { return i + k < bytes.size() ? std::to_integer<uint32_t>(bytes[i + k]) : 0u; };
    const uint32_t group = at(0) << 16 | at(1) << 8 | at(2);
    for (size_t k = 0; k < 4; ++k) out += i + k <= bytes.size() ? kDigits[group >> (18 - 6 * k) & 63] : '=';
  }
}

void append_numbers(std::string& out, std::span<const float> values) {
  char digits[32];
  out += '[';
  for (const float& value : values) {
    if (&value != values.data()) out += ',';
    out.append(digits, std::to_chars(digits, digits + sizeof digits, value).ptr);
  }
  out += ']';
}

}  // namespace

std::string embedding_body(const AnswerHead& head, const GenerateRequest& request, std::span<const Choice> choices,
                           const Usage& usage) {
  std::string out = R"({"object":"list","data":[)";
  for (const Choice& choice : choices) {
    if (&choice != choices.data()) out += ',';
    out += R"({"object":"embedding","index":)";
    append_integer(out, static_cast<uint64_t>(choice.index));
    out += R"(,"embedding":)";
    if (request.as_base64) out += '"';
    if (request.as_base64)
      append_base64(out, choice.embedding);
    else
      append_numbers(out, choice.embedding);
    if (request.as_base64) out += '"';
    out += '}';
  }
  out += R"(],"model":)";
  append_json_string(out, head.model);
  const Json told = Json::object({{"prompt_tokens", usage.prompt_tokens}, {"total_tokens", usage.prompt_tokens}});
  return out + R"(,"usage":)" + told.dump() + "}";
}

StreamWriter::StreamWriter(const AnswerHead& head, const GenerateRequest& request)
    : is_chat_(request.is_chat),
      include_usage_(request.include_usage),
      continuous_usage_(request.continuous_usage),
      wants_logprobs_(request.sampling.logprobs.has_value()) {
  const size_t count = std::max<size_t>(1, request.prompts.size()) * static_cast<size_t>(request.sampling.n);
  role_sent_.resize(count);
  text_offset_.resize(count);
  prefix_ = "data: {\"id\":";
  append_json_string(prefix_, head.id);
  prefix_ +=
      is_chat_ ? ",\"object\":\"chat.completion.chunk\",\"created\":" : ",\"object\":\"text_completion\",\"created\":";
  prefix_ += std::to_string(head.created);
  prefix_ += ",\"model\":";
  append_json_string(prefix_, head.model);
  prefix_ += ",\"choices\":[";
}

void StreamWriter::open_chunk(std::string& out, int index) const {
  out += prefix_;
  out += "{\"index\":";
  append_integer(out, static_cast<uint64_t>(index));
}

void StreamWriter::close_chunk(std::string& out, const Usage& so_far) const {
  out += "}]";
  if (continuous_usage_) {
    out += ",\"usage\":";
    usage_json(so_far).dump_to(out);
  } else if (include_usage_) {
    out += ",\"usage\":null";
  }
  out += "}\n\n";
}

void StreamWriter::append_role(std::string& out, int index, const Usage& so_far) {
  const size_t at = static_cast<size_t>(index);
  MC_ASSERT_LT(at, role_sent_.size());
  if (!is_chat_ || role_sent_[at]) return;
  role_sent_[at] = true;
  open_chunk(out, index);
  out += ",\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,\"finish_reason\":null";
  close_chunk(out, so_far);
}

void StreamWriter::append_text(std::string& out, int index, std::string_view text, const Usage& so_far,
                               std::span<const TokenLogprob> logprobs, std::span<const uint32_t> token_ids) {
  append_role(out, index, so_far);
  if (text.empty() && logprobs.empty() && token_ids.empty()) return;
  open_chunk(out, index);
  if (is_chat_) {
    out += ",\"delta\":{\"content\":";
    append_json_string(out, text);
    out += "},\"logprobs\":";
    if (wants_logprobs_ && !logprobs.empty())
      chat_logprobs(logprobs).dump_to(out);
    else
      out += "null";
  } else {
    out += ",\"text\":";
    append_json_string(out, text);
    out += ",\"logprobs\":";
    if (wants_logprobs_ && !logprobs.empty())
      completion_logprobs(logprobs, text_offset_[static_cast<size_t>(index)]).dump_to(out);
    else
      out += "null";
  }
  out += ",\"finish_reason\":null";
  if (!token_ids.empty()) {
    out += ",\"token_ids\":";
    ids_json(token_ids).dump_to(out);
  }
  close_chunk(out, so_far);
}

void StreamWriter::append_delta(std::string& out, int index, std::string_view delta, const Usage& so_far) {
  MC_ASSERT(is_chat_);
  append_role(out, index, so_far);
  open_chunk(out, index);
  out += ",\"delta\":{";
  out += delta;
  out += "},\"logprobs\":null,\"finish_reason\":null";
  close_chunk(out, so_far);
}

void StreamWriter::append_reasoning(std::string& out, int index, std::string_view text, const Usage& so_far) {
  std::string delta = "\"reasoning_content\":";
  append_json_string(delta, text);
  append_delta(out, index, delta, so_far);
}

void StreamWriter::append_call(std::string& out, int index, size_t at, const CalledTool& call, const Usage& so_far) {
  const auto open = [&] { return "\"tool_calls\":[{\"index\":" + std::to_string(at); };
  std::string delta = open() + ",\"id\":";
  append_json_string(delta, call.id);
  delta += ",\"type\":\"function\",\"function\":{\"name\":";
  append_json_string(delta, call.name);
  append_delta(out, index, delta + ",\"arguments\":\"\"}}]", so_far);
  for (std::string_view rest = call.arguments; !rest.empty();) {
    size_t size = std::min(kArgumentsPiece, rest.size());
    while (size < rest.size() && (static_cast<uint8_t>(rest[size]) & 0xC0) == 0x80) ++size;  // whole characters
    delta = open() + ",\"function\":{\"arguments\":";
    append_json_string(delta, rest.substr(0, size));
    append_delta(out, index, delta + "}}]", so_far);
    rest.remove_prefix(size);
  }
}

void StreamWriter::append_finish(std::string& out, int index, std::string_view finish_reason, const Usage& so_far,
                                 const Json& stop_reason) {
  append_role(out, index, so_far);
  open_chunk(out, index);
  out += is_chat_ ? ",\"delta\":{},\"logprobs\":null,\"finish_reason\":"
                  : ",\"text\":\"\",\"logprobs\":null,\"finish_reason\":";
  append_json_string(out, finish_reason);
  out += ",\"stop_reason\":";
  stop_reason.dump_to(out);
  close_chunk(out, so_far);
}

void StreamWriter::append_end(std::string& out, const Usage& usage, const Json& mc) {
  if (include_usage_) {
    out += prefix_;
    out += "],\"usage\":";
    usage_json(usage).dump_to(out);
    if (!mc.is_null()) {
      out += ",\"mc\":";
      mc.dump_to(out);
    }
    out += "}\n\n";
  }
  out += kSseDone;
}

std::string models_body(std::span<const ModelCard> models) {
  Json::Array data;
  for (const ModelCard& model : models) data.push_back(model_json(model));
  return Json::object({{"object", "list"}, {"data", std::move(data)}}).dump();
}

std::string model_body(const ModelCard& model) {
  return model_json(model).dump();
}

// The body is written without a tree, in which each of up to a million values would take 40 bytes.
std::string tokenize_body(std::span<const uint32_t> tokens, uint32_t max_model_len) {
  std::string out = "{\"count\":" + std::to_string(tokens.size()) +
                    ",\"max_model_len\":" + std::to_string(max_model_len) + ",\"tokens\":[";
  out.reserve(out.size() + tokens.size() * 8);
  for (const uint32_t id : tokens) {
    if (out.back() != '[') out += ',';
    out += std::to_string(id);
  }
  return out += "]}";
}

std::string detokenize_body(std::string_view prompt) {
  return Json::object({{"prompt", prompt}}).dump();
}

Response rejection_response(const Rejection& rejection) {
  Response response = error_response(rejection.number, rejection.message);
  const int64_t retry_s = std::max<int64_t>(1, (whole_ms(rejection.retry_after) + 999) / 1000);
  response.headers.push_back({"Retry-After", std::to_string(retry_s)});
  std::string reason(find_error(rejection.number)->openai_code);
  if (!rejection.bound.empty()) reason += "; bound=" + rejection.bound;
  if (rejection.predicted) reason += "; predicted_ms=" + std::to_string(whole_ms(*rejection.predicted));
  if (rejection.allowed) reason += "; allowed_ms=" + std::to_string(whole_ms(*rejection.allowed));
  response.headers.push_back({"x-mc-reason", reason});
  return response;
}

Response json_response(int status, std::string body) {
  return {status, {{"Content-Type", "application/json"}}, std::move(body)};
}

}  // namespace mc::http
