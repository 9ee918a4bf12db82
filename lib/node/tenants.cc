#include "node/tenants.h"

#include "base/assert.h"

namespace mc::node {
namespace {

constexpr size_t kSessionsMax = 16384;  // sessions that are remembered

}  // namespace

void Tenants::set(std::span<const sched::Tenant> tenants) {
  sched::FairQueue& queue = line_.tenants();
  std::vector<std::string> before;
  for (uint32_t i = 0; i < queue.tenant_count(); ++i) before.push_back(queue.tenant(i).name);
  queue.set_tenants(tenants);
  MC_ASSERT_LE(before.size(), queue.tenant_count());
  counts_.resize(queue.tenant_count());
  for (uint32_t i = 1; i < before.size(); ++i) {
    if (queue.tenant(i).name == before[i]) continue;  // another tenant has its number now
    counts_[i] = {};
    std::erase_if(session_order_, [&](const auto& at) { return at.second.first == i; });
    std::erase_if(sessions_, [&](const auto& at) { return at.first.first == i; });
  }
}

std::optional<Refusal> Tenants::refusal(uint32_t tenant, double tokens, TimePoint now) const {
  const auto refused = line_.tenants().refusal(tenant, tokens, sched::seconds_of(now));
  if (!refused) return std::nullopt;
  Refusal out{Reason::tenant_quota, quota_text(tenant, *refused)};
  out.retry_s = refused->retry_s;
  return out;
}

std::optional<Refusal> Tenants::pay(const std::string& name, double tokens, TimePoint now) {
  const uint32_t tenant = find(name);
  if (auto refused = refusal(tenant, tokens, now)) return refused;
  line_.tenants().charge(tenant, tokens, sched::seconds_of(now));
  return std::nullopt;
}

std::string Tenants::quota_text(uint32_t number, const sched::FairQueue::Refusal& refusal) const {
  const sched::Tenant& tenant = line_.tenants().tenant(number);
  const auto whole = [](double v) { return std::to_string(static_cast<int64_t>(v)); };
  if (refusal.why == sched::FairQueue::Refusal::Why::requests)
    return "tenant " + tenant.name + " has " + whole(refusal.level) +
           (refusal.level == 1 ? " unfinished request" : " unfinished requests") +
           ", its limit; each of n answers counts as one";
  return "tenant " + tenant.name + " has used its " + whole(tenant.tokens_per_s) +
         " tokens/s: " + whole(refusal.level) + " tokens are left, the prompt needs " + whole(refusal.needed);
}

std::vector<Tenants::Status> Tenants::statuses(TimePoint now) const {
  const sched::FairQueue& queue = line_.tenants();
  std::vector<Status> out;
  for (uint32_t i = 0; i < queue.tenant_count(); ++i)
    out.push_back({queue.tenant(i).name, queue.waiting(i), queue.unfinished(i), queue.level(i, sched::seconds_of(now)),
                   counts_[i].tokens, counts_[i].submitted, counts_[i].rejected});
  return out;
}

void Tenants::remember_session(uint32_t tenant, const std::string& session, const NodeId& prefill) {
  if (session.empty()) return;
  auto [at, fresh] = sessions_.try_emplace({tenant, session});
  if (!fresh) session_order_.erase(at->second.second);
  at->second = {prefill, ++session_uses_};
  session_order_.emplace(session_uses_, at->first);
  MC_ASSERT_EQ(session_order_.size(), sessions_.size());
  if (sessions_.size() <= kSessionsMax) return;
  sessions_.erase(session_order_.begin()->second);
  session_order_.erase(session_order_.begin());
  MC_ASSERT_EQ(session_order_.size(), sessions_.size());
}

const NodeId& Tenants::node_of_session(uint32_t tenant, const std::string& session) const {
  static const NodeId kNone;
  if (session.empty()) return kNone;
  const auto seen = sessions_.find({tenant, session});
  return seen == sessions_.end() ? kNone : seen->second.first;
}

}  // namespace mc::node
