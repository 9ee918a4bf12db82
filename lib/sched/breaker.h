// Circuit breakers (Nygard, "Release It!", 2nd edition, 5.2): a part of the cluster that fails every request which is
// sent through it is set aside for a while, and one request at a time finds out whether it works again.
//
//   closed --`failures` in a row--> open --the back-off has passed--> half open --a success--> closed
//     ^                               ^                                   |
//     |                               '---the probe failed: twice as long-'
//     '--a success, also of a request that was placed before it opened
//
// A part is a (prefill, decode) pair, which may fail while both of its nodes work with others, or one node alone, which
// fails with every partner. A half-open part takes one request, its probe. A probe whose end shows nothing (its client
// hung up, its deadline passed in a queue) leaves the part half open for the next request. A failure of a
// request that was placed before the part opened belongs to the same incident: the back-off does not grow by it.
//
// The class reads no clock and draws from its own seeded generator, so that one seed gives one history.
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
  uint32_t failures = 3;                         // in a row that open a breaker
  Duration backoff_min = 1s, backoff_max = 60s;  // means; each back-off is spread by a quarter to both sides
};

enum class BreakerState : uint8_t { closed, open, half_open };
std::string_view to_string(BreakerState state);

/// The subject of a breaker: a pair, or one node with any partner (the other name is "").
struct Part {
  NodeId prefill, decode;
  auto operator<=>(const Part&) const = default;
};

class Breakers {
 public:
  struct Entry {
    BreakerState state = BreakerState::closed;
    uint32_t failures = 0;       // in a row
    uint32_t opened = 0;         // times in a row without a success
    TimePoint since{}, until{};  // open: from when and until when
    RequestId probe;             // half open: the request that finds out; "" = the next one will
  };
  /// A state that a part has entered; `backoff` is that of an open one.
  struct Change {
    Part part;
    BreakerState state = BreakerState::closed;
    uint32_t failures = 0;
    Duration backoff{};
  };

  Breakers() = default;
  Breakers(const BreakerOptions& options, uint64_t seed) : options_(options), rng_(seed) {}

  /// No part has failed since its last success: nothing to look up.
  bool empty() const { return entries_.empty(); }
  const std::map<Part, Entry>& entries() const { return entries_; }
  /// No request should be placed there now.
  static bool is_shut(const Entry& entry) {
    return entry.state == BreakerState::open || (entry.state == BreakerState::half_open && !entry.probe.empty());
  }

  /// A request goes through the part; it becomes the probe when the part waits for one.
  void placed(const Part& part, const RequestId& req);
  void succeeded(const Part& part);
  /// `placed_at`: when the request that failed was placed.
  void failed(const Part& part, const RequestId& req, TimePoint placed_at, TimePoint now);
  /// The request ended in a way that shows nothing about the part.
  void left(const Part& part, const RequestId& req);
  /// The node went, or another process bears its name now.
  void forget(const NodeId& node);
  /// Open parts whose back-off has passed become half open; call it at next_wakeup().
  void advance(TimePoint now);
  /// When the next part becomes half open; kNever = none will.
  TimePoint next_wakeup() const { return next_; }
  /// Changes since the last call, in order.
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
