#include "door/frontend.h"

#include <new>

#include "base/assert.h"
#include "base/cli.h"
#include "base/errors.h"
#include "base/log.h"
#include "door/answer_grammar.h"
#include "door/operator_pages.h"

namespace mc::door {
namespace {

static_assert(http::kPriorityMax == sched::FairQueue::kPriorityMax);

/// Limit on log-probabilities in a non-streamed answer, which the control loop serialises in one piece.
constexpr uint64_t kLogprobsMax = uint64_t{1} << 22;

Result<void> check_logprobs(const http::GenerateRequest& request, const std::vector<node::Submit>& submits) {
  if (request.stream || !request.sampling.logprobs) return {};
  const uint64_t each = 1 + static_cast<uint64_t>(*request.sampling.logprobs);
  uint64_t numbers = 0;
  for (const node::Submit& submit : submits) numbers += submit.stopping.max_tokens * each;
  if (numbers <= kLogprobsMax) return {};
  return user_error(err::kInvalidField,
                    "the log-probabilities of " + std::to_string(submits.size()) + " answers are up to " +
                        std::to_string(numbers) + " numbers; at most " + std::to_string(kLogprobsMax) +
                        " fit one answer: ask for fewer, set max_tokens, or stream",
                    "logprobs");
}

/// The control loop copies prompts and grammars twice and must not fail at it: throws std::bad_alloc here when there is
/// no room.
void try_room(const std::vector<node::Submit>& submits) {
  constexpr size_t kSmall = size_t{1} << 20;  // the reserve covers it
  size_t bytes = 0;
  for (const node::Submit& submit : submits)
    bytes += 2 * (sizeof(uint32_t) * submit.ids.size() + submit.sampling.grammar.size());
  if (bytes > kSmall) ::operator delete(::operator new(bytes));
}

/// A client's schema may take long to compile: the HTTP thread leaves it to the pool.
bool moves_for_schema(const http::GenerateRequest& request, Call& call) {
  return call.is_costly = !call.ticket && has_schema(request);
}

}  // namespace

Result<std::unique_ptr<Frontend>> Frontend::open(const FrontendOptions& options, node::Conductor& conductor,
                                                 Metrics& metrics) {
  MC_ASSERT(options.lock != nullptr);
  MC_TRY(reader, RequestReader::open(options));
  return std::unique_ptr<Frontend>(new Frontend(options, conductor, metrics, std::move(reader)));
}

Frontend::Frontend(const FrontendOptions& options, node::Conductor& conductor, Metrics& metrics,
                   std::unique_ptr<RequestReader> reader)
    : options_(options),
      conductor_(conductor),
      metrics_(metrics),
      access_(*options.lock, options.on_loopback),
      reader_(std::move(reader)),
      started_unix_(SystemClock::instance().unix_ms() / 1000) {}

void Frontend::update(const http::ServerStats& http) {
  metrics_.update(conductor_, http);
  answers_->begin_silent_streams(SystemClock::instance().now());
}

void Frontend::attach(node::MachineLoop& loop, Livez livez) {
  MC_ASSERT(!loop_);
  loop_ = &loop;
  livez_ = std::move(livez);
  answers_.emplace(loop, metrics_);
  runner_.emplace(loop, conductor_, options_.deadline, [this](Call& call) { work(call); });
}

http::Server::Handler Frontend::handler() {
  MC_ASSERT(loop_);
  return [this](http::Request request, http::Responder out) { handle(std::move(request), std::move(out)); };
}

void Frontend::handle(http::Request request, http::Responder out) {
  const auto found = http::find_route(http::conductor_routes(), request.method, request.path);
  if (const auto* answer = std::get_if<http::Response>(&found)) return out.respond(*answer);
  const auto match = std::get<http::RouteMatch>(found);
  const auto grant = access_.grant(request, match.route);
  if (!grant)
    return out.respond(grant.error().mc == err::kForbidden ? http::operators_error(grant.error())
                                                           : http::error_response(grant.error()));
  const http::ModelCard card{options_.served_name, options_.served_name, started_unix_, reader_->context_tokens()};
  switch (match.route) {
    case http::Route::completions:
    case http::Route::chat_completions:
    case http::Route::embeddings:
    case http::Route::tokenize:
    case http::Route::detokenize: return take(std::move(request), std::move(out), *grant, match.route);
    case http::Route::models: return out.respond(http::json_response(200, http::models_body({&card, 1})));
    case http::Route::model:
      if (auto known = reader_->check_model(std::string(match.rest)); !known)
        return out.respond(http::error_response(known.error()));
      return out.respond(http::json_response(200, http::model_body(card)));
    case http::Route::livez: return out.respond(livez_());
    case http::Route::version: return version(out);
    case http::Route::metrics: return metrics(out);
    case http::Route::health:
    case http::Route::readyz: return readiness(out);
    case http::Route::cluster: return cluster(out);
    case http::Route::admin:
      if (match.rest == "explain") return take(std::move(request), std::move(out), *grant, match.route);
      return admin(request, std::string(match.rest), out);
    case http::Route::request: return request_record(std::string(match.rest), out);
    default: return out.respond(http::error_response(err::kNotFound, "no such page"));
  }
}

void Frontend::take(http::Request request, http::Responder out, ApiKeys::Grant grant, http::Route route) {
  MC_ASSERT(runner_.has_value());
  runner_->take({std::move(request), std::move(out), std::move(grant), route, SystemClock::instance().now(), nullptr});
}

// ---- pages -----------------------------------------------------------------------------------

void Frontend::version(const http::Responder& out) const {
  Json body = Json::object();
  body.set("version", cli::build_info().version).set("commit", cli::build_info().commit);
  body.set("program", cli::build_info().program);
  out.respond(http::json_response(200, body.dump()));
}

void Frontend::metrics(const http::Responder& out) const {
  http::Response response;
  response.headers = {{"Content-Type", Metrics::kContentType}};
  response.body = metrics_.expose();
  out.respond(std::move(response));
}

void Frontend::readiness(const http::Responder& out) {
  loop_->post([this, out](TimePoint, node::Actions&) {
    const node::Reason reason = answers_->is_draining() ? node::Reason::draining : conductor_.members().unready("");
    http::Response response;
    response.body = to_string(reason);
    response.status = response.body.empty() ? 200 : 503;
    out.respond(std::move(response));
  });
}

void Frontend::cluster(const http::Responder& out) {
  loop_->post([this, out](TimePoint now, node::Actions&) {
    out.respond(http::json_response(200, cluster_json(conductor_, options_.served_name, url_, now).dump()));
  });
}

void Frontend::admin(const http::Request& request, const std::string& verb, const http::Responder& out) {
  if (verb != "drain" && verb != "undrain")
    return out.respond(
        http::error_response(err::kNotFound, "no admin verb " + verb + "; there are drain, undrain, explain"));
  auto parsed = http::parse_admin(request.body, request.headers);
  if (!parsed) return out.respond(http::error_response(parsed.error()));
  loop_->post([this, out, node = parsed->node, on = verb == "drain"](TimePoint, node::Actions& actions) {
    if (auto done = conductor_.drain(node, on, actions); !done) {
      Error error = as_user_error(err::kInvalidField, std::move(done).error());
      error.where = "node";
      return out.respond(http::operators_error(error));
    }
    Json body = Json::object();
    body.set("node", node).set("state", on ? "drain" : "ready");
    out.respond(http::json_response(200, body.dump()));
  });
}

void Frontend::request_record(const std::string& id, const http::Responder& out) {
  loop_->post([this, id, out](TimePoint now, node::Actions&) {
    if (id.empty())
      return out.respond(http::json_response(200, Json::object({{"requests", answers_->records().list(now)}}).dump()));
    if (const auto record = answers_->records().find(id, now))
      return out.respond(http::json_response(200, record->dump()));
    out.respond(http::operators_error(
        user_error(err::kNotFound,
                   "no record of request " + id.substr(0, 128) + "; the conductor keeps the last " +
                       std::to_string(RequestRecords::kEndedMax) + ", by their own id or the client's x-request-id",
                   "", "mc-conductor why lists the requests")));
  });
}

// ---- calls -----------------------------------------------------------------------------------

void Frontend::work(Call& call) {
  switch (call.route) {
    case http::Route::tokenize: return tokenize(call);
    case http::Route::detokenize: return detokenize(call);
    case http::Route::admin: return explain(call);
    default: return generate(call);
  }
}

void Frontend::tokenize(Call& call) const {
  auto parsed = http::parse_tokenize(call.request.body, {});
  if (!parsed) return call.respond(http::error_response(parsed.error()));
  call.drop_body();
  if (auto known = reader_->check_model(parsed->model); !known)
    return call.respond(http::error_response(known.error()));
  const auto ids = reader_->token_ids(std::move(*parsed), call.encode_limits());
  if (!ids && call.moves_to_pool(ids.error())) return;
  if (!ids) return call.respond(http::error_response(ids.error()));
  call.respond(http::json_response(200, http::tokenize_body(*ids, reader_->context_tokens())));
}

void Frontend::detokenize(Call& call) const {
  const auto text = reader_->detokenized(call.request);
  if (!text) return call.respond(http::error_response(text.error()));
  call.respond(http::json_response(200, http::detokenize_body(*text)));
}

std::optional<std::vector<std::vector<uint32_t>>> Frontend::prompts_of(http::GenerateRequest& request, Call& call) {
  const auto refuse = [&](const Error& error) {
    call.respond(http::error_response(error));
    return std::nullopt;
  };
  if (!runner_->set_deadline(call, request.mc.deadline.value_or(options_.deadline))) return std::nullopt;
  if (auto known = reader_->check_model(request.model); !known) return refuse(known.error());
  auto prompts = reader_->prompts(request, call.encode_limits());
  if (prompts) return std::move(*prompts);
  if (call.moves_to_pool(prompts.error())) return std::nullopt;
  return refuse(prompts.error());
}

void Frontend::generate(Call& call) {
  auto parsed = reader_->parse(call.request, call.route);
  if (!parsed) return call.respond(http::error_response(parsed.error()));
  if (moves_for_schema(*parsed, call)) return;
  call.drop_body();
  auto prompts = prompts_of(*parsed, call);
  if (!prompts) return;
  if (auto bounded = check_prompt_logprobs(*parsed, *prompts); !bounded)
    return call.respond(http::error_response(bounded.error()));
  for (auto& prompt : parsed->prompts) prompt = {};  // the text may be large; only the number of prompts is needed
  parsed->chat.messages.clear();
  auto job = job_of(*parsed, *prompts, call);
  if (!job) return call.respond(http::error_response(job.error()));
  try_room((*job)->submits);
  if (call.ticket && !call.ticket->settle()) return;
  loop_->post([this, job = std::move(*job)](TimePoint, node::Actions&) { answers_->start(job); });
}

Result<std::shared_ptr<AnswerJob>> Frontend::job_of(const http::GenerateRequest& request,
                                                    const std::vector<std::vector<uint32_t>>& prompts,
                                                    const Call& call) const {
  const bool chat = call.route == http::Route::chat_completions;
  auto job = std::make_shared<AnswerJob>();  // crosses to the loop's thread inside a std::function
  job->client_id = call.request.request_id;
  job->received = call.request.received;
  job->complete = call.complete;
  job->deadline = request.mc.deadline.value_or(options_.deadline);
  const RequestId id = call.request.id;
  const uint64_t seed =
      request.sampling.seed ? static_cast<uint64_t>(*request.sampling.seed) : options_.seed ^ fnv1a(id);
  const http::AnswerHead head{http::answer_id(chat, id), SystemClock::instance().unix_ms() / 1000, options_.served_name,
                              chat};
  job->answer =
      std::make_shared<Answer>(request, head, call.out, reader_->tokenizer(), reader_->answer_reader(request));
  MC_TRY(grammar, reader_->grammar(request));
  for (const auto& prompt : prompts) {
    MC_TRY(submit, reader_->submit(request, prompt, grammar, call.grant));
    for (int i = 0; i < request.answers(); ++i) {
      node::Submit one = submit;
      one.req = job->submits.empty() ? id : http::new_request_id();
      one.sampling.seed = seed;
      one.sampling.stream = static_cast<uint64_t>(i);
      if (job->answer->asks_for_prompt(job->submits.size())) one.prompt_logprobs = *request.wanted_of_prompt();
      if (auto added = job->answer->add_choice(one.req, prompt); !added)
        return as_user_error(err::kInvalidField, std::move(added).error());
      job->submits.push_back(std::move(one));
    }
  }
  MC_ASSERT_EQ(job->submits.size(), prompts.size() * static_cast<size_t>(request.answers()));
  MC_CHECK(check_logprobs(request, job->submits));
  return job;
}

/// The dry run of a completion or chat request: nothing is submitted.
void Frontend::explain(Call& call) {
  auto parsed = reader_->parse(call.request, call.route);
  if (!parsed) return call.respond(http::error_response(parsed.error()));
  if (moves_for_schema(*parsed, call)) return;
  auto prompts = prompts_of(*parsed, call);
  if (!prompts) return;
  const auto grammar = reader_->grammar(*parsed);
  if (!grammar) return call.respond(http::error_response(grammar.error()));
  auto submit = reader_->submit(*parsed, prompts->front(), *grammar, call.grant);
  if (!submit) return call.respond(http::error_response(submit.error()));
  if (call.ticket && !call.ticket->settle()) return;
  loop_->post([this, out = call.out, submit = std::move(*submit)](TimePoint now, node::Actions&) {
    out.respond(http::json_response(200, explanation_json(conductor_.explain(submit, now), submit).dump()));
  });
}

void Frontend::fail_all() {
  MC_ASSERT(runner_ && answers_);
  runner_->stop();
  answers_->fail_all();
}

}  // namespace mc::door
