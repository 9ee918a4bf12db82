#include "door/request_reader.h"

#include <algorithm>
#include <ctime>

#include "base/assert.h"
#include "base/errors.h"
#include "base/log.h"
#include "door/answer_grammar.h"

namespace mc::door {
namespace {

/// Most ids that /tokenize gives: as many as /detokenize takes (the values of a JSON body, http/openai.h).
constexpr size_t kTokenizeMax = size_t{1} << 20;

}  // namespace

Result<std::unique_ptr<RequestReader>> RequestReader::open(const FrontendOptions& options) {
  MC_TRY(tokenizer, text::Tokenizer::open_or_ids(options.model_directory));
  if (tokenizer.no_text()) log_warn("no tokenizer", {{"why", tokenizer.no_text()->what}});
  MC_TRY(config, model::read_config(options.model_directory));
  if (options.context_tokens > 0) config.max_positions = options.context_tokens;
  auto chat = text::ChatTemplate::open(tokenizer.config(), options.chat_template);
  if (!chat && options.chat_template != "auto") return std::move(chat).error();
  // Completions work without a template, and chat requests get its error.
  if (!chat) log_warn("chat requests will fail: the model has no chat template", {{"why", chat.error().what}});
  return std::unique_ptr<RequestReader>(
      new RequestReader(options, std::move(tokenizer), std::move(config), std::move(chat)));
}

RequestReader::RequestReader(const FrontendOptions& options, text::Tokenizer tokenizer, model::ModelConfig config,
                             Result<std::unique_ptr<const text::ChatTemplate>> chat)
    : options_(options), tokenizer_(std::move(tokenizer)), config_(std::move(config)) {
  if (chat)
    template_ = std::move(*chat);
  else
    template_error_ = std::move(chat).error();
}

http::ApiLimits RequestReader::api_limits() const {
  http::ApiLimits limits;
  limits.vocab_size = config_.vocab;
  limits.has_min_p = limits.has_penalties = limits.has_logit_bias = true;
  limits.has_tools = template_ && template_->knows_tools();
  return limits;
}

Result<http::GenerateRequest> RequestReader::parse(const http::Request& request, http::Route route) {
  const auto read = route == http::Route::chat_completions ? http::parse_chat
                    : route == http::Route::embeddings     ? http::parse_embedding
                    : route == http::Route::admin          ? http::parse_either
                                                           : http::parse_completion;
  auto parsed = read(request.body, request.headers, api_limits());
  if (parsed) log_ignored(parsed->ignored);
  return parsed;
}

Result<void> RequestReader::check_model(const std::string& name) const {
  if (name.empty() || name == options_.served_name) return {};
  return user_error(err::kModelNotFound,
                    "model " + name + " is not served here; this server has " + options_.served_name, "model");
}

void RequestReader::log_ignored(const std::vector<std::string>& fields) {
  std::lock_guard lock(ignored_mutex_);
  for (const auto& field : fields)
    if (ignored_.size() < 256 && ignored_.insert(field).second) log_info("unknown field ignored", {{"field", field}});
}

Result<std::vector<text::Part>> RequestReader::rendered(http::GenerateRequest& request) const {
  if (!template_) return template_error_;
  std::vector<text::ChatMessage> messages;
  for (auto& m : std::exchange(request.chat.messages, {}))
    messages.push_back({std::move(m.role), std::move(m.content), std::move(m.name), std::move(m.tool_call_id),
                        std::move(m.reasoning_content), std::move(m.tool_calls)});
  text::ChatOptions options;
  options.add_generation_prompt = request.chat.add_generation_prompt;
  options.continue_final_message = request.chat.continue_final_message;
  options.tools = request.chat.tools;
  options.kwargs = request.chat.template_kwargs;
  const std::time_t now = std::time(nullptr);
  localtime_r(&now, &options.now.emplace());
  auto parts = template_->render(messages, options);
  if (!parts) return as_user_error(err::kInvalidField, std::move(parts).error());
  return parts;
}

/// Twice the context: a prompt that is a little too long is answered with its length.
text::EncodeLimits RequestReader::prompt_limits(const http::GenerateRequest& request, text::EncodeLimits limits) const {
  if (!request.truncate_prompt_tokens) limits.tokens_max = size_t{2} * context_tokens();
  return limits;
}

Error RequestReader::encode_error(Error error, const http::GenerateRequest& request, const std::string& field) const {
  if (error.mc != static_cast<int>(err::kContextLength)) return as_user_error(err::kInvalidField, std::move(error));
  return user_error(err::kContextLength,
                    "the " + too_long() + "more than " + std::to_string(size_t{2} * context_tokens()), field);
}

size_t RequestReader::prompt_bytes_max(const http::GenerateRequest& request) const {
  return request.truncate_prompt_tokens ? SIZE_MAX : tokenizer_.text_bytes_max(size_t{2} * context_tokens());
}

Result<std::vector<uint32_t>> RequestReader::prompt_ids(const http::GenerateRequest& request, const std::string& text,
                                                        const text::EncodeLimits& limits, text::Work& work) const {
  if (text.size() > prompt_bytes_max(request))
    return encode_error(user_error(err::kContextLength, ""), request, "prompt");
  auto ids = tokenizer_.encode(
      text, {.add_special = request.add_special_tokens.value_or(true), .limits = limits, .work = &work});
  if (!ids) return encode_error(std::move(ids).error(), request, "prompt");
  return ids;
}

Result<std::vector<std::vector<uint32_t>>> RequestReader::prompts(http::GenerateRequest& request,
                                                                  const text::EncodeLimits& given) const {
  std::vector<std::vector<uint32_t>> out;
  const text::EncodeLimits limits = prompt_limits(request, given);
  if (request.is_chat) {
    size_t bytes = 0;
    for (const auto& message : request.chat.messages) bytes += message.content.size();
    // A template works on four bytes for a character, so what cannot fit is not rendered.
    if (bytes > prompt_bytes_max(request))
      return encode_error(user_error(err::kContextLength, ""), request, "messages");
    MC_TRY(parts, rendered(request));
    request.chat.is_thinking = form().thinks && text::opens_thinking(parts);
    auto ids = tokenizer_.encode(parts, request.add_special_tokens.value_or(false), limits);
    if (!ids) return encode_error(std::move(ids).error(), request, "messages");
    out.push_back(std::move(*ids));
  } else {
    text::Work work(limits);
    for (const auto& prompt : request.prompts) {
      if (prompt.is_ids) {
        out.push_back(prompt.ids);
        continue;
      }
      MC_TRY(ids, prompt_ids(request, prompt.text, limits, work));
      out.push_back(std::move(ids));
    }
  }
  MC_ASSERT_EQ(out.size(), request.is_chat ? size_t{1} : request.prompts.size());
  for (auto& ids : out) {
    if (request.truncate_prompt_tokens && ids.size() > *request.truncate_prompt_tokens)
      ids.erase(ids.begin(), ids.end() - static_cast<std::ptrdiff_t>(*request.truncate_prompt_tokens));
    if (ids.empty()) return user_error(err::kInvalidField, "the prompt has no tokens", "prompt");
  }
  return out;
}

Result<std::vector<uint32_t>> RequestReader::token_ids(http::TokenizeRequest request, text::EncodeLimits limits) const {
  limits.tokens_max = kTokenizeMax;
  Result<std::vector<uint32_t>> ids = std::vector<uint32_t>();
  if (!request.messages.empty()) {
    http::GenerateRequest as;
    as.is_chat = true;
    as.chat.messages = std::move(request.messages);
    as.chat.add_generation_prompt = request.add_generation_prompt;
    MC_TRY(parts, rendered(as));
    ids = tokenizer_.encode(parts, request.add_special_tokens.value_or(false), limits);
  } else if (request.prompt.size() > tokenizer_.text_bytes_max(kTokenizeMax)) {
    ids = user_error(err::kContextLength, "");
  } else {
    ids =
        tokenizer_.encode(request.prompt, {.add_special = request.add_special_tokens.value_or(true), .limits = limits});
  }
  if (ids) return ids;
  if (ids.error().mc == static_cast<int>(err::kContextLength))
    return user_error(err::kContextLength, "the text has more than " + std::to_string(kTokenizeMax) + " tokens",
                      "prompt", "send it in parts");
  return as_user_error(err::kInvalidField, std::move(ids).error());
}

Result<std::string> RequestReader::detokenized(const http::Request& request) const {
  http::ApiLimits limits;
  limits.vocab_size = config_.vocab;
  MC_TRY(parsed, http::parse_detokenize(request.body, limits));
  MC_CHECK(check_model(parsed.model));
  return tokenizer_.decode(parsed.tokens, false);
}

text::AnswerForm RequestReader::form() const {
  return template_ ? template_->form() : text::AnswerForm{};
}

text::AnswerReader RequestReader::answer_reader(const http::GenerateRequest& request) const {
  text::AnswerReader::Options options;
  if (request.is_chat) options.form = form();
  if (request.chat.tools.size() == 0) options.form.calls = text::CallForm::none;
  if (!request.mc.split_reasoning) options.form.thinks = false;
  options.is_thinking = request.chat.is_thinking && options.form.thinks;
  options.tools = tool_names(request.chat.tools);
  return text::AnswerReader(std::move(options));
}

// A node with a small --kv-mem holds less than the model's context.
uint32_t RequestReader::context_tokens() const {
  const uint32_t here = nodes_context_.load(std::memory_order_relaxed);  // a number alone
  return here == 0 ? config_.max_positions : std::min(here, config_.max_positions);
}

/// Clients recognise a context that is too short by words of the message: LangChain by "prompt is too long", LiteLLM by
/// "this model's maximum context length is".
std::string RequestReader::too_long() const {
  const uint32_t context = context_tokens();
  const bool by_nodes = context < config_.max_positions;
  return "prompt is too long: this model's maximum context length is " + std::to_string(context) + " tokens" +
         (by_nodes ? " (the nodes' --kv-mem holds no more of its " + std::to_string(config_.max_positions) + ")" : "") +
         ", and the prompt has ";
}

Result<uint32_t> RequestReader::answer_tokens(const http::GenerateRequest& request, size_t prompt_tokens) const {
  const uint64_t context = context_tokens(), room = prompt_tokens < context ? context - prompt_tokens : 0;
  const auto& wanted = request.sampling.max_tokens;
  // The token after the prompt is drawn even when the client wants none (max_tokens 0), and the Answer drops it: its
  // own place in the context is not needed.
  if (wanted == 0u && prompt_tokens <= context) return 1;
  const uint64_t asked = std::max(1u, wanted.value_or(request.is_chat ? static_cast<uint32_t>(room) : 16u));
  if (room > 0 && asked <= room) return static_cast<uint32_t>(asked);
  return user_error(err::kContextLength,
                    "with an answer of " + std::to_string(asked) + (asked == 1 ? " token" : " tokens") + " the " +
                        too_long() + std::to_string(prompt_tokens),
                    room > 0          ? "max_tokens"
                    : request.is_chat ? "messages"
                                      : "prompt");
}

Result<std::string> RequestReader::grammar(const http::GenerateRequest& request) const {
  MC_TRY(grammar, answer_grammar(request, form()));
  // The nodes read the same folder: none of them could spell the answer.
  if (!grammar.empty() && tokenizer_.no_text())
    return user_error(err::kUnsupportedField,
                      "the model is served by token ids, so its answers have no form: " + tokenizer_.no_text()->what,
                      "response_format");
  return grammar;
}

Result<node::Submit> RequestReader::submit(const http::GenerateRequest& request, const std::vector<uint32_t>& prompt,
                                           const std::string& grammar, const ApiKeys::Grant& grant) const {
  MC_ASSERT(!prompt.empty());
  const auto& s = request.sampling;
  node::Submit out;
  out.ids = prompt;
  // The tenant's salt comes first, with its length: a client's own salt can narrow it, never leave it.
  out.salt = grant.tenant.empty() ? request.cache_salt
                                  : std::to_string(grant.salt.size()) + ":" + grant.salt + request.cache_salt;
  out.tenant = grant.tenant;
  out.priority = request.priority;
  out.session = request.mc.session;
  out.no_cache = request.mc.no_cache;
  out.pin_prefill = request.mc.pin_prefill;
  out.pin_decode = request.mc.pin_decode;
  out.deadline = request.mc.deadline.value_or(options_.deadline);
  out.ttft_slo_s = request.mc.ttft_slo ? to_seconds(*request.mc.ttft_slo) : options_.ttft_slo_s;
  out.tbt_slo_s = request.mc.tbt_slo ? to_seconds(*request.mc.tbt_slo) : options_.tbt_slo_s;
  if (!request.mc.attention.empty()) {
    auto plan = model::resolve_plan(request.mc.attention, config_, options_.block_tokens);
    if (!plan) return user_error(err::kInvalidField, plan.error().what, "mc.attention");
    out.attention = attn::to_string(*plan);
  }
  wire::Sampling& sampling = out.sampling;
  sampling = s.over(options_.generation_defaults ? config_.generation : wire::SamplingChoice{});
  sampling.logit_bias = s.logit_bias;
  sampling.logprobs = s.logprobs.value_or(request.answers() > s.n ? 0 : -1);  // the best are the likeliest
  sampling.embed = request.embeds;
  wire::Stopping& stopping = out.stopping;
  stopping.min_tokens = s.min_tokens;
  stopping.stop_ids = s.stop_token_ids;
  if (!s.ignore_eos) {
    stopping.stop_ids.insert(stopping.stop_ids.end(), config_.special.eos.begin(), config_.special.eos.end());
    if (config_.special.eos.empty() && tokenizer_.eos_id()) stopping.stop_ids.push_back(*tokenizer_.eos_id());
  }
  if (!grammar.empty()) sampling.grammar = grammar, sampling.end_ids = stopping.stop_ids;
  if (!sampling.grammar.empty() && sampling.end_ids.empty())
    return user_error(err::kUnsupportedField, "the model names no token that ends an answer", "response_format");
  MC_TRY(max_tokens, answer_tokens(request, prompt.size()));
  stopping.max_tokens = max_tokens;
  for (uint32_t id : prompt)
    if (id >= config_.vocab)
      return user_error(
          err::kInvalidField,
          "token id " + std::to_string(id) + " is not below the vocabulary's " + std::to_string(config_.vocab),
          "prompt");
  return out;
}

}  // namespace mc::door
