#include "http/counters.h"

#include "base/assert.h"
#include "product/metric_names.h"

namespace mc::http::detail {

Counters::Counters(Metrics* metrics) {
  if (!metrics) return;
  static constexpr const char* kClasses[] = {"", "1xx", "2xx", "3xx", "4xx", "5xx"};
  connections_gauge_ = metrics->gauge(metric::kHttpConnections);
  for (size_t i = 2; i < 6; ++i) responses_counters_[i] = metrics->counter(metric::kHttpResponses, {kClasses[i]});
  for (size_t i = 0; i < kCloseReasonCount; ++i)
    closed_counters_[i] = metrics->counter(metric::kHttpClosed, {to_string(static_cast<CloseReason>(i))});
}

void Counters::set_connections(size_t count) {
  connections_.store(count, std::memory_order_relaxed);
  connections_gauge_.set(static_cast<double>(count));
}

void Counters::begin_answer() {
  add(requests_);
  streams_.fetch_add(1, std::memory_order_relaxed);
}

void Counters::end_answer() {
  MC_ASSERT_LT(0u, streams_.load(std::memory_order_relaxed));
  streams_.fetch_sub(1, std::memory_order_relaxed);
}

void Counters::count_response(int status) {
  MC_ASSERT(status >= 200 && status < 600);
  responses_counters_[static_cast<size_t>(status / 100)].add();
}

void Counters::add_closed(CloseReason reason) {
  add(closed_[static_cast<size_t>(reason)]);
  closed_counters_[static_cast<size_t>(reason)].add();
}

ServerStats Counters::stats() const {
  ServerStats stats;
  stats.connections = connections_.load(std::memory_order_relaxed);
  stats.streams = streams_.load(std::memory_order_relaxed);
  stats.accepted = accepted_.load(std::memory_order_relaxed);
  stats.requests = requests_.load(std::memory_order_relaxed);
  stats.accept_pauses = accept_pauses_.load(std::memory_order_relaxed);
  for (size_t i = 0; i < kCloseReasonCount; ++i) stats.closed[i] = closed_[i].load(std::memory_order_relaxed);
  return stats;
}

}  // namespace mc::http::detail
