// The time of one lease at its reader. A read that may outlast the lease renews it: first when half of the lease is
// over, and again when a quarter is left and the holder has not answered. So one message may be lost.
//
//   grant        renewal     again        end
//     |------------|-----------|-----------|      without an answer the reader drops its read here
//
// The reader counts a lease from the moment at which it sent the request or the renewal, so the lease ends here before
// it ends at the holder, however slow the link is. The time for which the holder kept the request waiting does not
// count. A holder of an older release does not say how long that was, and its lease seems shorter by it. Such a holder
// gives no answer to a renewal either, and the read ends with the lease then.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>

#include "base/clock.h"
#include "wire/lease_messages.h"

namespace mc::node {

class LeaseTerm {
 public:
  LeaseTerm() = default;
  /// A lease that began at `start` or later.
  LeaseTerm(TimePoint start, uint32_t ttl_ms);
  /// The lease of a grant that arrived at `now`, to a request that was sent at `asked`.
  static LeaseTerm of(const wire::LeaseGrant& grant, TimePoint asked, TimePoint now) {
    return {std::min(asked + std::chrono::milliseconds(grant.waited_ms), now), grant.ttl_ms};
  }

  /// When the lease ends, as far as the reader knows.
  TimePoint end() const { return end_; }
  /// A read has begun that the host ends by `limit` at the latest.
  void read_until(TimePoint limit);
  /// When the reader gives the read up: with a lease that was not renewed, or when the host has not ended the read.
  TimePoint give_up_at() const { return renews_ ? std::min(limit_ + kHostTime, end_) : limit_ + kHostTime; }
  /// Whether the lease of a read that depends on renewals has ended. The holder may have reused the pages.
  bool is_over(TimePoint now) const { return renews_ && now >= end_; }

  TimePoint next_renewal() const { return renew_at_; }
  /// The renewal of lease number `lease` that is due.
  std::optional<wire::LeaseRenew> renew(uint64_t lease, TimePoint now);
  void renewed(const wire::LeaseRenewed& answer, TimePoint now);

 private:
  static constexpr Duration kHostTime = 1s;  // the host ends every read; this time-out is the last resort

  TimePoint end_ = kNever, limit_ = kNever, renew_at_ = kNever;
  std::array<TimePoint, 2> sent_{};  // when the last two renewals were sent, by round
  uint32_t ttl_ms_ = 0;
  uint32_t round_ = 0;  // of the last renewal; 0 = none was sent
  bool renews_ = false;
};

}  // namespace mc::node
