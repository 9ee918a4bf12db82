#include "node/lease_term.h"

#include "base/assert.h"

namespace mc::node {
namespace {
Duration share_of(uint32_t ttl_ms, int parts) {
  return std::max<Duration>(std::chrono::milliseconds(ttl_ms) / parts, 1ms);
}
}  // namespace

LeaseTerm::LeaseTerm(TimePoint start, uint32_t ttl_ms)
    : end_(start + std::chrono::milliseconds(ttl_ms)), ttl_ms_(ttl_ms) {}

void LeaseTerm::read_until(TimePoint limit) {
  MC_ASSERT(end_ != kNever && limit_ == kNever);
  limit_ = limit;
  renews_ = limit > end_;
  if (renews_) renew_at_ = end_ - share_of(ttl_ms_, 2);
}

std::optional<wire::LeaseRenew> LeaseTerm::renew(uint64_t lease, TimePoint now) {
  if (now < renew_at_ || now >= end_) return std::nullopt;
  renew_at_ = now + share_of(ttl_ms_, 4);
  sent_[++round_ % sent_.size()] = now;
  return wire::LeaseRenew{lease, round_, ttl_ms_};
}

/// On a slow link the answer to a renewal may come when the next one has been sent: it counts from its own.
void LeaseTerm::renewed(const wire::LeaseRenewed& answer, TimePoint now) {
  if (answer.round == 0 || answer.round > round_ || round_ - answer.round >= sent_.size()) return;
  if (answer.ttl_ms == 0) {
    end_ = std::min(end_, now);
    return;
  }
  end_ = std::max(end_, sent_[answer.round % sent_.size()] + std::chrono::milliseconds(answer.ttl_ms));
  // Near its limit in total the holder grants less than was asked for. The next renewal is not sent at once then.
  renew_at_ = end_ >= limit_ ? kNever : std::max(end_ - share_of(ttl_ms_, 2), now + share_of(ttl_ms_, 4));
}

}  // namespace mc::node
