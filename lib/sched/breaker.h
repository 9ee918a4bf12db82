// Circuit breakers (Nygard, "Release It!", 2nd edition, 5.2). A part of the cluster that fails every request is not
// used for a while. Then one request at a time tests whether the part works again.
//
//   closed --`failures` in a row--> open --the back-off has passed--> half open --a success--> closed
//     ^                               ^                                   |
//     |                               '---the probe failed: twice as long-'
//     '--a success, also of a request that was placed before it opened
//
// A part is a (prefill, decode) pair, or one node with every partner. A pair may fail while both of its nodes work with
// others. A half-open part takes one request, its probe. A probe may end without a result, because its client hung up
// or its deadline passed in a queue. The part then stays half open for the next request. A failure of a request that
// was placed before the breaker opened belongs to the incident that opened it. Such a failure does not lengthen the
// back-off.
//
// The class reads no clock and draws from its own seeded generator, so one seed gives one history.
#pragma once

#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "base/rng.h"

namespace mc::sched {

struct BreakerOptions {
  uint32_t failures = 3;                         // failures in a row that open a breaker
  Duration backoff_min = 1s, backoff_max = 60s;  // mean values; each back-off is varied by up to a quarter
};

enum class BreakerState : uint8_t { closed, open, half_open };
std::string_view to_string(BreakerState state);

/// The subject of a breaker: a pair of nodes, or one node with every partner (the other name is "").
struct Part {
  NodeId prefill, decode;
  auto operator<=>(const Part&) const = default;
};

class Breakers {
 public:
  struct Entry {
    BreakerState state = BreakerState::closed;
    uint32_t failures = 0;       // failures in a row
    uint32_t opened = 0;         // number of openings in a row without a success
    TimePoint since{}, until{};  // open: begin and end of the back-off
    RequestId probe;             // half open: the request that tests the part; "" = the next request will
  };
  /// A state that a part has entered. `backoff` is set for an open part.
  struct Change {
    Part part;
    BreakerState state = BreakerState::closed;
    uint32_t failures = 0;
    Duration backoff{};
  };

  Breakers() = default;
  Breakers(const BreakerOptions& options, uint64_t seed) : options_(options), rng_(seed) {}

  /// Whether no part has failed since its last success.
  bool empty() const { return entries_.empty(); }
  const std::map<Part, Entry>& entries() const { return entries_; }
  /// Whether no request should be placed on the part now.
  static bool is_shut(const Entry& entry) {
    return entry.state == BreakerState::open || (entry.state == BreakerState::half_open && !entry.probe.empty());
  }

  /// A request was placed on the part. It becomes the probe when the part waits for one.
  void placed(const Part& part, const RequestId& req);
  /// True: the part may take requests again that it could not take before.
  bool succeeded(const Part& part);
  /// `placed_at`: the time at which the failed request was placed.
  void failed(const Part& part, const RequestId& req, TimePoint placed_at, TimePoint now);
  /// The request ended without a result for the part.
  void left(const Part& part, const RequestId& req);
  /// The node is gone, or another process has its name now.
  void forget(const NodeId& node);
  /// Makes open parts half open when their back-off has passed. Call it at next_wakeup().
  void advance(TimePoint now);
  /// The next time at which a part becomes half open; kNever = none.
  TimePoint next_wakeup() const { return next_; }
  /// Changes since the last call, oldest first.
  std::vector<Change> take_changes() { return std::exchange(changes_, {}); }
  bool has_changes() const { return !changes_.empty(); }
  void check() const;

 private:
  void open(const Part& part, Entry& entry, TimePoint now);
  void plan();

  BreakerOptions options_;
  Rng rng_;
  std::map<Part, Entry> entries_;  // parts that failed and have not succeeded since
  TimePoint next_ = kNever;
  std::vector<Change> changes_;
};

}  // namespace mc::sched
