// Replies out: tokens to their answers, ends, and the conductor's metrics.

#include <algorithm>
#include <new>

#include "base/errors.h"
#include "base/log.h"
#include "base/memory_reserve.h"
#include "product/metric_names.h"
#include "run/frontend.h"
#include "wire/codec.h"

namespace mc::run {

/// An answer grows with what its client asked for (n, log-probabilities): without memory for it, it fails alone.
/// `work` is a call of the answer's.
template <class Work>
bool Frontend::grow(Answer& answer, Work work) {
  try {
    const FailsAlone alone;
    return work();
  } catch (const std::bad_alloc&) {
    log_warn("answer given up: not enough memory");
  }
  answer.out_of_memory();
  for (const auto& req : answer.unfinished())
    if (answers_.contains(req)) loop_->deliver(node::ClientCancel{req, node::CancelReason::failed});
  return false;
}

void Frontend::on_reply(const node::Reply& reply) {
  const auto it = answers_.find(reply.req);
  if (it == answers_.end()) return;
  const std::shared_ptr<Answer> answer = it->second;
  const TimePoint now = SystemClock::instance().now();
  RequestProgress& timing = records_.running(reply.req);
  if (reply.kind == node::Reply::Kind::token) {
    if (reply.index == 0) {
      timing.first = now;
      timing.journey = reply.summary;
      log_debug("first token", {{"req", reply.req},
                                {"prefill", reply.summary.prefill},
                                {"decode", reply.summary.decode},
                                {"ttft_ms", to_ms(now - timing.submitted)}});
      const double ttft_s = to_seconds(now - timing.submitted);
      metrics_.histogram(metric::kVllmTtft).observe(ttft_s);
      metrics_.histogram(metric::kPredictedTtftError).observe(ttft_s - reply.summary.predicted_ttft_s);
      const auto& report = reply.summary.report;
      metrics_.histogram(metric::kVllmQueueTime).observe(report.queue_ms * 1e-3);
      metrics_.histogram(metric::kVllmPrefillTime).observe(report.compute_ms * 1e-3);
      metrics_.histogram(metric::kStageSeconds, {"hold"}).observe(reply.summary.held_s);
      metrics_.histogram(metric::kStageSeconds, {"queue"}).observe(report.queue_ms * 1e-3);
      metrics_.histogram(metric::kStageSeconds, {"fetch"}).observe(report.fetch_ms * 1e-3);
      metrics_.histogram(metric::kStageSeconds, {"accept"}).observe(report.accept_ms * 1e-3);
      metrics_.histogram(metric::kStageSeconds, {"prefill"}).observe(report.compute_ms * 1e-3);
      metrics_.histogram(metric::kVllmRequestComputed)
          .observe(timing.prompt_tokens - std::min(timing.prompt_tokens, report.cached_local + report.cached_remote));
      for (const wire::Miss& miss : report.misses)
        metrics_.counter(metric::kKvMiss, {wire::to_string(miss.kind)}).add(miss.block_count);
      if (report.fallback != wire::Fallback::none) metrics_.counter(metric::kFallback, {"fetch"}).add();
    } else {
      metrics_.histogram(metric::kVllmItl).observe(to_seconds(now - timing.last));
    }
    timing.last = now;
    if (!answer->is_prompt_alone()) ++timing.tokens;
    // A stop string ends the request here; the workers learn it from the conductor.
    if (grow(*answer, [&] { return answer->on_token(reply.req, reply); }))
      loop_->deliver(node::ClientCancel{reply.req, node::CancelReason::stop});
    return;
  }
  const bool failed = reply.kind == node::Reply::Kind::failed, rejected = reply.kind == node::Reply::Kind::rejected;
  const std::string reason(failed || rejected ? to_string(reply.reason) : to_string(reply.finish));
  metrics_
      .counter(metric::kRequests, {rejected                              ? "rejected"
                                   : failed                              ? "failed"
                                   : reply.finish == node::Finish::abort ? "cancelled"
                                                                         : "ok",
                                   reason})
      .add();
  if (rejected) metrics_.counter(metric::kVllmRejections, {reason}).add();
  metrics_.counter(metric::kVllmSuccess, {failed || rejected ? std::string("error") : reason}).add();
  if (!failed && !rejected) {
    metrics_.histogram(metric::kVllmE2e).observe(to_seconds(now - timing.submitted));
    metrics_.histogram(metric::kVllmRequestPrompt).observe(timing.prompt_tokens);
    metrics_.histogram(metric::kVllmRequestGeneration).observe(answer->is_prompt_alone() ? 0 : reply.index);
    metrics_.histogram(metric::kVllmRequestMaxTokens).observe(timing.max_tokens);
    if (timing.first != kNever) {
      const double decode_s = to_seconds(timing.last - timing.first);
      metrics_.histogram(metric::kVllmDecodeTime).observe(decode_s);
      metrics_.histogram(metric::kVllmInferenceTime).observe(decode_s + reply.summary.report.compute_ms * 1e-3);
      if (reply.index > 1) metrics_.histogram(metric::kVllmTpot).observe(decode_s / (reply.index - 1));
    }
  }
  for (const node::FailedAttempt& attempt : reply.summary.failed)
    log_info("request was retried", {{"req", reply.req},
                                     {"prefill", attempt.prefill},
                                     {"decode", attempt.decode},
                                     {"stage", to_string(attempt.stage)},
                                     {"why", to_string(attempt.reason)}});
  if (failed)
    log_warn("request failed", {{"req", reply.req},
                                {"x_request_id", timing.client_id},
                                {"stage", to_string(reply.stage)},
                                {"code", reason},
                                {"why", reply.message}});
  else
    log_debug("request ended", {{"req", reply.req},
                                {"x_request_id", timing.client_id},
                                {"outcome", rejected ? "rejected" : "finished"},
                                {"reason", reason},
                                {"output_tokens", timing.tokens},
                                {"total_ms", to_ms(now - timing.submitted)}});
  records_.end(reply, now);
  answers_.erase(it);
  if (!grow(*answer, [&] { return answer->on_end(reply.req, reply); })) return;
  if (!answer->failed()) metrics_.histogram(metric::kVllmRequestMaxGeneration).observe(answer->longest_choice());
  // One choice failed: the answer is an error already, the others need not run on.
  for (const auto& req : answer->unfinished())
    if (answers_.contains(req)) loop_->deliver(node::ClientCancel{req, node::CancelReason::failed});
}

void Frontend::fail_all() {
  pool_->stop();
  for (const auto& [req, answer] : std::map(answers_)) {
    node::Reply reply;
    reply.req = req;
    reply.kind = node::Reply::Kind::failed;
    reply.reason = node::Reason::draining;
    reply.stage = node::RequestStage::route;
    reply.message = "the conductor is stopping";
    on_reply(reply);
  }
}

void Frontend::update_metrics(const http::ServerStats& http) {
  std::map<std::pair<wire::Role, node::NodeState>, uint64_t> peers;
  uint64_t running = 0, waiting = 0, pages = 0, free = 0;
  for (const auto& node : conductor_.nodes(SystemClock::instance().now())) {
    ++peers[{node.role, node.state}];
    running += node.load.running, waiting += node.load.waiting;
    pages += node.load.pages_free + node.load.pages_private + node.load.pages_cached;
    free += node.load.pages_free;
  }
  for (const auto& [key, count] : peers)
    metrics_.gauge(metric::kPeers, {wire::to_string(key.first), to_string(key.second)}).set(static_cast<double>(count));
  metrics_.gauge(metric::kVllmRunning).set(static_cast<double>(running));
  // Those that wait for their turn here wait as well; the reasons sum to the whole.
  const size_t held = conductor_.line().size();
  metrics_.gauge(metric::kVllmWaiting).set(static_cast<double>(waiting + held));
  metrics_.gauge(metric::kVllmWaitingByReason, {"capacity"}).set(static_cast<double>(waiting));
  metrics_.gauge(metric::kVllmWaitingByReason, {"deferred"}).set(static_cast<double>(held));
  metrics_.gauge(metric::kVllmKvUsage).set(pages ? 1.0 - static_cast<double>(free) / static_cast<double>(pages) : 0);
  const auto& errors = conductor_.flights().prediction_errors();
  for (const auto& [what, error] : {std::pair{"ttft", &errors.ttft},
                                    {"tbt", &errors.tbt},
                                    {"prefill", &errors.prefill},
                                    {"step", &errors.step},
                                    {"read", &errors.read}}) {
    metrics_.gauge(metric::kPredictionError, {what}).set(error->mape());
    metrics_.gauge(metric::kPredictionBias, {what}).set(error->bias());
  }
  const auto& s = conductor_.flights().stats();
  const auto count = [&](const MetricFamily& family, std::initializer_list<std::string_view> labels, uint64_t total) {
    std::string key = family.name;
    for (auto label : labels) key.append("|").append(label);
    uint64_t& last = last_[key];
    metric::Counter counter = metrics_.counter(family, labels);  // made at 0, before the first event
    if (total > last) counter.add(static_cast<double>(total - last));
    last = total;
  };
  count(metric::kVllmPromptTokens, {}, s.prompt_tokens);
  count(metric::kVllmGenerationTokens, {}, s.answer_tokens);
  count(metric::kVllmPromptTokensCached, {}, s.cached_local + s.cached_remote);
  count(metric::kVllmPrefixQueries, {}, s.prompt_tokens);
  count(metric::kVllmPrefixHits, {}, s.cached_local);
  count(metric::kVllmExternalHits, {}, s.cached_remote);
  count(metric::kVllmPromptTokensBySource, {"cached"}, s.cached_local);
  count(metric::kVllmPromptTokensBySource, {"transferred"}, s.cached_remote);
  count(metric::kFallback, {"retry"}, s.retried);
  count(metric::kReplication, {}, conductor_.copies().stats().blocks);
  count(metric::kHeld, {"turn"}, s.held_turn);
  count(metric::kHeld, {"prefix"}, s.held_prefix);
  for (const auto& [bound, times] : s.missed) count(metric::kSloRejections, {sched::to_string(bound)}, times);
  count(metric::kBreakersOpened, {}, s.set_aside);
  for (const auto state : {sched::BreakerState::open, sched::BreakerState::half_open}) {
    const auto& entries = conductor_.breakers().entries();
    const auto here =
        std::count_if(entries.begin(), entries.end(), [&](const auto& e) { return e.second.state == state; });
    metrics_.gauge(metric::kBreakers, {sched::to_string(state)}).set(static_cast<double>(here));
  }
  // Tenants come from the operator's file, which bounds their number.
  for (const auto& t : conductor_.tenants().statuses(SystemClock::instance().now())) {
    metrics_.gauge(metric::kTenantUnfinished, {t.name}).set(t.unfinished);
    metrics_.gauge(metric::kTenantHeld, {t.name}).set(static_cast<double>(t.waiting));
    count(metric::kTenantTokens, {t.name}, t.tokens);
    count(metric::kTenantRequests, {t.name, "submitted"}, t.submitted);
    count(metric::kTenantRequests, {t.name, "rejected"}, t.rejected);
  }
  metrics_.gauge(metric::kHttpConnections).set(static_cast<double>(http.connections));
}

}  // namespace mc::run
