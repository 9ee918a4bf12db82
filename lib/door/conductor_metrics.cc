#include "door/conductor_metrics.h"

#include <algorithm>

#include "base/assert.h"
#include "product/metric_names.h"
#include "wire/codec.h"

namespace mc::door {
namespace {

std::map<std::string_view, size_t> links_by_rate(const node::Conductor& conductor) {
  std::map<std::string_view, size_t> out = {{"slow", 0}, {"usual", 0}, {"fast", 0}};
  for (const node::Flights::Link& link : conductor.flights().links(SystemClock::instance().now())) {
    const double slowness = link.slowness();
    ++out[slowness > 2 ? "slow" : slowness < 0.5 ? "fast" : "usual"];
  }
  return out;
}

}  // namespace

void ConductorMetrics::submitted(size_t choices) {
  metrics_.histogram(metric::kVllmRequestN).observe(static_cast<double>(choices));
}

void ConductorMetrics::decided(Duration took) {
  metrics_.histogram(metric::kRouteDecision).observe(to_seconds(took));
}

void ConductorMetrics::first_token(const RequestProgress& progress, const node::Reply& reply, TimePoint now) {
  MC_ASSERT(progress.submitted <= now);
  const double ttft_s = to_seconds(now - progress.submitted);
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
      .observe(progress.prompt_tokens - std::min(progress.prompt_tokens, report.cached_local + report.cached_remote));
  for (const wire::Miss& miss : report.misses)
    metrics_.counter(metric::kKvMiss, {wire::to_string(miss.kind)}).add(miss.block_count);
  if (report.fallback != wire::Fallback::none) metrics_.counter(metric::kFallback, {"fetch"}).add();
}

void ConductorMetrics::next_token(const RequestProgress& progress, TimePoint now) {
  MC_ASSERT(progress.last <= now);
  metrics_.histogram(metric::kVllmItl).observe(to_seconds(now - progress.last));
}

void ConductorMetrics::end(const RequestProgress& progress, const node::Reply& reply, bool is_prompt_alone,
                           TimePoint now) {
  MC_ASSERT(progress.submitted <= now);
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
    metrics_.histogram(metric::kVllmE2e).observe(to_seconds(now - progress.submitted));
    metrics_.histogram(metric::kVllmRequestPrompt).observe(progress.prompt_tokens);
    metrics_.histogram(metric::kVllmRequestGeneration).observe(is_prompt_alone ? 0 : reply.index);
    metrics_.histogram(metric::kVllmRequestMaxTokens).observe(progress.max_tokens);
    if (progress.first != kNever) {
      MC_ASSERT(progress.first <= progress.last);
      const double decode_s = to_seconds(progress.last - progress.first);
      metrics_.histogram(metric::kVllmDecodeTime).observe(decode_s);
      metrics_.histogram(metric::kVllmInferenceTime).observe(decode_s + reply.summary.report.compute_ms * 1e-3);
      if (reply.index > 1) metrics_.histogram(metric::kVllmTpot).observe(decode_s / (reply.index - 1));
    }
  }
}

void ConductorMetrics::longest_choice(uint32_t tokens) {
  metrics_.histogram(metric::kVllmRequestMaxGeneration).observe(tokens);
}

void ConductorMetrics::update(const node::Conductor& conductor, const http::ServerStats& http) {
  std::map<std::pair<wire::Role, node::NodeState>, uint64_t> peers;
  uint64_t running = 0, waiting = 0, pages = 0, free = 0;
  for (const auto& node : conductor.nodes(SystemClock::instance().now())) {
    ++peers[{node.role, node.state}];
    running += node.load.running, waiting += node.load.waiting;
    pages += node.load.pages_free + node.load.pages_private + node.load.pages_cached;
    free += node.load.pages_free;
  }
  for (const auto& [key, count] : peers)
    metrics_.gauge(metric::kPeers, {wire::to_string(key.first), to_string(key.second)}).set(static_cast<double>(count));
  metrics_.gauge(metric::kVllmRunning).set(static_cast<double>(running));
  // Requests in the conductor's line wait as well; the two reasons sum to the whole.
  const size_t held = conductor.line().size();
  metrics_.gauge(metric::kVllmWaiting).set(static_cast<double>(waiting + held));
  metrics_.gauge(metric::kVllmWaitingByReason, {"capacity"}).set(static_cast<double>(waiting));
  metrics_.gauge(metric::kVllmWaitingByReason, {"deferred"}).set(static_cast<double>(held));
  metrics_.gauge(metric::kVllmKvUsage).set(pages ? 1.0 - static_cast<double>(free) / static_cast<double>(pages) : 0);
  const auto& errors = conductor.flights().prediction_errors();
  for (const auto& [what, error] : {std::pair{"ttft", &errors.ttft},
                                    {"tbt", &errors.tbt},
                                    {"prefill", &errors.prefill},
                                    {"step", &errors.step},
                                    {"read", &errors.read}}) {
    metrics_.gauge(metric::kPredictionError, {what}).set(error->mape());
    metrics_.gauge(metric::kPredictionBias, {what}).set(error->bias());
  }
  const auto& s = conductor.flights().stats();
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
  count(metric::kVllmPromptTokensBySource, {"local_compute"}, s.computed);
  count(metric::kVllmPromptTokensBySource, {"local_cache_hit"}, s.cached_local);
  count(metric::kVllmPromptTokensBySource, {"external_kv_transfer"}, s.cached_remote);
  count(metric::kFallback, {"retry"}, s.retried);
  count(metric::kReplication, {}, conductor.copies().stats().blocks);
  count(metric::kHeld, {"turn"}, s.held_turn);
  count(metric::kHeld, {"prefix"}, s.held_prefix);
  count(metric::kInlined, {}, s.inlined);
  for (const auto& [bound, times] : s.missed) count(metric::kSloRejections, {sched::to_string(bound)}, times);
  count(metric::kBreakersOpened, {}, s.set_aside);
  for (const auto state : {sched::BreakerState::open, sched::BreakerState::half_open}) {
    const auto& entries = conductor.breakers().entries();
    const auto here =
        std::count_if(entries.begin(), entries.end(), [&](const auto& e) { return e.second.state == state; });
    metrics_.gauge(metric::kBreakers, {sched::to_string(state)}).set(static_cast<double>(here));
  }
  for (const auto& [state, pairs] : links_by_rate(conductor))
    metrics_.gauge(metric::kTransferPairs, {state}).set(static_cast<double>(pairs));
  // Tenants come from the operator's file, which bounds their number.
  for (const auto& t : conductor.tenants().statuses(SystemClock::instance().now())) {
    metrics_.gauge(metric::kTenantUnfinished, {t.name}).set(t.unfinished);
    metrics_.gauge(metric::kTenantHeld, {t.name}).set(static_cast<double>(t.waiting));
    count(metric::kTenantTokens, {t.name}, t.tokens);
    count(metric::kTenantRequests, {t.name, "submitted"}, t.submitted);
    count(metric::kTenantRequests, {t.name, "rejected"}, t.rejected);
  }
  metrics_.gauge(metric::kHttpConnections).set(static_cast<double>(http.connections));
}

}  // namespace mc::door
