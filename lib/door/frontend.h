// The conductor's front door: HTTP requests become submits of the conductor, and its replies become HTTP answers.
//
//   HTTP thread, or pool   access -> parse -> tokenise -> AnswerJob --post-->  control loop   submit each choice
//   HTTP thread            Responder <---------------------------- Answer <----------------  reply
//
// The parts: ApiAccess (who may call), CallRunner (which thread works), RequestReader (bodies to token ids), Answers
// (replies to clients), ConductorMetrics. A request's deadline counts from its first byte, through all of them.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/metrics.h"
#include "door/answers.h"
#include "door/api_access.h"
#include "door/call_runner.h"
#include "door/conductor_metrics.h"
#include "door/request_reader.h"
#include "http/route.h"
#include "http/server.h"
#include "node/conductor.h"
#include "node/services.h"

namespace mc::door {

class Frontend {
 public:
  /// Reads tokenizer, template and config; no weights. The conductor and the metrics outlive it.
  static Result<std::unique_ptr<Frontend>> open(const FrontendOptions& options, node::Conductor& conductor,
                                                Metrics& metrics);
  /// Answers /livez; any thread.
  using Livez = std::function<http::Response()>;
  /// Once the loop exists; before the HTTP server starts.
  void attach(node::MachineLoop& loop, Livez livez);
  /// Where clients reach the conductor, for /cluster. Before the loop runs.
  void set_url(std::string url) { url_ = std::move(url); }
  http::Server::Handler handler();
  /// The refusal of a request that lacks its key or names no path of the API; for ServerOptions::refuse_head.
  std::optional<http::Response> refuse_head(const http::Request& head) const { return access_.refuse_head(head); }
  /// Any thread. null: every client may call, as the default tenant.
  void set_keys(std::shared_ptr<const ApiKeys> keys) { access_.set_keys(std::move(keys)); }

  // ---- control loop's thread ----
  void on_reply(const node::Reply& reply) { answers_->on_reply(reply); }
  /// A few times a second. Updates the metrics, and begins each stream that has waited for its first token for long:
  /// the server pings it from then on.
  void update(const http::ServerStats& http);
  /// Longest prompt and answer that the nodes hold together; 0 = there are no nodes.
  void set_nodes_context(uint32_t tokens) { reader_->set_nodes_context(tokens); }
  size_t answers_under_way() const { return answers_->size(); }
  void start_draining() { answers_->start_draining(); }
  /// Every client that still waits gets an error; for the end of the process. No more work is done.
  void fail_all();

 private:
  Frontend(const FrontendOptions& options, node::Conductor& conductor, Metrics& metrics,
           std::unique_ptr<RequestReader> reader);
  void handle(http::Request request, http::Responder out);
  void take(http::Request request, http::Responder out, ApiKeys::Grant grant, http::Route route);
  void version(const http::Responder& out) const;
  void metrics(const http::Responder& out) const;
  void readiness(const http::Responder& out);
  void cluster(const http::Responder& out);
  void request_record(const std::string& id, const http::Responder& out);
  void admin(const http::Request& request, const std::string& verb, const http::Responder& out);

  // ---- HTTP thread, or a thread of the pool ----
  void work(Call& call);
  void tokenize(Call& call) const;
  void detokenize(Call& call) const;
  void generate(Call& call);
  void explain(Call& call);
  /// The prompts of a call that goes on; nullopt when the call is answered, or moves to the pool.
  std::optional<std::vector<std::vector<uint32_t>>> prompts_of(http::GenerateRequest& request, Call& call);
  Result<std::shared_ptr<AnswerJob>> job_of(const http::GenerateRequest& request,
                                            const std::vector<std::vector<uint32_t>>& prompts, const Call& call) const;

  const FrontendOptions options_;
  node::Conductor& conductor_;
  ConductorMetrics metrics_;
  ApiAccess access_;
  std::unique_ptr<RequestReader> reader_;
  const int64_t started_unix_;
  std::string url_;
  node::MachineLoop* loop_ = nullptr;
  Livez livez_;
  std::optional<Answers> answers_;    // once attached
  std::optional<CallRunner> runner_;  // last: its threads use the members above
};

}  // namespace mc::door
