// The conductor's counts of tenants: quotas (sched/line.h), submitted and rejected requests, tokens. And the prefill
// node that the last request of each session used.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "node/refusal.h"
#include "sched/sched.h"

namespace mc::node {

class Tenants {
 public:
  explicit Tenants(sched::Line& line) : line_(line) {}

  void set(std::span<const sched::Tenant> tenants);
  uint32_t find(const std::string& name) const { return line_.tenants().find(name); }
  /// Why a request of so many prompt tokens would exceed its tenant's quota now; nullopt = it would not.
  std::optional<Refusal> refusal(uint32_t tenant, double tokens, TimePoint now) const;
  /// Charges work that is no request (such as tokenising) to the tenant's quota, or returns why it is refused.
  std::optional<Refusal> pay(const std::string& tenant, double tokens, TimePoint now);

  struct Count {
    uint64_t tokens = 0, submitted = 0, rejected = 0;  // tokens of placed prompts and of answers
  };
  Count& count(uint32_t tenant) { return counts_.at(tenant); }
  /// The tenants by number. The first is the default tenant.
  struct Status {
    std::string name;
    size_t waiting = 0;
    uint32_t unfinished = 0;
    double level = 0;                                  // level of the tenant's token bucket now
    uint64_t tokens = 0, submitted = 0, rejected = 0;  // see Count
  };
  std::vector<Status> statuses(TimePoint now) const;

  void remember_session(uint32_t tenant, const std::string& session, const NodeId& prefill);
  /// The node of the session's last request; "" = unknown.
  const NodeId& node_of_session(uint32_t tenant, const std::string& session) const;

 private:
  std::string quota_text(uint32_t tenant, const sched::FairQueue::Refusal& refusal) const;

  sched::Line& line_;
  std::vector<Count> counts_;  // index: number of the tenant
  // The sessions that were used last. Older ones are dropped.
  using SessionKey = std::pair<uint32_t, std::string>;
  std::map<SessionKey, std::pair<NodeId, uint64_t>> sessions_;
  std::map<uint64_t, SessionKey> session_order_;
  uint64_t session_uses_ = 0;
};

}  // namespace mc::node
