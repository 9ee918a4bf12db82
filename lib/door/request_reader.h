// Requests of the HTTP API as work for the cluster: the JSON body becomes token ids by the model's chat template and
// tokenizer, and a submit by the model's limits and defaults. Any thread; nothing here waits.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "door/api_keys.h"
#include "http/openai.h"
#include "http/route.h"
#include "model/config.h"
#include "node/node.h"
#include "text/text.h"

namespace mc::door {

struct FrontendOptions {
  std::string model_directory;
  std::string served_name;
  std::string chat_template = "auto";
  uint32_t block_tokens = 64;
  uint32_t context_tokens = 0;  // in place of the model's; 0 = the model's
  Duration deadline = std::chrono::minutes(10);
  double ttft_slo_s = 0, tbt_slo_s = 0;  // 0 = none
  uint64_t seed = 0;                     // of requests that bring none
  bool generation_defaults = true;       // sampling defaults of generation_config.json
  const PageLock* lock = nullptr;        // of the operators' pages; outlives the frontend
  bool on_loopback = true;               // then /metrics needs no key while there are no tenants
};

class RequestReader {
 public:
  /// Reads tokenizer, template and config; no weights.
  static Result<std::unique_ptr<RequestReader>> open(const FrontendOptions& options);

  const text::Tokenizer& tokenizer() const { return tokenizer_; }
  /// Longest prompt and answer that the nodes hold together; 0 = there are no nodes. It bounds requests from now on.
  void set_nodes_context(uint32_t tokens) { nodes_context_.store(tokens, std::memory_order_relaxed); }
  /// Longest prompt and answer that model and nodes allow now.
  uint32_t context_tokens() const;
  Result<void> check_model(const std::string& name) const;

  /// Parses a completion, chat or embedding request, and logs each unknown field the first time that a client sends it.
  /// The body of explain, an admin route, is a completion or a chat.
  Result<http::GenerateRequest> parse(const http::Request& request, http::Route route);
  /// The token ids of each prompt. Takes the messages: their text may be large. Code::timeout when the limits' time
  /// is over.
  Result<std::vector<std::vector<uint32_t>>> prompts(http::GenerateRequest& request,
                                                     const text::EncodeLimits& limits) const;
  /// The grammar of each answer of the request, whose prompts were taken; "" where they are free.
  Result<std::string> grammar(const http::GenerateRequest& request) const;
  /// One answer of the prompt as the conductor takes it, without its id and seed.
  Result<node::Submit> submit(const http::GenerateRequest& request, const std::vector<uint32_t>& prompt,
                              const std::string& grammar, const ApiKeys::Grant& grant) const;
  /// Reads one answer of the request, whose prompts were taken.
  text::AnswerReader answer_reader(const http::GenerateRequest& request) const;
  /// The answer to /tokenize; errors as those of prompts().
  Result<std::vector<uint32_t>> token_ids(http::TokenizeRequest request, text::EncodeLimits limits) const;
  /// The text that /detokenize asks for.
  Result<std::string> detokenized(const http::Request& request) const;

 private:
  RequestReader(const FrontendOptions& options, text::Tokenizer tokenizer, model::ModelConfig config,
                Result<std::unique_ptr<const text::ChatTemplate>> chat);
  http::ApiLimits api_limits() const;
  text::AnswerForm form() const;
  void log_ignored(const std::vector<std::string>& fields);
  text::EncodeLimits prompt_limits(const http::GenerateRequest& request, text::EncodeLimits limits) const;
  Error encode_error(Error error, const http::GenerateRequest& request, const std::string& field) const;
  std::string too_long() const;
  Result<std::vector<text::Part>> rendered(http::GenerateRequest& request) const;
  /// No text of more bytes has as few tokens as a prompt may have.
  size_t prompt_bytes_max(const http::GenerateRequest& request) const;
  Result<std::vector<uint32_t>> prompt_ids(const http::GenerateRequest& request, const std::string& text,
                                           const text::EncodeLimits& limits, text::Work& work) const;
  /// Most tokens to generate, or why prompt and answer do not fit.
  Result<uint32_t> answer_tokens(const http::GenerateRequest& request, size_t prompt_tokens) const;

  const FrontendOptions options_;
  const text::Tokenizer tokenizer_;
  model::ModelConfig config_;
  std::unique_ptr<const text::ChatTemplate> template_;
  Error template_error_;                    // why template_ is null
  std::atomic<uint32_t> nodes_context_{0};  // a number alone, written by the control loop's thread
  std::mutex ignored_mutex_;
  std::set<std::string> ignored_;  // fields that were logged; guarded
};

}  // namespace mc::door
