// Tenants as the conductor counts them: quotas (sched/line.h) and what each has submitted and been given; and the
// prefill node that the last request of each session went to.
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
  /// Why a request of so many prompt tokens is over its tenant's quota now.
  std::optional<Refusal> refusal(uint32_t tenant, double tokens, TimePoint now) const;
  /// Work at the door that is no request, paid in tokens of the tenant's quota; or why it may not be done.
  std::optional<Refusal> pay(const std::string& tenant, double tokens, TimePoint now);

  struct Count {
    uint64_t tokens = 0, submitted = 0, rejected = 0;  // tokens: of prompts that were placed and of answers
  };
  Count& count(uint32_t tenant) { return counts_.at(tenant); }
  /// By number; the first is whoever has no other.
  struct Status {
    std::string name;
    size_t waiting = 0;
    uint32_t unfinished = 0;
    double level = 0;                                  // of its bucket now
    uint64_t tokens = 0, submitted = 0, rejected = 0;  // as in Count
  };
  std::vector<Status> statuses(TimePoint now) const;

  void remember_session(uint32_t tenant, const std::string& session, const NodeId& prefill);
  /// Where the last request of the session went; "" = not known.
  const NodeId& node_of_session(uint32_t tenant, const std::string& session) const;

 private:
  std::string quota_text(uint32_t tenant, const sched::FairQueue::Refusal& refusal) const;

  sched::Line& line_;
  std::vector<Count> counts_;  // by number
  // The sessions used last; the oldest are forgotten.
  using SessionKey = std::pair<uint32_t, std::string>;
  std::map<SessionKey, std::pair<NodeId, uint64_t>> sessions_;
  std::map<uint64_t, SessionKey> session_order_;
  uint64_t session_uses_ = 0;
};

}  // namespace mc::node
