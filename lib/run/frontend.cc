// Requests in: routing, parsing, tokenising, submitting. Which thread that is, and its deadline: frontend_work.cc;
// replies and metrics: frontend_replies.cc.

#include "run/frontend.h"

#include <algorithm>
#include <ctime>
#include <new>

#include "base/errors.h"
#include "base/log.h"
#include "run/engine.h"
#include "run/limits.h"
#include "run/operator_pages.h"

namespace mc::run {
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

/// The control loop copies the prompts twice and must not fail at it: throws std::bad_alloc here when there is no room.
void try_room(const std::vector<node::Submit>& submits) {
  constexpr size_t kSmall = size_t{1} << 20;  // the reserve covers it
  size_t bytes = 0;
  for (const node::Submit& submit : submits) bytes += 2 * sizeof(uint32_t) * submit.ids.size();
  if (bytes > kSmall) ::operator delete(::operator new(bytes));
}

}  // namespace

Result<std::unique_ptr<Frontend>> Frontend::open(const FrontendOptions& options, node::Conductor& conductor,
                                                 Metrics& metrics) {
  MC_TRY(tokenizer, text::Tokenizer::open(options.model_directory));
  MC_TRY(config, model::read_config(options.model_directory));
  auto frontend =
      std::unique_ptr<Frontend>(new Frontend(options, conductor, metrics, std::move(tokenizer), std::move(config)));
  auto chat = text::ChatTemplate::open(frontend->tokenizer_.config(), options.chat_template);
  if (chat) {
    frontend->template_ = std::move(*chat);
  } else {
    // Completions work without a template; chat requests get this answer.
    if (options.chat_template != "auto") return std::move(chat).error();
    frontend->template_error_ = chat.error();
    log_warn("no chat template", {{"why", chat.error().what}});
  }
  return frontend;
}

Frontend::Frontend(FrontendOptions options, node::Conductor& conductor, Metrics& metrics, text::Tokenizer tokenizer,
                   model::ModelConfig config)
    : options_(std::move(options)),
      conductor_(conductor),
      metrics_(metrics),
      access_(*options_.lock, options_.on_loopback),
      tokenizer_(std::move(tokenizer)),
      config_(std::move(config)),
      started_unix_(SystemClock::instance().unix_ms() / 1000),
      pool_(std::make_unique<DoorPool>(DoorPool::Options{})) {
  if (options_.context_tokens > 0) config_.max_positions = options_.context_tokens;
}

http::Server::Handler Frontend::handler() {
  return [this](http::Request request, http::Responder out) { handle(std::move(request), std::move(out)); };
}

void Frontend::handle(http::Request request, http::Responder out) {
  const auto found = http::find_route(http::conductor_routes(), request.method, request.path);
  if (const auto* answer = std::get_if<http::Response>(&found)) return out.respond(*answer);
  const auto match = std::get<http::RouteMatch>(found);
  const auto grant = access_.grant(request, match.route);
  if (!grant) return out.respond(http::error_response(grant.error()));
  const http::ModelCard card{options_.served_name, options_.served_name, started_unix_, context_tokens()};
  switch (match.route) {
    case http::Route::completions:
    case http::Route::chat_completions:
    case http::Route::tokenize:
    case http::Route::detokenize:
      return take({std::move(request), std::move(out), *grant, match.route, SystemClock::instance().now(), nullptr});
    case http::Route::models: return out.respond(http::json_response(200, http::models_body({&card, 1})));
    case http::Route::model:
      if (auto known = check_model(std::string(match.rest)); !known)
        return out.respond(http::error_response(known.error()));
      return out.respond(http::json_response(200, http::model_body(card)));
    case http::Route::livez: return out.respond(livez_response(*heartbeat_));
    case http::Route::version: {
      Json body = Json::object();
      body.set("version", cli::build_info().version).set("commit", cli::build_info().commit);
      body.set("program", cli::build_info().program);
      return out.respond(http::json_response(200, body.dump()));
    }
    case http::Route::metrics: {
      http::Response response;
      response.headers = {{"Content-Type", Metrics::kContentType}};
      response.body = metrics_.expose();
      return out.respond(std::move(response));
    }
    case http::Route::health:
    case http::Route::readyz:
      loop_->post([this, out](TimePoint, node::Actions&) {
        const std::string reason(to_string(draining_ ? node::Reason::draining : conductor_.members().unready("")));
        http::Response response;
        response.status = reason.empty() ? 200 : 503;
        response.body = reason;
        out.respond(std::move(response));
      });
      return;
    case http::Route::cluster:
      loop_->post([this, out](TimePoint now, node::Actions&) {
        out.respond(http::json_response(200, cluster_json(conductor_, options_.served_name, now).dump()));
      });
      return;
    case http::Route::admin:
      if (match.rest == "explain")
        return take({std::move(request), std::move(out), *grant, match.route, SystemClock::instance().now(), nullptr});
      return admin(request, std::string(match.rest), std::move(out));
    case http::Route::request: return request_record(std::string(match.rest), std::move(out));
    default: return out.respond(http::error_response(err::kNotFound, "no such page"));
  }
}

Result<void> Frontend::check_model(const std::string& name) const {
  if (name.empty() || name == options_.served_name) return {};
  return user_error(err::kModelNotFound, "model " + name + " is not served here, " + options_.served_name + " is",
                    "model");
}

void Frontend::log_ignored(const std::vector<std::string>& fields) {
  std::lock_guard lock(ignored_mutex_);
  for (const auto& field : fields)
    if (ignored_.size() < 256 && ignored_.insert(field).second) log_info("unknown field ignored", {{"field", field}});
}

Result<std::vector<text::Part>> Frontend::rendered(http::GenerateRequest& request) const {
  if (!template_) return template_error_;
  std::vector<text::ChatMessage> messages;
  for (auto& m : std::exchange(request.messages, {}))
    messages.push_back({std::move(m.role), std::move(m.content), std::move(m.name), std::move(m.tool_call_id),
                        std::move(m.reasoning_content), std::move(m.tool_calls)});
  text::ChatOptions options;
  options.add_generation_prompt = request.add_generation_prompt;
  options.continue_final_message = request.continue_final_message;
  options.tools = request.tools;
  options.kwargs = request.template_kwargs;
  const std::time_t now = std::time(nullptr);
  localtime_r(&now, &options.now.emplace());
  auto parts = template_->render(messages, options);
  if (!parts) return as_user_error(err::kInvalidField, std::move(parts).error());
  return parts;
}

Result<std::vector<std::vector<uint32_t>>> Frontend::prompts_of(http::GenerateRequest& request,
                                                                const Call& call) const {
  std::vector<std::vector<uint32_t>> prompts;
  const text::EncodeLimits limits = encode_limits(request, call);
  if (request.is_chat) {
    size_t bytes = 0;
    for (const auto& message : request.messages) bytes += message.content.size();
    // A template works on four bytes for a character, so what cannot fit is not rendered.
    if (bytes > prompt_bytes_max(request))
      return encode_error(user_error(err::kContextLength, ""), request, "messages");
    MC_TRY(parts, rendered(request));
    auto ids = tokenizer_.encode(parts, request.add_special_tokens.value_or(false), limits);
    if (!ids) return encode_error(std::move(ids).error(), request, "messages");
    prompts.push_back(std::move(*ids));
  } else {
    text::Work work(limits);
    for (const auto& prompt : request.prompts) {
      if (prompt.is_ids) {
        prompts.push_back(prompt.ids);
        continue;
      }
      MC_TRY(ids, prompt_ids(request, prompt.text, limits, work));
      prompts.push_back(std::move(ids));
    }
  }
  for (auto& ids : prompts) {
    if (request.truncate_prompt_tokens && ids.size() > *request.truncate_prompt_tokens)
      ids.erase(ids.begin(), ids.end() - static_cast<std::ptrdiff_t>(*request.truncate_prompt_tokens));
    if (ids.empty()) return user_error(err::kInvalidField, "the prompt has no tokens", "prompt");
  }
  return prompts;
}

// A small --kv-mem on a node may hold less than the model's context.
uint32_t Frontend::context_tokens() const {
  const uint32_t here = nodes_context_.load(std::memory_order_relaxed);  // a number alone
  return here == 0 ? config_.max_positions : std::min(here, config_.max_positions);
}

Result<uint32_t> Frontend::answer_tokens(const http::GenerateRequest& request, size_t prompt_tokens) const {
  const uint64_t context = context_tokens(), room = prompt_tokens < context ? context - prompt_tokens : 0;
  const auto& wanted = request.sampling.max_tokens;
  // The token after the prompt is drawn even when the client wants none (max_tokens 0), and the Answer drops it: its
  // own place in the context is not needed.
  if (wanted == 0u && prompt_tokens <= context) return 1;
  const uint64_t asked = std::max(1u, wanted.value_or(request.is_chat ? static_cast<uint32_t>(room) : 16u));
  if (room > 0 && asked <= room) return static_cast<uint32_t>(asked);
  const bool by_nodes = context < config_.max_positions;
  return user_error(err::kContextLength,
                    "prompt of " + std::to_string(prompt_tokens) + " tokens and an answer of " + std::to_string(asked) +
                        " need " + std::to_string(prompt_tokens + asked) +
                        (by_nodes ? ", the nodes' --kv-mem holds " : ", the context holds ") + std::to_string(context) +
                        (by_nodes ? " of the model's " + std::to_string(config_.max_positions) : std::string()),
                    room > 0          ? "max_tokens"
                    : request.is_chat ? "messages"
                                      : "prompt");
}

Result<node::Submit> Frontend::submit_for(const http::GenerateRequest& request, const std::vector<uint32_t>& prompt,
                                          const ApiKeys::Grant& grant) const {
  const auto& s = request.sampling;
  node::Submit submit;
  submit.ids = prompt;
  // The tenant's salt comes first and says how long it is: a client's own can narrow it, never leave it.
  submit.salt = grant.tenant.empty() ? request.cache_salt
                                     : std::to_string(grant.salt.size()) + ":" + grant.salt + request.cache_salt;
  submit.tenant = grant.tenant;
  submit.priority = request.priority;
  submit.session = request.mc.session;
  submit.no_cache = request.mc.no_cache;
  submit.pin_prefill = request.mc.pin_prefill;
  submit.pin_decode = request.mc.pin_decode;
  submit.deadline = request.mc.deadline.value_or(options_.deadline);
  submit.ttft_slo_s = request.mc.ttft_slo ? to_seconds(*request.mc.ttft_slo) : options_.ttft_slo_s;
  submit.tbt_slo_s = request.mc.tbt_slo ? to_seconds(*request.mc.tbt_slo) : options_.tbt_slo_s;
  if (!request.mc.attention.empty()) {
    auto plan = resolve_plan(request.mc.attention, config_, options_.block_tokens);
    if (!plan) return user_error(err::kInvalidField, plan.error().what, "mc.attention");
    submit.attention = attn::to_string(*plan);
  }
  wire::Sampling& sampling = submit.sampling;
  sampling = s.over(options_.generation_defaults ? config_.generation : wire::SamplingChoice{});
  sampling.logit_bias = s.logit_bias;
  sampling.logprobs = s.logprobs.value_or(request.answers() > s.n ? 0 : -1);  // the best are the likeliest
  wire::Stopping& stopping = submit.stopping;
  stopping.min_tokens = s.min_tokens;
  stopping.stop_ids = s.stop_token_ids;
  if (!s.ignore_eos) {
    stopping.stop_ids.insert(stopping.stop_ids.end(), config_.eos.begin(), config_.eos.end());
    if (config_.eos.empty() && tokenizer_.eos_id()) stopping.stop_ids.push_back(*tokenizer_.eos_id());
  }
  MC_TRY(max_tokens, answer_tokens(request, prompt.size()));
  stopping.max_tokens = max_tokens;
  for (uint32_t id : prompt)
    if (id >= config_.vocab)
      return user_error(
          err::kInvalidField,
          "token id " + std::to_string(id) + " is not below the vocabulary's " + std::to_string(config_.vocab),
          "prompt");
  return submit;
}

void Frontend::generate(Call& call) {
  const bool chat = call.route == http::Route::chat_completions;
  http::ApiLimits limits;
  limits.vocab_size = config_.vocab;
  limits.has_min_p = limits.has_penalties = limits.has_logit_bias = true;
  limits.has_tools = template_ && template_->knows_tools();
  auto parsed = chat ? http::parse_chat(call.request.body, call.request.headers, limits)
                     : http::parse_completion(call.request.body, call.request.headers, limits);
  if (!parsed) return call.respond(http::error_response(parsed.error()));
  call.drop_body();
  log_ignored(parsed->ignored);
  const Duration deadline = parsed->mc.deadline.value_or(options_.deadline);
  if (!set_deadline(call, deadline)) return;
  if (auto known = check_model(parsed->model); !known) return call.respond(http::error_response(known.error()));
  auto prompts = prompts_of(*parsed, call);
  if (!prompts && call.moves_to_pool(prompts.error())) return;
  if (!prompts) return call.respond(http::error_response(prompts.error()));
  if (auto bounded = check_prompt_logprobs(*parsed, *prompts); !bounded)
    return call.respond(http::error_response(bounded.error()));
  for (auto& prompt : parsed->prompts) prompt = {};  // the text is not needed again, and may be large; their number is
  parsed->messages.clear();
  auto job = std::make_shared<Job>();  // crosses to the loop's thread inside a std::function
  job->client_id = call.request.request_id;
  job->received = call.request.received;
  job->complete = call.complete;
  job->deadline = deadline;
  const int n = parsed->answers();
  const uint64_t seed =
      parsed->sampling.seed ? static_cast<uint64_t>(*parsed->sampling.seed) : options_.seed ^ fnv1a(call.request.id);
  const RequestId id = call.request.id;
  http::AnswerHead head{http::answer_id(chat, id), SystemClock::instance().unix_ms() / 1000, options_.served_name,
                        chat};
  job->answer = std::make_shared<Answer>(*parsed, head, call.out, tokenizer_);
  for (const auto& prompt : *prompts) {
    auto submit = submit_for(*parsed, prompt, call.grant);
    if (!submit) return call.respond(http::error_response(submit.error()));
    for (int i = 0; i < n; ++i) {
      node::Submit one = *submit;
      one.req = job->submits.empty() ? id : http::new_request_id();
      one.sampling.seed = seed;
      one.sampling.stream = static_cast<uint64_t>(i);
      if (job->answer->asks_for_prompt(job->submits.size())) one.prompt_logprobs = *parsed->wanted_of_prompt();
      if (auto added = job->answer->add_choice(one.req, prompt); !added)
        return call.respond(http::error_response(as_user_error(err::kInvalidField, added.error())));
      job->submits.push_back(std::move(one));
    }
  }
  if (auto bounded = check_logprobs(*parsed, job->submits); !bounded)
    return call.respond(http::error_response(bounded.error()));
  try_room(job->submits);
  if (call.ticket && !call.ticket->settle()) return;
  loop_->post([this, job](TimePoint, node::Actions&) { start(job); });
}

void Frontend::start(const std::shared_ptr<Job>& job) {
  const http::Responder& out = job->answer->out();
  if (draining_) return out.respond(http::error_response(err::kDraining, "the server is stopping"));
  const TimePoint now = SystemClock::instance().now();
  if (now - job->received >= job->deadline) return out.respond(late(job->received, job->complete, job->deadline));
  for (auto& submit : job->submits) {
    submit.deadline = job->deadline - (now - job->received);
    answers_[submit.req] = job->answer;
    RequestProgress progress;
    progress.submitted = progress.last = now;
    progress.prompt_tokens = static_cast<uint32_t>(submit.ids.size());
    progress.max_tokens = submit.stopping.max_tokens;
    progress.client_id = job->client_id;
    progress.tenant = submit.tenant;
    progress.priority = submit.priority;
    records_.begin(submit.req, std::move(progress));
  }
  out.on_close([this, weak = std::weak_ptr<Answer>(job->answer)](http::CloseReason) {
    loop_->post([this, weak](TimePoint, node::Actions&) {
      if (const auto answer = weak.lock())
        for (const auto& req : answer->unfinished())
          loop_->deliver(node::ClientCancel{req, node::CancelReason::client_gone});
    });
  });
  for (const auto& submit : job->submits)
    log_debug("request", {{"req", submit.req},
                          {"x_request_id", job->client_id},
                          {"tenant", submit.tenant},
                          {"prompt_tokens", submit.ids.size()},
                          {"max_tokens", submit.stopping.max_tokens}});
  metrics_.submitted(job->submits.size());
  for (auto& submit : job->submits) {
    if (!answers_.contains(submit.req)) continue;
    if (job->answer->failed()) {  // an earlier choice was rejected: nobody would read this one
      answers_.erase(submit.req);
      records_.drop(submit.req);
      continue;
    }
    const TimePoint began = SystemClock::instance().now();
    loop_->deliver(submit);
    metrics_.decided(SystemClock::instance().now() - began);
  }
}

void Frontend::admin(const http::Request& request, const std::string& verb, http::Responder out) {
  if (verb != "drain" && verb != "undrain")
    return out.respond(
        http::error_response(err::kNotFound, "no admin verb " + verb + "; there are drain, undrain, explain"));
  auto parsed = http::parse_admin(request.body, request.headers);
  if (!parsed) return out.respond(http::error_response(parsed.error()));
  loop_->post([this, out, node = parsed->node, on = verb == "drain"](TimePoint, node::Actions& actions) {
    if (auto done = conductor_.drain(node, on, actions); !done)
      return out.respond(http::error_response(user_error(
          done.error().code == Code::invalid ? err::kInvalidField : err::kNotFound, done.error().what, "node")));
    Json body = Json::object();
    body.set("node", node).set("state", on ? "drain" : "ready");
    out.respond(http::json_response(200, body.dump()));
  });
}

/// The dry run of a completion or chat request: nothing is submitted.
void Frontend::explain(Call& call) {
  http::ApiLimits limits;
  limits.vocab_size = config_.vocab;
  limits.has_min_p = limits.has_penalties = limits.has_logit_bias = true;
  limits.has_tools = template_ && template_->knows_tools();
  const http::Request& request = call.request;
  const bool chat = request.body.find("\"messages\"") != std::string::npos;
  auto parsed = chat ? http::parse_chat(request.body, request.headers, limits)
                     : http::parse_completion(request.body, request.headers, limits);
  if (!parsed) return call.respond(http::error_response(parsed.error()));
  if (!set_deadline(call, parsed->mc.deadline.value_or(options_.deadline))) return;
  if (auto known = check_model(parsed->model); !known) return call.respond(http::error_response(known.error()));
  auto prompts = prompts_of(*parsed, call);
  if (!prompts && call.moves_to_pool(prompts.error())) return;
  if (!prompts) return call.respond(http::error_response(prompts.error()));
  auto submit = submit_for(*parsed, prompts->front(), call.grant);
  if (!submit) return call.respond(http::error_response(submit.error()));
  if (call.ticket && !call.ticket->settle()) return;
  loop_->post([this, out = call.out, submit = std::move(*submit)](TimePoint now, node::Actions&) {
    out.respond(http::json_response(200, explanation_json(conductor_.explain(submit, now), submit).dump()));
  });
}

void Frontend::request_record(const std::string& id, http::Responder out) {
  loop_->post([this, id, out](TimePoint now, node::Actions&) {
    if (id.empty())
      return out.respond(http::json_response(200, Json::object({{"requests", records_.list(now)}}).dump()));
    if (const auto record = records_.find(id, now)) return out.respond(http::json_response(200, record->dump()));
    out.respond(http::error_response(err::kNotFound, "no record of request " + id.substr(0, 128) + "; the last " +
                                                         std::to_string(RequestRecords::kEndedMax) +
                                                         " are kept, under our id or the client's x-request-id"));
  });
}

}  // namespace mc::run
