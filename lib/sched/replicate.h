// The choice of prefixes that get another copy before the next request needs it, from measured popularity.
//
// Popularity is the load from the requests of a prefix: seconds of prefill a second, which fade by half in
// `half_life_s`. A prefix needs so many nodes that each is busy with it for at most `node_share` of the time. When
// fewer nodes hold it, the prefix is copied, within a budget of bytes a second and of replicas.
//
// A prompt is counted at depths 1, 2, 3, 4, 6, 8, 12, 16, ... blocks, so a request costs few steps at any length, and
// at least two thirds of a hot prefix are found. At most `tracked` prefixes are in the table. A new prefix replaces the
// least popular one (Metwally, Agrawal, El Abbadi: space-saving, ICDT 2005) but does not inherit its load, so the
// reported load never exceeds the observed one.
//
// A pure state machine without a clock. Requests trigger copies: a prefix without requests is not examined.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>

#include "base/ids.h"
#include "sched/policy.h"

namespace mc::sched {

inline constexpr size_t kCopyBlocksMax = 4096;  // limit of one copy

struct ReplicateOptions {
  uint32_t replicas_max = 0;  // limit of prefill nodes that copies bring one prefix to; 0 = no replication
  double bytes_per_s = 0;     // budget of copies; 0 = no copies
  double burst_s = 4;         // seconds of the budget that may be spent at one time
  double half_life_s = 60;
  double node_share = 0.25;
  uint32_t copying_max = 4;  // limit of copies that run at one time
  uint32_t blocks_min = 2;   // shorter prefixes are computed as fast as they are copied
  size_t tracked = 4096;
};

class Popularity {
 public:
  explicit Popularity(ReplicateOptions options = {}) : options_(options) {}

  /// Counts a request with these reusable blocks that was placed. `work_s`: its seconds of prefill with its prefix at
  /// hand.
  void count(std::span<const BlockHash> hashes, double work_s, double now_s);

  /// The longest leading run whose load needs more than one replica.
  struct Demand {
    uint32_t blocks = 0, replicas = 1;
    double load = 0;  // mean number of nodes that the load keeps busy
  };
  Demand demand(std::span<const BlockHash> hashes, double now_s) const;
  double load(const BlockHash& hash, double now_s) const;
  /// Takes the bytes from the budget, or returns false. A copy that is larger than the budget takes a full one and
  /// leaves a debt.
  bool pay(double bytes, double now_s);
  /// Bytes in the budget; negative = debt.
  double budget_bytes(double now_s) const;
  /// Returns the bytes of a copy that was not made.
  void refund(double bytes);

  size_t tracked() const { return entries_.size(); }
  const ReplicateOptions& options() const { return options_; }
  /// The next counted depth: 1, 2, 3, 4, 6, 8, 12, ...
  static uint32_t next_depth(uint32_t depth) {
    if (depth < 3) return depth + 1;
    return (depth & (depth - 1)) == 0 ? depth / 2 * 3 : depth / 3 * 4;
  }

 private:
  struct Entry {
    double load = 0, at_s = 0;  // load as of at_s
    double order = 0;           // key in by_load_: the logarithm of the load as of time 0, which fading does not change
  };
  double faded(const Entry& entry, double now_s) const;
  double order_of(double load, double now_s) const;

  ReplicateOptions options_;
  std::map<BlockHash, Entry> entries_;
  std::set<std::pair<double, BlockHash>> by_load_;
  double bucket_bytes_ = 0, bucket_at_s_ = 0;
  bool metered_ = false;
};

/// Seconds of prefill that a request adds to the load of its prefix, assuming that the longest run that any node has or
/// will have is at hand. Copies do not take over the work of computing that run again.
double load_beside_prefix_s(const Snapshot& snapshot, const Candidate& chosen);

/// A copy worth making for a request, from the holders and nodes in the snapshot. The least busy accepting prefill node
/// that lacks the run receives it from the holder whose copy arrives first, by the learnt costs of the links. Of nodes
/// that are equally busy, the one that a copy reaches first receives it; of many, 64 nodes and for each of them 64
/// holders are compared. nullopt: enough nodes have the run, or no node can give or take it.
struct Copy {
  uint32_t target = 0;  // index into Snapshot::prefill
  uint32_t source = 0;  // index into Snapshot::holders
  uint32_t first_block = 0, end_block = 0;
};
/// `chosen`, an index in Snapshot::prefill, will have the run anyway, because the counted request goes there; -1 =
/// none. The nodes in `coming` will have it too, because a copy is on its way to them.
std::optional<Copy> plan_copy(const Snapshot& snapshot, const Popularity::Demand& demand, uint32_t replicas_max,
                              int chosen = -1, std::span<const uint32_t> coming = {});

}  // namespace mc::sched
