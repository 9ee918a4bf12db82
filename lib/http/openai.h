// The OpenAI shapes as pure functions: request bodies become checked structs, and structs become response bodies and
// stream events. No sockets, no tokenizer. Fields that clients of vLLM send are read too. Three rules:
//   - every number has bounds, every text is valid UTF-8, and an error names its field;
//   - an unsupported feature is refused by name, never silently dropped;
//   - unknown fields are ignored and reported in `ignored`, to be logged once.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/json.h"
#include "base/result.h"
#include "http/message.h"
#include "wire/sampling_choice.h"

namespace mc::http {

/// The bounds and features of this server. A request beyond them is refused with the field's name.
struct ApiLimits {
  uint32_t vocab_size = 0;  // token ids are below it; 0 = not checked here
  int sequences_max = 64;   // prompts x n of one request
  int logprobs_max = 20;
  JsonLimits json{.bytes = size_t{16} << 20, .depth = 32, .values = size_t{1} << 20};
  // Sampling features of the workers. Values that change nothing (penalty 0) are always accepted.
  bool has_min_p = false;
  bool has_penalties = false;
  bool has_logit_bias = false;
  bool has_tools = false;  // the chat template renders tools
};

struct Prompt {
  std::string text;
  std::vector<uint32_t> ids;
  bool is_ids = false;  // the prompt is `ids`, not `text`
};

struct ChatMessage {
  std::string role;     // system developer user assistant tool
  std::string content;  // text parts joined by line feeds
  std::string name;
  std::string tool_call_id;
  std::string reasoning_content;  // the reasoning before this answer
  Json tool_calls;                // array or null
};

/// nullopt: the model's generation_config decides.
struct SamplingFields : wire::SamplingChoice {
  std::optional<int64_t> seed;
  // Completions: 16 if absent. Chat: the rest of the context. 0 with echo only. The caller checks the length of the
  // context (MC4005).
  std::optional<uint32_t> max_tokens;
  uint32_t min_tokens = 0;
  bool ignore_eos = false;
  std::vector<std::string> stop;
  std::vector<uint32_t> stop_token_ids;
  bool include_stop_str_in_output = false;
  bool skip_special_tokens = true;
  std::vector<std::pair<uint32_t, double>> logit_bias;
  std::optional<int> logprobs;         // number of alternatives beside the chosen token; nullopt: no log-probabilities
  std::optional<int> prompt_logprobs;  // number of alternatives for the prompt's tokens
  int n = 1;
};

/// The bound of a request's priority: it is between -kPriorityMax and kPriorityMax. Lower goes first.
inline constexpr int kPriorityMax = 100;

/// The "mc" object and the x-mc-* headers (a header wins).
struct McFields {
  std::optional<Duration> deadline, ttft_slo, tbt_slo;
  std::string pin_prefill, pin_decode;  // node names; empty = free choice
  std::string session;                  // requests of one session prefer the same node
  std::string attention;                // "full", "moba:block=128,top_k=3"; checked by the model
  bool no_cache = false;
  bool explain = false;
  bool split_reasoning = true;  // <think> goes to reasoning_content
};

/// response_format: the form that an answer must have.
struct ResponseFormat {
  enum class Kind : uint8_t { text, json_object, json_schema };
  Kind kind = Kind::text;
  Json schema;          // of json_schema
  bool strict = false;  // keywords that JSON schema lacks are errors
};

/// tool_choice. named: the tool of ChatFields::tool_name.
enum class ToolChoice : uint8_t { automatic, none, required, named };

/// The fields that a chat request has beside those of a completion.
struct ChatFields {
  std::vector<ChatMessage> messages;
  Json tools;  // array or null, for the template
  ToolChoice tool_choice = ToolChoice::automatic;
  std::string tool_name;
  Json template_kwargs;  // object or null
  bool add_generation_prompt = true;
  bool continue_final_message = false;
  bool is_thinking = false;  // the rendered prompt ends with an open <think>; set by the reader of the request
};

/// POST /v1/completions and /v1/chat/completions.
struct GenerateRequest {
  bool is_chat = false;
  std::string model;            // empty: the served model
  std::vector<Prompt> prompts;  // completions
  ChatFields chat;
  ResponseFormat format;
  bool embeds = false;                     // /v1/embeddings: the answer of each prompt is its last hidden state
  bool as_base64 = false;                  // embeddings only
  std::optional<bool> add_special_tokens;  // absent: completions true, chat false
  bool echo = false;
  std::optional<int> best_of;  // answers to draw; the n with the highest mean log-probability a token are returned
  bool return_token_ids = false;
  std::optional<uint32_t> truncate_prompt_tokens;  // number of tokens kept from the end
  std::string cache_salt;
  int priority = 0;
  SamplingFields sampling;
  bool stream = false;
  bool include_usage = false;
  bool continuous_usage = false;
  McFields mc;
  std::vector<std::string> ignored;  // field names, at most 32, safe to log

  /// The number of answers drawn for each prompt.
  int answers() const { return best_of.value_or(sampling.n); }
  /// The number of alternatives for each token of the prompt; nullopt: no log-probabilities of the prompt.
  std::optional<int> wanted_of_prompt() const {
    const std::optional<int>& own = sampling.prompt_logprobs;
    return echo && sampling.logprobs ? std::max(own.value_or(0), *sampling.logprobs) : own;
  }
};

/// Errors carry the field in `where`: MC4001 malformed-json, MC1004 input-not-utf8, MC4002
/// invalid-field, MC4003 unsupported-field. error_response() turns them into the answer.
Result<GenerateRequest> parse_completion(std::string_view body, const Headers& headers, const ApiLimits& limits);
Result<GenerateRequest> parse_chat(std::string_view body, const Headers& headers, const ApiLimits& limits);
/// A chat where the body has messages, and else a completion.
Result<GenerateRequest> parse_either(std::string_view body, const Headers& headers, const ApiLimits& limits);

/// POST /v1/embeddings. Errors as above.
Result<GenerateRequest> parse_embedding(std::string_view body, const Headers& headers, const ApiLimits& limits);

struct TokenizeRequest {
  std::string model;
  std::string prompt;                 // or
  std::vector<ChatMessage> messages;  // not empty: render the template
  bool add_generation_prompt = true;
  std::optional<bool> add_special_tokens;
  std::vector<std::string> ignored;
};
Result<TokenizeRequest> parse_tokenize(std::string_view body, const ApiLimits& limits);

struct DetokenizeRequest {
  std::string model;
  std::vector<uint32_t> tokens;
  std::vector<std::string> ignored;
};
Result<DetokenizeRequest> parse_detokenize(std::string_view body, const ApiLimits& limits);

/// POST /admin/*: {"node": "p1", "role": "decode"}. role may be absent when the verb needs none.
struct AdminRequest {
  std::string node;
  std::string role;
};
/// Refuses (MC4009) a request that a browser sent for a web page, which has an Origin header.
Result<AdminRequest> parse_admin(std::string_view body, const Headers& headers);

// ---- answers ----

struct Usage {
  uint32_t prompt_tokens = 0;
  uint32_t completion_tokens = 0;
  uint32_t cached_tokens = 0;  // cached tokens of the prompt; always reported, even when 0
  uint32_t reasoning_tokens = 0;
};
Json usage_json(const Usage& usage);

struct TokenLogprob {
  std::string token;              // the token's text, which may be part of a character
  std::optional<double> logprob;  // absent for the first token of a prompt, which has no context
  std::vector<std::pair<std::string, double>> top;
  bool hidden = false;  // a special token that the text leaves out
  size_t lost = 0;      // number of characters that the start of a text drops from it (SentencePiece's space)
};

/// A token of the prompt in vLLM's form: by id, with ranks.
struct PromptLogprob {
  struct Entry {
    uint32_t id = 0;
    std::string token;
    double logprob = 0;
    uint32_t rank = 1;
  };
  std::vector<Entry> entries;  // the token itself, then the most likely ones; empty for the first token
};

struct CalledTool {
  std::string id, name;
  std::string arguments;  // JSON text
};

struct Choice {
  int index = 0;
  std::string text;
  std::string reasoning;  // chat only, like the calls
  std::vector<CalledTool> tool_calls;
  std::string finish_reason;           // stop length tool_calls abort
  Json stop_reason;                    // the stop string or token id that matched, else null
  std::vector<TokenLogprob> logprobs;  // empty unless asked for
  std::vector<uint32_t> token_ids;     // if return_token_ids
  std::vector<float> embedding;        // of length 1; /v1/embeddings only
  std::vector<uint32_t> prompt_token_ids;
  /// One entry for each token of the prompt when the request asks for them. All choices of the prompt share them.
  std::shared_ptr<const std::vector<PromptLogprob>> prompt_logprobs;
};

/// The fields that all chunks and the final object of one answer share.
struct AnswerHead {
  std::string id;       // answer_id()
  int64_t created = 0;  // Unix seconds
  std::string model;
  bool is_chat = false;
};
/// "cmpl-..." or "chatcmpl-..." for a request id "req_...".
std::string answer_id(bool is_chat, std::string_view request_id);

/// The body of an answer without streaming. `mc`, unless null, is added under "mc".
std::string answer_body(const AnswerHead& head, const GenerateRequest& request, std::span<const Choice> choices,
                        const Usage& usage, const Json& mc = {});

/// The body of an answer of /v1/embeddings: one vector for each choice, as numbers or as base64 of f32 little-endian.
std::string embedding_body(const AnswerHead& head, const GenerateRequest& request, std::span<const Choice> choices,
                           const Usage& usage);

/// Writes the events of one streamed answer, framed (`data: ...` and a blank line), for Responder::send. It keeps the
/// order that clients rely on. Each choice begins with the role chunk, together with the first token and never before
/// it. Then comes text, then the empty chunk with finish_reason.
class StreamWriter {
 public:
  StreamWriter(const AnswerHead& head, const GenerateRequest& request);

  /// Appends the text of one or more tokens. `text` may be empty while a character or a stop string is held back; then
  /// only the role chunk is due. `so_far` is written if the client asked for continuous usage.
  void append_text(std::string& out, int index, std::string_view text, const Usage& so_far,
                   std::span<const TokenLogprob> logprobs = {}, std::span<const uint32_t> token_ids = {});
  void append_reasoning(std::string& out, int index, std::string_view text, const Usage& so_far);
  /// Appends a complete call: a chunk with its id and name, then its arguments in pieces. `at` counts the choice's
  /// calls from 0.
  void append_call(std::string& out, int index, size_t at, const CalledTool& call, const Usage& so_far);
  void append_finish(std::string& out, int index, std::string_view finish_reason, const Usage& so_far,
                     const Json& stop_reason = {});
  /// Appends the end of the stream, after the last choice: the usage chunk if asked for, then [DONE]. `mc` goes into
  /// the usage chunk.
  void append_end(std::string& out, const Usage& usage, const Json& mc = {});

 private:
  void open_chunk(std::string& out, int index) const;
  void close_chunk(std::string& out, const Usage& so_far) const;
  void append_role(std::string& out, int index, const Usage& so_far);
  void append_delta(std::string& out, int index, std::string_view delta, const Usage& so_far);

  bool is_chat_;
  bool include_usage_;
  bool continuous_usage_;
  bool wants_logprobs_;
  std::string prefix_;               // the part of a chunk before "choices"
  std::vector<bool> role_sent_;      // by choice
  std::vector<size_t> text_offset_;  // by choice, for logprobs of completions
};

struct ModelCard {
  std::string id;
  std::string root;  // path or the id
  int64_t created = 0;
  uint32_t max_model_len = 0;
};
std::string models_body(std::span<const ModelCard> models);
std::string model_body(const ModelCard& model);
std::string tokenize_body(std::span<const uint32_t> tokens, uint32_t max_model_len);
std::string detokenize_body(std::string_view prompt);

/// A refusal (429 or 503) before any work on the request: Retry-After (whole seconds, at least 1) and x-mc-reason
/// "<code>; bound=ttft; predicted_ms=2184; allowed_ms=2000".
struct Rejection {
  err::Number number = err::kQueueFull;
  std::string message;
  std::string bound;  // the bound that the prediction breaks; "": another reason
  std::optional<Duration> predicted, allowed;
  Duration retry_after = 1s;
};
Response rejection_response(const Rejection& rejection);

/// A JSON answer.
Response json_response(int status, std::string body);

}  // namespace mc::http
