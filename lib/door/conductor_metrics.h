// The conductor's metrics: figures of each request as it goes on, and figures of the cluster a few times a second.
// Control loop's thread.
#pragma once

#include <map>
#include <string>

#include "base/metrics.h"
#include "door/request_records.h"
#include "http/server.h"
#include "node/conductor.h"

namespace mc::door {

class ConductorMetrics {
 public:
  /// The metrics outlive this.
  explicit ConductorMetrics(Metrics& metrics) : metrics_(metrics) {}

  /// A client's request with this many choices was submitted.
  void submitted(size_t choices);
  /// The conductor placed, held or refused one choice in this time.
  void decided(Duration took);
  void first_token(const RequestProgress& progress, const node::Reply& reply, TimePoint now);
  void next_token(const RequestProgress& progress, TimePoint now);
  /// The last reply. `is_prompt_alone`: the client wants no token (max_tokens 0).
  void end(const RequestProgress& progress, const node::Reply& reply, bool is_prompt_alone, TimePoint now);
  /// A whole answer is complete, and its longest choice has this many tokens.
  void longest_choice(uint32_t tokens);
  void update(const node::Conductor& conductor, const http::ServerStats& http);
  /// The text of GET /metrics. Any thread.
  std::string expose() const { return metrics_.expose(); }

 private:
  Metrics& metrics_;
  std::map<std::string, uint64_t> last_;  // totals of the last update, by metric and labels
};

}  // namespace mc::door
