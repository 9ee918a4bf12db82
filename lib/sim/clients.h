// The clients of a simulated cluster: their requests, their answers, and whether the answers keep the promises. Tokens
// equal the oracle's, each request has exactly one last reply, no reply comes long after its deadline, and no request
// is rejected for a bound that holds. Inside lib/sim only.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "sim/tag_device.h"
#include "sim/world.h"

namespace mc::sim {

class Clients {
 public:
  /// Both outlive the clients.
  Clients(const WorldOptions& options, Findings& findings) : options_(options), findings_(findings) {}

  /// Makes the next request. Tenants take turns.
  node::Submit request(std::vector<uint32_t> ids, uint32_t max_tokens, Duration deadline, std::string salt) const;
  /// Names the request and completes it. Its answer is checked from now on.
  RequestId add(node::Submit& submit, TimePoint now);
  void on_reply(const node::Reply& reply, TimePoint now);
  /// The conductor died, and the request or all requests lost their connection.
  void lose(const RequestId& req, TimePoint now);
  void lose_all(TimePoint now);
  /// The client of the request closed the connection. A request that is over does not change.
  void abort(const RequestId& req, TimePoint now);
  /// Checks a placement against the conductor's own view: a drain that it has not received yet does not bind it.
  void check_dispatch(const node::Conductor& conductor, const std::string& to, const wire::PrefillStart& start,
                      TimePoint now);

  const std::map<RequestId, Outcome>& outcomes() const { return outcomes_; }
  uint64_t unended() const { return outcomes_.size() - ended_; }

 private:
  void over(Outcome& outcome, node::Finish finish, node::Reason reason, TimePoint now);
  void check_rejection(const Outcome& outcome, const node::Reply& reply, TimePoint now);

  const WorldOptions& options_;
  Findings& findings_;
  std::map<RequestId, Outcome> outcomes_;
  uint64_t ended_ = 0;
};

}  // namespace mc::sim
