// Following a request: tokens in order to the client, failures to a retry or an error with the stage.

#include <algorithm>
#include <cmath>

#include "base/assert.h"
#include "node/conductor.h"

namespace mc::node {

Conductor::Request* Conductor::find(const RequestId& req, uint32_t attempt) {
  const auto it = requests_.find(req);
  return it != requests_.end() && it->second.placed && it->second.attempt == attempt ? &it->second : nullptr;
}

RequestStage Conductor::stage_of(const Request& r) {
  if (!r.placed) return RequestStage::route;
  return r.first_token ? RequestStage::decode : RequestStage::prefill;
}

// Chunks come in order; what does not fit, or was not asked for, is not kept.
void Conductor::on_prompt_logprobs(const Received& event, const wire::PromptLogprobs& told) {
  Request* r = find(told.req, told.attempt);
  if (!r || event.instance != r->prefill_instance || r->first_token || !r->answer.empty()) return;
  auto& rows = r->prompt_logprobs;
  const bool fits = told.first == rows.size() + 1 && rows.size() + told.rows.size() < r->submit.ids.size();
  if (r->submit.prompt_logprobs < 0 || !fits) return;
  rows.insert(rows.end(), told.rows.begin(), told.rows.end());
}

void Conductor::on_first_token(const Received& event, const wire::FirstToken& first, TimePoint now, Actions& out) {
  Request* r = find(first.req, first.attempt);
  if (!r || event.instance != r->prefill_instance || r->first_token) return;
  // Probabilities of the prompt cost work that no other prompt of its length brings: nothing to learn from.
  const bool usual = r->submit.prompt_logprobs < 0;
  if (Node* node = usual ? find_node(r->prefill) : nullptr) {
    const auto& report = first.report;
    const double n = static_cast<double>(r->submit.ids.size() + r->answer.size());
    const double reused = report.cached_local + report.cached_remote;
    sched::Predictor& p = node->predictor;
    const double seconds = report.compute_ms * 1e-3;
    errors_.prefill.observe(p.cost().prefill(n, reused), seconds);
    p.prefilled(n, reused, seconds);
    if (report.cached_remote > 0 && report.fallback.empty() && !r->fetch_waited) {
      const kv::Namespace* ns = namespace_of(r->submit.model);
      const double bytes = ns ? static_cast<double>(report.cached_remote) / ns->block_tokens *
                                    static_cast<double>(node->hello.page_bytes)
                              : 0;
      errors_.read.observe(p.cost().read(bytes, 0), report.fetch_ms * 1e-3);
      p.read(bytes, report.fetch_ms * 1e-3);
    }
    usual_stale_ = true;
    changed(*node);
  }
  if (r->attempt == 1 && usual) errors_.ttft.observe(r->summary.predicted_ttft_s, to_seconds(now - r->arrived));
  r->first_token_at = now;
  if (!breakers_.empty()) breakers_.succeeded({r->prefill, ""});
  leave_prefill(*r, now);
  count_row(*r, -1);
  r->first_token = true;
  count_row(*r, 1);
  if (r->answer.empty()) {
    r->summary.report = first.report;
    stats_.cached_local += first.report.cached_local;
    stats_.cached_remote += first.report.cached_remote;
  }
  give_token(*r, static_cast<uint32_t>(r->answer.size()), first.token, first.logprobs,
             finish_named(first.finish_reason), now, out);
}

void Conductor::on_tokens(const Received& event, const wire::Tokens& tokens, TimePoint now, Actions& out) {
  if (Node* node = node_of(event)) {
    const double kv_tokens = static_cast<double>(tokens.kv_tokens), seconds = tokens.step_ms * 1e-3;
    errors_.step.observe(node->predictor.cost().step(tokens.batch, kv_tokens), seconds);
    node->predictor.stepped(tokens.batch, kv_tokens, seconds);
    usual_stale_ = true;
    changed(*node);
  }
  for (const auto& row : tokens.rows) {
    Request* r = find(row.req, row.attempt);
    if (!r || event.instance != r->decode_instance) continue;
    if (!r->handed_over) handed_over(*r);
    give_token(*r, row.index, row.token, row.logprobs, finish_named(row.finish_reason), now, out);
  }
}

// Decode may be faster than the first token's way through another socket: tokens wait for their turn. The first may
// have to wait for the second; until then the client has heard nothing, so that a retry begins anew.
void Conductor::give_token(Request& r, uint32_t index, uint32_t token, const wire::TokenLogprobs& logprobs, Finish end,
                           TimePoint now, Actions& out) {
  if (index < r.answer.size() || index >= r.submit.stopping.max_tokens) return;
  r.early.emplace(index, std::pair(token, logprobs));
  if (end != Finish::none) r.finish = end, r.finish_index = index;
  if (options_.sched.first_with_second && r.answer.empty() && r.early.size() < 2 && r.finish == Finish::none) return;
  while (!r.early.empty() && r.early.begin()->first == r.answer.size()) {
    auto next = r.early.extract(r.early.begin());
    Reply reply;
    reply.req = r.submit.req;
    reply.kind = Reply::Kind::token;
    reply.index = next.key();
    reply.token = next.mapped().first;
    reply.logprobs = std::move(next.mapped().second);
    if (reply.index == 0) reply.summary = r.summary, reply.prompt_logprobs = std::move(r.prompt_logprobs);
    count_row(r, -1);
    r.answer.push_back(reply.token);
    count_row(r, 1);
    ++stats_.answer_tokens;
    ++tenant_counts_.at(r.tenant).tokens;
    fair_.charge(r.tenant, 1, to_seconds(now - TimePoint{}));
    out.push_back(std::move(reply));
  }
  if (r.finish != Finish::none && r.answer.size() > r.finish_index) {
    if (r.attempt == 1 && r.answer.size() > 1)
      errors_.tbt.observe(r.summary.predicted_tbt_s,
                          to_seconds(now - r.first_token_at) / static_cast<double>(r.answer.size() - 1));
    Reply reply;
    reply.kind = Reply::Kind::finished;
    reply.finish = r.finish;
    finish(r, std::move(reply), now, out);
  }
}

void Conductor::on_failed(const Received& event, const wire::Failed& message, TimePoint now, Actions& out) {
  Request* r = find(message.req, message.attempt);
  if (!r || (event.instance != r->prefill_instance && event.instance != r->decode_instance)) return;
  const Failure failure = failure_of(message);
  const bool refused = failure.stage == RequestStage::accept;
  const NodeId avoid = refused || event.instance == r->decode_instance ? r->decode : r->prefill;
  blame(*r, failure, now);
  cancel_workers(*r, CancelReason::superseded, out);
  if (refused && failure.cause == Reason::predicted_slo_miss && r->answer.empty() && r->attempt >= 2)
    return refuse_at_decode(*r, message, now, out);
  Refusal why{reason_of(failure), message.message};
  if (failure.retryable && failure.cause != Reason::too_long)
    return retry(*r, failure.stage, std::move(why), avoid, now, out);
  fail(*r, Reply::Kind::failed, failure.stage, std::move(why), now, out);
}

void Conductor::on_preempted(const Received& event, const wire::Preempted& preempted, TimePoint now, Actions& out) {
  Request* r = find(preempted.req, preempted.attempt);
  if (!r || event.instance != r->decode_instance) return;
  // Not the request's fault: preemption does not use up its attempts.
  cancel_workers(*r, CancelReason::superseded, out);
  unplace(*r, now);
  r->early.clear();
  if (!prepare(*r)) {
    park(*r, now);
    return;
  }
  ++stats_.retried;
  (void)place(*r, now, out);
}

void Conductor::cancel_workers(const Request& r, CancelReason reason, Actions& out) const {
  if (!r.placed) return;
  const wire::Cancel cancel{r.submit.req, r.attempt, std::string(to_string(reason))};
  out.push_back(Send{r.prefill, r.prefill_instance, cancel});
  out.push_back(Send{r.decode, r.decode_instance, cancel});
}

void Conductor::finish(Request& r, Reply reply, TimePoint now, Actions& out) {
  if (r.placed) unplace(r, now);
  if (r.held) {
    leave_aside(r);
    fair_.erase(r.submit.req);
  }
  timers_.erase({r.timer, r.submit.req});
  if (r.admitted) {
    fair_.leave(r.tenant);
    if (reply.kind == Reply::Kind::rejected && r.attempt == 0)  // before any work was spent on it
      fair_.refund(r.tenant, static_cast<double>(r.submit.ids.size()), to_seconds(now - TimePoint{}));
  }
  prioritised_ -= r.admitted && r.submit.priority != 0;
  if (reply.kind == Reply::Kind::finished && reply.finish == Finish::abort) {
    ++stats_.cancelled;  // how long the answer would have been is not known
  } else if (reply.kind == Reply::Kind::finished) {
    ++stats_.finished;
    lengths_.observe(static_cast<uint32_t>(r.answer.size()));
    if (r.answer.size() > 1) lengths_.observe_seconds(to_seconds(now - r.first_token_at));
  }
  reply.req = r.submit.req;
  reply.index = static_cast<uint32_t>(r.answer.size());
  reply.summary = r.summary;
  const RequestId id = r.submit.req;
  out.push_back(std::move(reply));
  requests_.erase(id);
}

// Decode nodes look at TBT alone.
void Conductor::refuse_at_decode(Request& r, const wire::Failed& failed, TimePoint now, Actions& out) {
  const Miss miss{sched::Bound::tbt, failed.predicted_ms * 1e-3, failed.allowed_ms * 1e-3};
  fail(r, Reply::Kind::rejected, RequestStage::accept,
       {Reason::predicted_slo_miss, miss.text() + " on " + r.decode + ", after its prefill", miss}, now, out);
}

Miss Conductor::miss_of(const sched::Placement& placement) {
  const sched::Verdict& v = placement.verdict;
  if (v.bound == sched::Bound::kv)
    return {.bound = v.bound, .kv_tokens = v.kv_tokens, .capacity_tokens = v.capacity_tokens};
  return {v.bound, v.predicted_s, v.allowed_s};
}

std::string Miss::text() const {
  const auto ms = [](double seconds) {
    const auto tenths = static_cast<int64_t>(std::llround(std::min(seconds, 1e9) * 1e4));
    return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " ms";
  };
  const auto whole = [](double tokens) { return std::to_string(static_cast<int64_t>(tokens)); };
  if (bound == sched::Bound::kv)
    return "predicted " + whole(kv_tokens) + " tokens of KV on the decode node, room for " + whole(capacity_tokens);
  return (bound == sched::Bound::ttft ? "predicted TTFT " : "predicted TBT ") + ms(predicted_s) + ", allowed " +
         ms(allowed_s);
}

void Conductor::fail(Request& r, Reply::Kind kind, RequestStage stage, Refusal why, TimePoint now, Actions& out) {
  const Miss& miss = why.miss;
  if (kind == Reply::Kind::rejected) ++tenant_counts_.at(r.tenant).rejected;
  ++(kind == Reply::Kind::rejected ? stats_.rejected : stats_.failed);
  Reply reply;
  reply.kind = kind;
  reply.bound = miss.bound;
  reply.predicted_ms = miss.predicted_s * 1e3;
  reply.allowed_ms = miss.allowed_s * 1e3;
  if (miss.bound != sched::Bound::none) ++stats_.missed[miss.bound];
  if (kind == Reply::Kind::rejected) {
    const double over_s = why.retry_s > 0 ? why.retry_s : miss.predicted_s - miss.allowed_s;
    reply.retry_after = from_seconds(std::max(1.0, over_s));
  }
  reply.reason = why.reason;
  reply.stage = stage;
  reply.message = std::move(why.message);
  finish(r, std::move(reply), now, out);
}

}  // namespace mc::node
