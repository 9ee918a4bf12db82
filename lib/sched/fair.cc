#include "sched/fair.h"

#include <algorithm>
#include <cmath>

#include "base/assert.h"

namespace mc::sched {

// ---- tenants and quotas ----------------------------------------------------------------------

void FairQueue::set_tenants(std::span<const Tenant> tenants) {
  std::vector<double> quotas;  // before
  for (State& known : tenants_) {
    quotas.push_back(known.limits.tokens_per_s);
    known.limits = Tenant{.name = known.limits.name};
    known.named = false;
  }
  tenants_[0].limits.name = "default";
  const auto name_of = [](const Tenant& given) { return given.name.empty() ? "default" : given.name; };
  for (const Tenant& given : tenants)  // tenants that stay keep their numbers
    if (const uint32_t at = find(name_of(given)); tenants_[at].limits.name == name_of(given)) tenants_[at].named = true;
  for (const Tenant& given : tenants) {
    const std::string name = name_of(given);
    auto at = std::find_if(tenants_.begin(), tenants_.end(), [&](const State& t) { return t.limits.name == name; });
    if (at == tenants_.end()) {
      const auto is_free = [](const State& t) {
        return !t.named && t.unfinished == 0 && t.entries.empty() && t.aside.empty();
      };
      at = std::find_if(tenants_.begin() + 1, tenants_.end(), is_free);
      if (at == tenants_.end()) at = tenants_.emplace(at);
      *at = State{};
      at->virtual_tokens = virtual_now_;
    }
    at->named = true;
    MC_ASSERT(given.weight > 0);
    at->limits = given;
    at->limits.name = name;
    const size_t number = static_cast<size_t>(at - tenants_.begin());
    if (number < quotas.size() && quotas[number] <= 0) at->metered = false;  // a new quota begins with a full bucket
    at->bucket = std::min(at->bucket, at->limits.burst());
  }
  best_class_ = tenants_[0].limits.priority;
  for (const State& t : tenants_) best_class_ = std::min(best_class_, t.limits.priority);
}

uint32_t FairQueue::find(std::string_view name) const {
  for (size_t i = 0; i < tenants_.size(); ++i)
    if (tenants_[i].limits.name == name) return static_cast<uint32_t>(i);
  return 0;
}

size_t FairQueue::named_count() const {
  return static_cast<size_t>(
      std::count_if(tenants_.begin() + 1, tenants_.end(), [](const State& t) { return t.named; }));
}

// A tenant without a quota has no bucket to fill and no debt.
void FairQueue::fill(State& t, double now_s) const {
  if (t.limits.tokens_per_s <= 0) return;
  if (!t.metered) t.bucket = t.limits.burst();
  t.metered = true;
  t.bucket = std::min(t.limits.burst(), t.bucket + std::max(0.0, now_s - t.bucket_at_s) * t.limits.tokens_per_s);
  t.bucket_at_s = std::max(t.bucket_at_s, now_s);
}

void FairQueue::pay(State& t, double tokens, double now_s) const {
  t.charged += tokens;
  if (t.limits.tokens_per_s <= 0) return;
  fill(t, now_s);
  t.bucket -= tokens;
}

double FairQueue::level(uint32_t tenant, double now_s) const {
  if (tenants_.at(tenant).limits.tokens_per_s <= 0) return 0;
  State t{.limits = tenants_[tenant].limits};
  t.bucket = tenants_[tenant].bucket, t.bucket_at_s = tenants_[tenant].bucket_at_s;
  t.metered = tenants_[tenant].metered;
  fill(t, now_s);
  return t.bucket;
}

std::optional<FairQueue::Refusal> FairQueue::refusal(uint32_t tenant, double tokens, double now_s) const {
  const State& t = tenants_.at(tenant);
  if (t.limits.requests_max > 0 && t.unfinished >= t.limits.requests_max)
    return Refusal{Refusal::Why::requests, static_cast<double>(t.unfinished),
                   static_cast<double>(t.limits.requests_max), 0};
  if (t.limits.tokens_per_s <= 0) return std::nullopt;
  // A prompt larger than the bucket needs a full bucket and leaves a debt.
  const double needed = std::min(tokens, t.limits.burst()), have = level(tenant, now_s);
  if (have >= needed) return std::nullopt;
  return Refusal{Refusal::Why::tokens, have, needed, (needed - have) / t.limits.tokens_per_s};
}

std::optional<FairQueue::Refusal> FairQueue::admit(uint32_t tenant, double tokens, double now_s) {
  if (auto refused = refusal(tenant, tokens, now_s)) return refused;
  State& t = tenants_.at(tenant);
  pay(t, tokens, now_s);
  ++t.unfinished;
  return std::nullopt;
}

void FairQueue::charge(uint32_t tenant, double tokens, double now_s) {
  State& t = tenants_.at(tenant);
  pay(t, tokens, now_s);
  t.virtual_tokens += tokens / t.limits.weight;
}

void FairQueue::refund(uint32_t tenant, double tokens, double now_s) {
  State& t = tenants_.at(tenant);
  t.charged -= tokens;
  if (t.limits.tokens_per_s <= 0) return;
  fill(t, now_s);
  t.bucket = std::min(t.limits.burst(), t.bucket + tokens);
}

void FairQueue::leave(uint32_t tenant) {
  MC_ASSERT_LT(0u, tenants_.at(tenant).unfinished);
  --tenants_[tenant].unfinished;
}

// ---- turns -----------------------------------------------------------------------------------

double FairQueue::key_of(const Entry& e) const {
  const int priority = std::clamp(e.priority, -kPriorityMax, kPriorityMax);
  return e.arrived_s + priority * options_.age_s + options_.stretch * e.work_s;
}

int FairQueue::class_of(const State& t, double now_s) const {
  MC_ASSERT(!t.arrivals.empty());
  const double steps = std::floor(std::max(0.0, now_s - *t.arrivals.begin()) / options_.age_s);
  return std::max(best_class_, t.limits.priority - static_cast<int>(std::min(steps, 1e6)));
}

void FairQueue::insert(Entry entry) {
  State& t = tenants_.at(entry.tenant);
  const Key key{key_of(entry), entry.order};
  const bool fresh = where_.emplace(entry.id, Where{entry.tenant, key}).second;
  MC_ASSERT(fresh);
  t.arrivals.insert(entry.arrived_s);
  t.entries.emplace(key, std::move(entry));
  MC_ASSERT_EQ(t.arrivals.size(), t.entries.size());
}

void FairQueue::push(Entry entry) {
  State& t = tenants_.at(entry.tenant);
  // A tenant that was idle cannot claim the share that it did not use.
  if (t.entries.empty() && t.aside.empty()) t.virtual_tokens = std::max(t.virtual_tokens, virtual_now_);
  entry.order = ++pushed_;
  insert(std::move(entry));
}

bool FairQueue::erase(const std::string& id) {
  const auto at = where_.find(id);
  if (at == where_.end()) return false;
  State& t = tenants_.at(at->second.tenant);
  if (at->second.aside) {
    const size_t left = t.aside.erase(at->second.key);
    MC_ASSERT(left == 1 && aside_ > 0);
    --aside_;
  } else {
    const auto entry = t.entries.find(at->second.key);
    MC_ASSERT(entry != t.entries.end());
    t.arrivals.erase(t.arrivals.find(entry->second.arrived_s));
    t.entries.erase(entry);
  }
  where_.erase(at);
  return true;
}

std::optional<FairQueue::Entry> FairQueue::pop(double now_s) {
  State* next = nullptr;
  int next_class = 0;
  for (State& t : tenants_) {
    if (t.entries.empty()) continue;
    const int its = class_of(t, now_s);
    if (next && std::pair(its, t.virtual_tokens) >= std::pair(next_class, next->virtual_tokens)) continue;
    next = &t, next_class = its;
  }
  if (!next) return std::nullopt;
  ++pops_;
  const auto first = next->entries.begin();
  Entry entry = std::move(first->second);
  next->arrivals.erase(next->arrivals.find(entry.arrived_s));
  next->entries.erase(first);
  MC_ASSERT_EQ(next->arrivals.size(), next->entries.size());
  where_.erase(entry.id);
  virtual_now_ = std::max(virtual_now_, next->virtual_tokens);
  entry.paid = entry.tokens / next->limits.weight;
  next->virtual_tokens += entry.paid;
  return entry;
}

void FairQueue::give_back(Entry& entry) {
  State& t = tenants_.at(entry.tenant);
  MC_ASSERT(entry.paid >= 0);
  t.virtual_tokens -= entry.paid;
  entry.paid = 0;
}

void FairQueue::put_back(Entry entry) {
  give_back(entry);
  MC_ASSERT_LT(uint64_t{0}, entry.order);
  insert(std::move(entry));
}

FairQueue::Key FairQueue::set_aside(Entry entry) {
  give_back(entry);
  const Key key{key_of(entry), entry.order};
  const bool fresh = where_.emplace(entry.id, Where{entry.tenant, key, true}).second;
  MC_ASSERT(fresh);
  tenants_.at(entry.tenant).aside.emplace(key, std::move(entry));
  ++aside_;
  MC_ASSERT_LE(aside_, where_.size());
  return key;
}

void FairQueue::recall(const std::string& id) {
  const auto at = where_.find(id);
  if (at == where_.end() || !at->second.aside) return;
  auto node = tenants_.at(at->second.tenant).aside.extract(at->second.key);
  MC_ASSERT(!node.empty() && aside_ > 0);
  where_.erase(at);
  --aside_;
  insert(std::move(node.mapped()));
}

double FairQueue::work_before(const Entry& entry, double now_s) const {
  const State& own = tenants_.at(entry.tenant);
  const double key = key_of(entry);
  const int own_class = own.entries.empty() ? own.limits.priority : class_of(own, now_s);
  double own_s = 0;
  for (const auto* waiting : {&own.entries, &own.aside})
    for (const auto& [at, e] : *waiting) {
      if (at.first > key) break;
      own_s += e.work_s;
    }
  double others_s = 0;
  for (const State& t : tenants_) {
    if (&t == &own || (t.entries.empty() && t.aside.empty())) continue;
    const int its = t.entries.empty() ? t.limits.priority : class_of(t, now_s);
    if (its > own_class) continue;
    double all_s = 0;
    for (const auto* waiting : {&t.entries, &t.aside})
      for (const auto& [at, e] : *waiting) all_s += e.work_s;
    const double share_s = (own_s + entry.work_s) * t.limits.weight / own.limits.weight;
    others_s += its < own_class ? all_s : std::min(all_s, share_s);
  }
  return own_s + others_s;
}

}  // namespace mc::sched
