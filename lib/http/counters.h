// The counters of one server: read by any thread as ServerStats, and shown as metrics (private to lib/http).
#pragma once

#include <array>
#include <atomic>

#include "base/metrics.h"
#include "http/server.h"

namespace mc::http::detail {

/// Only the server's thread counts. Each number stands alone, so no order between them is promised.
class Counters {
 public:
  /// `metrics` may be null.
  explicit Counters(Metrics* metrics);

  void add_accepted() { add(accepted_); }
  void add_accept_pause() { add(accept_pauses_); }
  void set_connections(size_t count);
  void begin_answer();
  void end_answer();
  void count_response(int status);
  /// A socket was closed before it became a connection.
  void add_turned_away() { add(closed_[static_cast<size_t>(CloseReason::too_many)]); }
  void add_closed(CloseReason reason);
  ServerStats stats() const;

 private:
  static void add(std::atomic<uint64_t>& counter) { counter.fetch_add(1, std::memory_order_relaxed); }

  std::atomic<size_t> connections_{0}, streams_{0};
  std::atomic<uint64_t> accepted_{0}, requests_{0}, accept_pauses_{0};
  std::array<std::atomic<uint64_t>, kCloseReasonCount> closed_{};
  metric::Gauge connections_gauge_;
  std::array<metric::Counter, 6> responses_counters_;  // by the first digit of the status
  std::array<metric::Counter, kCloseReasonCount> closed_counters_;
};

}  // namespace mc::http::detail
