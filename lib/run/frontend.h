// The conductor's front door: HTTP requests to Submit events and replies back to HTTP. Small bodies are parsed and
// tokenised on the HTTP thread, larger ones and those that turn out costly on the door's pool; everything that touches
// the machine runs on the control loop.
//
//   HTTP thread, or pool   parse body -> tokenise -> Job --post-->  control loop   Submit each choice
//   HTTP thread            Responder <------------------ Answer <----------------  Reply
//
// A request's deadline counts from its first byte, through all of these.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "base/metrics.h"
#include "http/route.h"
#include "http/server.h"
#include "model/config.h"
#include "node/conductor.h"
#include "run/answer.h"
#include "run/api_access.h"
#include "run/conductor_metrics.h"
#include "run/door_pool.h"
#include "run/loop.h"
#include "run/request_records.h"
#include "text/text.h"

namespace mc::run {

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

class Frontend {
 public:
  /// Reads tokenizer, template and config; no weights. The conductor and metrics outlive it.
  static Result<std::unique_ptr<Frontend>> open(const FrontendOptions& options, node::Conductor& conductor,
                                                Metrics& metrics);
  /// Once the loop exists; before the HTTP server starts.
  void attach(Loop& loop, const Heartbeat& heartbeat) {
    loop_ = &loop;
    heartbeat_ = &heartbeat;
  }
  http::Server::Handler handler();
  /// The refusal of a request that lacks its key or asks for no path there is; for ServerOptions::refuse_head.
  std::optional<http::Response> refuse_head(const http::Request& head) const { return access_.refuse_head(head); }
  /// Any thread. null: everybody may call, as the default tenant.
  void set_keys(std::shared_ptr<const ApiKeys> keys) { access_.set_keys(std::move(keys)); }

  // ---- control loop's thread ----
  void on_reply(const node::Reply& reply);
  void update_metrics(const http::ServerStats& http) { metrics_.update(conductor_, http); }
  /// Longest prompt and answer that the nodes hold together; 0 = there are none. It bounds requests from now on.
  void set_nodes_context(uint32_t tokens) { nodes_context_.store(tokens, std::memory_order_relaxed); }
  size_t answers_under_way() const { return answers_.size(); }
  void start_draining() { draining_ = true; }
  /// Every client still waiting gets an error; used when the process stops. No more work is done.
  void fail_all();

 private:
  /// A request that costs before it is placed, on its way to an answer.
  struct Call {
    http::Request request;
    http::Responder out;
    ApiKeys::Grant grant;
    http::Route route = http::Route::completions;
    TimePoint complete{};        // when its last byte was there
    DoorPool::TicketPtr ticket;  // null on the HTTP thread
    bool is_costly = false;      // the HTTP thread gave it up without an answer, and the pool starts it again

    void respond(http::Response response) const {
      if (!ticket || ticket->settle()) out.respond(std::move(response));
    }
    /// Whether the call was given up with this error because it takes the HTTP thread too long.
    bool moves_to_pool(const Error& error) { return is_costly = !ticket && error.code == Code::timeout; }
    /// The body was parsed. The pool may have to parse what the HTTP thread gives up.
    void drop_body() {
      if (ticket) request.body = {};
    }
    /// Nobody waits for the answer.
    bool is_over() const { return (ticket && ticket->is_settled()) || !out.is_open(); }
  };
  struct Job {  // what the HTTP thread hands to the loop
    std::shared_ptr<Answer> answer;
    std::vector<node::Submit> submits;
    std::string client_id;
    TimePoint received{}, complete{};  // first and last byte of the request
    Duration deadline{};
  };
  Frontend(FrontendOptions options, node::Conductor& conductor, Metrics& metrics, text::Tokenizer tokenizer,
           model::ModelConfig config);
  void handle(http::Request request, http::Responder out);
  // frontend_work.cc
  void take(Call call);
  void put_in_pool(std::shared_ptr<Call> call);
  void run(Call& call);
  void run_inline(const std::shared_ptr<Call>& call);
  void run_alone(Call& call);
  static http::Response late(TimePoint received, TimePoint complete, Duration deadline);
  static text::EncodeLimits call_limits(const Call& call);
  text::EncodeLimits encode_limits(const http::GenerateRequest& request, const Call& call) const;
  Error encode_error(Error error, const http::GenerateRequest& request, const std::string& field) const;
  /// False: its deadline has passed, which is its answer. The pool watches it from now on.
  bool set_deadline(const Call& call, Duration deadline);
  void tokenize(Call& call) const;
  void detokenize(Call& call) const;

  void generate(Call& call);
  Result<std::vector<std::vector<uint32_t>>> prompts_of(http::GenerateRequest& request, const Call& call) const;
  /// Takes the messages: their text may be large.
  Result<std::vector<text::Part>> rendered(http::GenerateRequest& request) const;
  /// No text of more bytes has as few tokens as a prompt may have.
  size_t prompt_bytes_max(const http::GenerateRequest& request) const;
  Result<std::vector<uint32_t>> prompt_ids(const http::GenerateRequest& request, const std::string& text,
                                           const text::EncodeLimits& limits, text::Work& work) const;
  Result<node::Submit> submit_for(const http::GenerateRequest& request, const std::vector<uint32_t>& prompt,
                                  const ApiKeys::Grant& grant) const;
  uint32_t context_tokens() const;
  /// Most tokens to generate, or why prompt and answer do not fit.
  Result<uint32_t> answer_tokens(const http::GenerateRequest& request, size_t prompt_tokens) const;
  Result<void> check_model(const std::string& name) const;
  void start(const std::shared_ptr<Job>& job);
  template <class Work>
  bool grow(Answer& answer, Work work);
  void admin(const http::Request& request, const std::string& verb, http::Responder out);
  void explain(Call& call);
  void request_record(const std::string& id, http::Responder out);
  void log_ignored(const std::vector<std::string>& fields);

  FrontendOptions options_;
  node::Conductor& conductor_;
  ConductorMetrics metrics_;
  ApiAccess access_;
  text::Tokenizer tokenizer_;
  model::ModelConfig config_;
  std::unique_ptr<const text::ChatTemplate> template_;
  Error template_error_;  // why template_ is null
  Loop* loop_ = nullptr;
  const Heartbeat* heartbeat_ = nullptr;
  int64_t started_unix_ = 0;
  bool draining_ = false;

  std::map<RequestId, std::shared_ptr<Answer>> answers_;  // loop thread only, like records_
  RequestRecords records_;
  std::atomic<uint32_t> nodes_context_{0};  // written by the loop's thread
  std::mutex ignored_mutex_;
  std::set<std::string> ignored_;   // fields already logged; guarded
  std::unique_ptr<DoorPool> pool_;  // last: its threads use what stands above
};

}  // namespace mc::run
