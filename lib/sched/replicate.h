// Which prefixes deserve another copy before the next request asks for one, from measured popularity.
//
// Popularity is the load that the requests of a prefix make: seconds of prefill a second, fading by half in
// `half_life_s`. A prefix needs as many nodes as carry that load when each is busy with it for `node_share` of the
// time; where fewer hold it, it is copied, within a budget of bytes a second and of replicas.
//
// A prompt counts at depths 1, 2, 3, 4, 6, 8, 12, 16, ... blocks, so a request costs a few steps however long it is,
// and at least two thirds of a hot prefix are found. At most `tracked` prefixes are remembered: a new one takes the
// place of the least popular (Metwally, Agrawal, El Abbadi: space-saving, ICDT 2005), whose load it does not inherit,
// so that what is reported is never more than what was seen.
//
// A pure state machine: no clock. Copies follow requests: a prefix nobody asks for is not looked at.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>

#include "base/ids.h"
#include "sched/policy.h"

namespace mc::sched {

inline constexpr size_t kCopyBlocksMax = 4096;  // of one copy

struct ReplicateOptions {
  uint32_t replicas_max = 0;  // prefill nodes that may hold one prefix by our doing; 0 = no replication
  double bytes_per_s = 0;     // budget of copies; 0 = none is made
  double burst_s = 4;         // of the budget, that may be spent at once
  double half_life_s = 60;
  double node_share = 0.25;
  uint32_t copying_max = 4;  // at once
  uint32_t blocks_min = 2;   // shorter prefixes are computed as fast as they are copied
  size_t tracked = 4096;
};

class Popularity {
 public:
  explicit Popularity(ReplicateOptions options = {}) : options_(options) {}

  /// A request with these reusable blocks was placed and takes `work_s` of prefill, its prefix being at hand.
  void count(std::span<const BlockHash> hashes, double work_s, double now_s);

  /// The longest leading run whose load asks for more than one replica.
  struct Demand {
    uint32_t blocks = 0, replicas = 1;
    double load = 0;  // nodes kept busy
  };
  Demand demand(std::span<const BlockHash> hashes, double now_s) const;
  double load(const BlockHash& hash, double now_s) const;
  /// Takes the bytes from the budget, or false. More than the budget ever holds take a full one, and leave a debt.
  bool pay(double bytes, double now_s);
  /// What the budget holds; negative = debt.
  double budget_bytes(double now_s) const;
  /// The copy did not come about.
  void refund(double bytes);

  size_t tracked() const { return entries_.size(); }
  const ReplicateOptions& options() const { return options_; }
  /// 1, 2, 3, 4, 6, 8, 12, ...: the next depth that counts.
  static uint32_t next_depth(uint32_t depth) {
    if (depth < 3) return depth + 1;
    return (depth & (depth - 1)) == 0 ? depth / 2 * 3 : depth / 3 * 4;
  }

 private:
  struct Entry {
    double load = 0, at_s = 0;  // as of then
    double order = 0;           // key in by_load_: the load's logarithm as of time 0, which fading does not change
  };
  double faded(const Entry& entry, double now_s) const;
  double order_of(double load, double now_s) const;

  ReplicateOptions options_;
  std::map<BlockHash, Entry> entries_;
  std::set<std::pair<double, BlockHash>> by_load_;
  double bucket_bytes_ = 0, bucket_at_s_ = 0;
  bool metered_ = false;
};

/// Seconds of prefill that a request adds to the load of its prefix: with the longest run that anybody has, or will
/// have, at hand. Computing that again is not the load that copies carry.
double load_beside_prefix_s(const Snapshot& snapshot, const Candidate& chosen);

/// A copy worth making for a request whose holders and nodes the snapshot shows: the least busy accepting prefill
/// node that lacks the run gets it from the holder with the fewest transfers leaving. nullopt: enough have it, or
/// nobody can give or take it.
struct Copy {
  uint32_t target = 0;  // index into Snapshot::prefill
  uint32_t source = 0;  // index into Snapshot::holders
  uint32_t first_block = 0, end_block = 0;
};
/// `chosen`, of Snapshot::prefill, will have the run anyway: the request that is counted goes there. -1 = nobody. So
/// will those of `coming`: a copy is on its way to them.
std::optional<Copy> plan_copy(const Snapshot& snapshot, const Popularity::Demand& demand, uint32_t replicas_max,
                              int chosen = -1, std::span<const uint32_t> coming = {});

}  // namespace mc::sched
