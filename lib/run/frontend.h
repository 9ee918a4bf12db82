// The conductor's front door: HTTP requests to Submit events and replies back to HTTP. Parsing and
// tokenising run on the HTTP thread; everything that touches the machine runs on the control loop.
//
//   HTTP thread    parse body -> tokenise -> Job --post-->  control loop   Submit each choice
//                  Responder <------------------ Answer <----------------  Reply
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <string>

#include "base/metrics.h"
#include "http/route.h"
#include "http/server.h"
#include "model/config.h"
#include "node/conductor.h"
#include "run/answer.h"
#include "run/api_keys.h"
#include "run/loop.h"
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
  void attach(Loop& loop) { loop_ = &loop; }
  http::Server::Handler handler();
  /// Any thread. null: everybody may call, as the default tenant.
  void set_keys(std::shared_ptr<const ApiKeys> keys);

  // ---- control loop's thread ----
  void on_reply(const node::Reply& reply);
  void update_metrics(const http::ServerStats& http);
  /// Longest prompt and answer that the nodes hold together; 0 = there are none. It bounds requests from now on.
  void set_nodes_context(uint32_t tokens) { nodes_context_.store(tokens, std::memory_order_relaxed); }
  size_t answers_under_way() const { return answers_.size(); }
  void start_draining() { draining_ = true; }
  /// Every client still waiting gets an error; used when the process stops.
  void fail_all();

 private:
  struct Job {  // what the HTTP thread hands to the loop
    std::shared_ptr<Answer> answer;
    std::vector<node::Submit> submits;
    std::string client_id;
  };
  struct Timing {
    TimePoint submitted{}, first = kNever, last{};
    uint32_t prompt_tokens = 0, max_tokens = 0;
    std::string client_id;  // x-request-id
    uint32_t tokens = 0;    // given so far
    std::string tenant;
    int priority = 0;
  };

  Frontend(FrontendOptions options, node::Conductor& conductor, Metrics& metrics, text::Tokenizer tokenizer,
           model::ModelConfig config);
  void handle(http::Request request, http::Responder out);
  void generate(const http::Request& request, http::Responder out, const ApiKeys::Grant& grant, bool chat);
  Result<std::vector<std::vector<uint32_t>>> prompts_of(const http::GenerateRequest& request) const;
  Result<node::Submit> submit_for(const http::GenerateRequest& request, const std::vector<uint32_t>& prompt,
                                  const ApiKeys::Grant& grant) const;
  uint32_t context_tokens() const;
  /// Most tokens to generate, or why prompt and answer do not fit.
  Result<uint32_t> answer_tokens(const http::GenerateRequest& request, size_t prompt_tokens) const;
  /// As whom the request is served; MC4009 or MC4026 when it may not have this route.
  Result<ApiKeys::Grant> grant_for(const http::Request& request, http::Route route) const;
  Result<void> check_model(const std::string& name) const;
  void start(const std::shared_ptr<Job>& job);
  void tokenize(const http::Request& request, const http::Responder& out) const;
  void detokenize(const http::Request& request, const http::Responder& out) const;
  void admin(const http::Request& request, const std::string& verb, http::Responder out, const ApiKeys::Grant& grant);
  void explain(const http::Request& request, http::Responder out, const ApiKeys::Grant& grant);
  Json cluster(TimePoint now) const;
  Json explanation(const node::Conductor::Explanation& e, const node::Submit& submit) const;
  void request_record(const std::string& id, http::Responder out);
  void keep_record(const node::Reply& reply, const Timing& timing, TimePoint now);
  void log_ignored(const std::vector<std::string>& fields);

  FrontendOptions options_;
  node::Conductor& conductor_;
  Metrics& metrics_;
  text::Tokenizer tokenizer_;
  model::ModelConfig config_;
  std::unique_ptr<const text::ChatTemplate> template_;
  Error template_error_;  // why template_ is null
  Loop* loop_ = nullptr;
  int64_t started_unix_ = 0;
  bool draining_ = false;

  std::map<RequestId, std::shared_ptr<Answer>> answers_;  // loop thread only, like timings_
  std::map<RequestId, Timing> timings_;
  std::deque<std::pair<RequestId, Json>> records_;  // of the last kRecordsMax requests that ended
  std::map<std::string, uint64_t> last_;
  std::atomic<uint32_t> nodes_context_{0};  // written by the loop's thread
  mutable std::mutex keys_mutex_;
  std::shared_ptr<const ApiKeys> keys_;  // guarded; what it names does not change
  std::mutex ignored_mutex_;
  std::set<std::string> ignored_;  // fields already logged; guarded
};

}  // namespace mc::run
