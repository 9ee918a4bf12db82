// The waiting queue of several tenants that share a cluster: its order, and the quota of each tenant.
//
//   between tenants   the lowest class first; within a class weighted fair queueing by tokens: start-time fair
//                     queueing (Goyal, Vin, Cheng, SIGCOMM 1996). A tenant whose oldest request has waited for
//                     `age_s` counts as one class better, down to the best there is, so no class starves
//   within a tenant   earliest key first:  arrival + priority x age_s + stretch x work_s
//                     a request of priority p counts as having come p x age_s later: ageing without a clock
//   quota             a bucket of tokens a tenant: a prompt is paid before it may wait, an answer as it is made,
//                     which may leave a debt
//
// A pure state machine without a clock. Times are seconds of any origin and never go back.
// One seed, one order: nothing here depends on addresses or hashes.
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

/// The limits that an operator gives a tenant.
struct Tenant {
  std::string name;
  double weight = 1;          // of the tokens, against others of its class
  int priority = 0;           // its class: lower goes first
  double tokens_per_s = 0;    // quota; 0 = none
  double burst_tokens = 0;    // what the bucket holds; 0 = ten seconds of the quota
  uint32_t requests_max = 0;  // unfinished at once; 0 = any number
  double burst() const { return burst_tokens > 0 ? burst_tokens : 10 * tokens_per_s; }
};

struct FairOptions {
  double age_s = 5;    // of waiting that is worth one step of priority
  double stretch = 0;  // seconds of delay a second of work counts as; 0 = first come, first served
};

/// The stretch of `--hold-order work`: a second of work counts as so many seconds of later arrival.
inline constexpr double kWorkStretch = 10;

class FairQueue {
 public:
  static constexpr int kPriorityMax = 100;  // a request's priority counts from -100 to 100

  using Key = std::pair<double, uint64_t>;  // when it counts as having come, then in order of push

  /// A request that waits.
  struct Entry {
    std::string id;
    uint32_t tenant = 0;
    int priority = 0;   // within its tenant; lower goes first
    double tokens = 0;  // what its turn costs the tenant: prompt tokens
    double work_s = 0;  // predicted
    double arrived_s = 0;
    uint64_t order = 0;  // given by push: its place among equals, kept when it is put back
    double paid = 0;     // of its tenant's share, by pop
  };

  explicit FairQueue(FairOptions options = {}) : options_(options) {}

  /// The tenants from now on. Number 0 is always there: whoever has no other (the entry named "" or "default" of
  /// `tenants` says its limits). One that is left out keeps what it has under way, without limits; when nothing is,
  /// its number may become that of a new tenant.
  void set_tenants(std::span<const Tenant> tenants);
  /// Its number; 0 for a name that is not known.
  uint32_t find(std::string_view name) const;
  size_t tenant_count() const { return tenants_.size(); }
  /// Those that the last set_tenants() named, other than the default.
  size_t named_count() const;
  const Tenant& tenant(uint32_t number) const { return tenants_.at(number).limits; }

  // ---- quota ----
  struct Refusal {
    enum class Why : uint8_t { tokens, requests } why = Why::tokens;
    double level = 0, needed = 0;  // tokens in the bucket, or requests under way and allowed
    double retry_s = 0;            // when the bucket will hold enough; 0 = not known
  };
  /// Admits a request of so many prompt tokens, which the bucket pays now. Each admitted request ends by one leave().
  std::optional<Refusal> admit(uint32_t tenant, double tokens, double now_s);
  /// The answer of admit(), without admitting.
  std::optional<Refusal> refusal(uint32_t tenant, double tokens, double now_s) const;
  /// Tokens that were made for it; they count in its share as well.
  void charge(uint32_t tenant, double tokens, double now_s);
  /// Returns the payment of a request that was rejected before any work.
  void refund(uint32_t tenant, double tokens, double now_s);
  void leave(uint32_t tenant);
  /// Tokens in the bucket; negative = debt.
  double level(uint32_t tenant, double now_s) const;
  uint32_t unfinished(uint32_t tenant) const { return tenants_.at(tenant).unfinished; }
  double charged(uint32_t tenant) const { return tenants_.at(tenant).charged; }

  // ---- turns ----
  void push(Entry entry);
  /// False when no such request waits.
  bool erase(const std::string& id);
  /// The request that has its turn; its tenant has paid with its share.
  std::optional<Entry> pop(double now_s);
  /// The request could not be served: it returns to its place, and its tenant gets its share back. In any order after
  /// pops.
  void put_back(Entry entry);
  /// put_back() of a request that cannot be served before something changes: it has no turns until recall(), and its
  /// age does not count for its tenant. Returns its place among its tenant's requests.
  Key set_aside(Entry entry);
  void recall(const std::string& id);
  bool empty() const { return where_.empty(); }
  size_t size() const { return where_.size(); }
  size_t waiting(uint32_t tenant) const {
    return tenants_.at(tenant).entries.size() + tenants_.at(tenant).aside.size();
  }
  size_t aside() const { return aside_; }
  uint64_t pops() const { return pops_; }
  /// Predicted seconds of work that waits and would go before a new request like this one, by class and key; of
  /// other tenants of its class the part that fairness gives them.
  double work_before(const Entry& entry, double now_s) const;

 private:
  struct State {
    Tenant limits;
    std::map<Key, Entry> entries, aside;
    std::multiset<double> arrivals;  // of the entries
    double virtual_tokens = 0;       // start tag of its next request: tokens served / weight
    double bucket = 0, bucket_at_s = 0;
    bool metered = false;  // the bucket has been filled once
    bool named = true;     // by the last set_tenants()
    uint32_t unfinished = 0;
    double charged = 0;  // tokens, since the start
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
