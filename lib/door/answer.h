// One client answer under way: the choices of a request (prompts x n), their text as tokens arrive, and
// how they are written, streamed or whole. Lives on the control loop's thread; knows HTTP only through
// its Responder, and the cluster not at all.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "http/openai.h"
#include "http/server.h"
#include "node/node.h"
#include "text/text.h"

namespace mc::door {

/// The user-visible error behind a reply's code.
Error reply_error(const node::Reply& reply);
/// 429 and 503 with numbers, or the plain error.
http::Response reply_response(const node::Reply& reply);

/// Bounds what is told of the prompts: `prompts` of one request, each times the answers drawn of it. The answer is
/// put together on the control loop's thread, and of a stream all the prompt's events are queued at once. invalid:
/// MC4002 naming the numbers.
Result<void> check_prompt_logprobs(const http::GenerateRequest& request,
                                   std::span<const std::vector<uint32_t>> prompts);

class Answer {
 public:
  /// `tokenizer` outlives it. `reader` reads each choice of a chat.
  Answer(http::GenerateRequest request, http::AnswerHead head, http::Responder out, const text::Tokenizer& tokenizer,
         text::AnswerReader reader = text::AnswerReader({}));

  /// Adds a choice for the prompt; the request id `req` will name it. invalid: bad stop strings.
  Result<void> add_choice(const RequestId& req, std::vector<uint32_t> prompt);

  /// A token of a choice. True when a stop string ended it: the cluster must be told.
  bool on_token(const RequestId& req, const node::Reply& reply);
  /// The choice's last reply. True when the whole answer is complete (and has been written).
  bool on_end(const RequestId& req, const node::Reply& reply);
  /// Sends the head of a stream and a ping before the first token, so that the client and its proxies see a live
  /// connection. An error that follows is an event of the stream. A whole answer has no head yet and sends nothing.
  void begin_stream();
  /// An exception said that there is no memory for it: it becomes an error.
  void out_of_memory();
  /// Ids of choices that still run.
  std::vector<RequestId> unfinished() const;
  /// An error was the answer already.
  bool failed() const { return failed_; }
  const http::Responder& out() const { return out_; }
  http::Usage usage() const;
  const node::RequestSummary& summary() const { return summary_; }
  /// Most tokens any choice has so far.
  uint32_t longest_choice() const;
  /// max_tokens 0: the one token that is drawn is not told and not counted.
  bool is_prompt_alone() const { return request_.sampling.max_tokens == 0u; }
  /// Whether the choice, by its place among all, is the one that asks for its prompt's log-probabilities: the others
  /// of the prompt share them, and in a stream wait for them.
  bool asks_for_prompt(size_t choice) const;

 private:
  struct Choice {
    RequestId req;
    std::vector<uint32_t> prompt;
    text::Detokenizer detokenizer;
    text::StopMatcher stops;
    text::AnswerReader reader;
    http::Choice out;                                                         // of a whole answer
    std::shared_ptr<const std::vector<wire::PromptLogprob>> prompt_logprobs;  // of tokens 1, 2, ...; shared
    struct Piece {
      std::string text;
      std::vector<http::TokenLogprob> logprobs;
      std::vector<uint32_t> ids;
    };
    std::optional<Piece> waiting;  // of a stream: what follows the prompt while its log-probabilities are not there
    uint32_t tokens = 0;
    uint32_t reasoning_tokens = 0;
    uint32_t last_token = 0;
    double logprob_sum = 0;  // of its tokens
    bool echoed = false;
    bool stopped = false;  // by a stop string
    bool ended = false;
  };

  Choice* find(const RequestId& req);
  bool is_hidden(uint32_t token) const { return request_.sampling.skip_special_tokens && tokenizer_.is_special(token); }
  http::TokenLogprob logprob_of(uint32_t token, double logprob, std::span<const std::pair<uint32_t, double>> top) const;
  bool take_prompt_logprobs(Choice& choice, std::vector<wire::PromptLogprob> rows);
  bool take_embedding(Choice& choice, std::span<const uint8_t> bytes);
  void share_prompt_logprobs(Choice& choice, std::vector<wire::PromptLogprob> rows);
  std::vector<http::TokenLogprob> echoed_logprobs(const Choice& choice) const;
  void echo(Choice& choice);
  bool waits(const Choice& choice) const { return request_.wanted_of_prompt() && !choice.prompt_logprobs; }
  std::string fresh_text(Choice& choice, uint32_t token);
  void emit(Choice& choice, std::string text, const node::Reply* reply);
  void emit_parts(Choice& choice, const std::vector<text::AnswerPart>& parts, std::vector<http::TokenLogprob> logprobs,
                  std::span<const uint32_t> ids);
  http::CalledTool called(const text::ToolCall& call) const;
  void send_piece(Choice& choice, const Choice::Piece& piece);
  void send_whole(const std::string& bytes, const char* what);
  void send_finish(Choice& choice);
  void send_waiting(Choice& choice);
  void start_stream();
  std::vector<http::Choice> take_best_choices();
  void finish_choice(Choice& choice, node::Finish finish);
  Json explanation() const;
  void write_whole();
  void fail(const node::Reply& reply);

  http::GenerateRequest request_;
  http::AnswerHead head_;
  http::Responder out_;
  const text::Tokenizer& tokenizer_;
  const text::AnswerReader reader_;
  http::StreamWriter writer_;
  std::vector<Choice> choices_;
  node::RequestSummary summary_;  // of one choice: at its first token, and again at its end
  RequestId summarised_;          // that choice
  bool started_ = false, failed_ = false;
};

}  // namespace mc::door
