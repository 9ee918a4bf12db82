// The order of the waiting queue of several tenants that share a cluster, and the quota of each tenant.
//
//   between tenants   the lowest class first; within a class weighted fair queueing by tokens: start-time fair
//                     queueing (Goyal, Vin, Cheng, SIGCOMM 1996). A tenant whose oldest request has waited for
//                     `age_s` counts as one class better, up to the best class, so no class starves
//   within a tenant   earliest key first:  arrival + priority x age_s + stretch x work_s
//                     a request of priority p counts as arriving p x age_s later, so ageing needs no clock
//   quota             a token bucket for each tenant: a prompt is charged before it may wait, an answer as it is
//                     generated, which may leave a debt
//
// FairQueue is a pure state machine without a clock. Times are seconds from any origin and never decrease. One seed
// gives one order: the order depends on no addresses and no hashes.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"

namespace mc::sched {

/// The seconds of Line's and FairQueue's clock.
inline double seconds_of(TimePoint at) {
  return to_seconds(at - TimePoint{});
}

/// The limits that an operator sets for a tenant.
struct Tenant {
  std::string name;
  double weight = 1;          // share of the tokens, relative to other tenants of the class
  int priority = 0;           // class of the tenant; lower goes first
  double tokens_per_s = 0;    // quota; 0 = no quota
  double burst_tokens = 0;    // size of the token bucket; 0 = ten seconds of the quota
  uint32_t requests_max = 0;  // limit of unfinished requests; 0 = no limit
  double burst() const { return burst_tokens > 0 ? burst_tokens : 10 * tokens_per_s; }
};

struct FairOptions {
  double age_s = 5;    // seconds of waiting that equal one step of priority
  double stretch = 0;  // seconds of delay for each second of work; 0 = first come, first served
};

/// The stretch of `--hold-order work`: each second of work counts as so many seconds of later arrival.
inline constexpr double kWorkStretch = 10;

class FairQueue {
 public:
  static constexpr int kPriorityMax = 100;  // a request's priority counts from -100 to 100

  using Key = std::pair<double, uint64_t>;  // virtual arrival time, then order of push

  /// A request in the waiting queue.
  struct Entry {
    std::string id;
    uint32_t tenant = 0;
    int priority = 0;   // order within the tenant; lower goes first
    double tokens = 0;  // prompt tokens, which the turn charges to the tenant
    double work_s = 0;  // predicted seconds of prefill
    double arrived_s = 0;
    uint64_t order = 0;  // order among equals; set by push, kept by put_back
    double paid = 0;     // share that pop charged to the tenant
  };

  explicit FairQueue(FairOptions options = {}) : options_(options) {}

  /// Sets the tenants. Number 0 is the default tenant, which always exists; the entry named "" or "default" of
  /// `tenants` sets its limits. A tenant that is left out keeps its unfinished requests and loses its limits. Once it
  /// has none, its number may be given to a new tenant.
  void set_tenants(std::span<const Tenant> tenants);
  /// The tenant's number; 0 for an unknown name.
  uint32_t find(std::string_view name) const;
  size_t tenant_count() const { return tenants_.size(); }
  /// Number of tenants that the last set_tenants() named, without the default tenant.
  size_t named_count() const;
  const Tenant& tenant(uint32_t number) const { return tenants_.at(number).limits; }

  // ---- quota ----
  struct Refusal {
    enum class Why : uint8_t { tokens, requests } why = Why::tokens;
    double level = 0, needed = 0;  // tokens in the bucket and needed, or requests under way and allowed
    double retry_s = 0;            // seconds until the bucket holds enough; 0 = unknown
  };
  /// Admits a request of so many prompt tokens and charges them to the bucket. Each admitted request ends by one
  /// leave().
  std::optional<Refusal> admit(uint32_t tenant, double tokens, double now_s);
  /// The result of admit(), without admitting the request.
  std::optional<Refusal> refusal(uint32_t tenant, double tokens, double now_s) const;
  /// Charges generated tokens to the tenant's bucket and share.
  void charge(uint32_t tenant, double tokens, double now_s);
  /// Returns the charge for a request that was rejected before any work.
  void refund(uint32_t tenant, double tokens, double now_s);
  void leave(uint32_t tenant);
  /// Tokens in the bucket; negative = debt.
  double level(uint32_t tenant, double now_s) const;
  uint32_t unfinished(uint32_t tenant) const { return tenants_.at(tenant).unfinished; }
  double charged(uint32_t tenant) const { return tenants_.at(tenant).charged; }

  // ---- turns ----
  void push(Entry entry);
  /// False when no request of that id waits.
  bool erase(const std::string& id);
  /// Removes the request whose turn it is. The share of its tenant pays for the turn.
  std::optional<Entry> pop(double now_s);
  /// Returns a request that could not be served to its place, and returns the charged share to its tenant. Several
  /// popped requests may return in any order.
  void put_back(Entry entry);
  /// Like put_back(), for a request that cannot be served before something changes. The request has no turns until
  /// recall(), and its age does not count for its tenant. Returns its place among its tenant's requests.
  Key set_aside(Entry entry);
  void recall(const std::string& id);
  /// The place that a request which has its turn had among its tenant's requests.
  Key key(const Entry& entry) const { return {key_of(entry), entry.order}; }
  bool empty() const { return where_.empty(); }
  size_t size() const { return where_.size(); }
  size_t waiting(uint32_t tenant) const {
    return tenants_.at(tenant).entries.size() + tenants_.at(tenant).aside.size();
  }
  size_t aside() const { return aside_; }
  uint64_t pops() const { return pops_; }
  /// Predicted seconds of waiting work that would go before a new request like this one, by class and key. Other
  /// tenants of its class count with the part that fairness gives them.
  double work_before(const Entry& entry, double now_s) const;

 private:
  struct State {
    Tenant limits;
    std::map<Key, Entry> entries, aside;
    std::multiset<double> arrivals;  // arrival times of the entries
    double virtual_tokens = 0;       // start tag of the tenant's next request: tokens served / weight
    double bucket = 0, bucket_at_s = 0;
    bool metered = false;  // the bucket has been filled once
    bool named = true;     // the last set_tenants() named the tenant
    uint32_t unfinished = 0;
    double charged = 0;  // tokens charged since the start
  };
  double key_of(const Entry& entry) const;
  int class_of(const State& tenant, double now_s) const;
  void fill(State& tenant, double now_s) const;
  void pay(State& tenant, double tokens, double now_s) const;
  void give_back(Entry& entry);
  void insert(Entry entry);
  struct Where {
    uint32_t tenant = 0;
    Key key;
    bool aside = false;
  };

  FairOptions options_;
  std::vector<State> tenants_ = std::vector<State>(1);
  std::map<std::string, Where> where_;
  size_t aside_ = 0;
  uint64_t pops_ = 0;
  double virtual_now_ = 0;  // start tag of the last turn
  int best_class_ = 0;
  uint64_t pushed_ = 0;
};

}  // namespace mc::sched
