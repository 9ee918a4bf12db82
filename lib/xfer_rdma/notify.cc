#include "xfer_rdma/notify.h"

#include "base/assert.h"

namespace mc::xfer {

void NotifySender::sent_on_path(std::span<const std::byte> bytes) {
  MC_ASSERT_LT(next_ - heard_, kAhead);
  MC_ASSERT(kept_.empty() || kept_.back().sequence + 1 == next_);
  kept_.push_back({next_++, {bytes.begin(), bytes.end()}});
}

bool NotifySender::heard(uint64_t count) {
  if (count > next_) return false;
  if (count < heard_) return true;  // an older message that arrived later, on the other carrier
  heard_ = count;
  while (!kept_.empty() && kept_.front().sequence < heard_) kept_.pop_front();
  MC_ASSERT_LE(kept_.size(), next_ - heard_);
  return true;
}

bool NotifyReceiver::from_path(uint64_t sequence, std::span<const std::byte> bytes) {
  // A lower number is a SEND whose repetition on the socket was faster.
  if (sequence >= next_ && sequence - next_ >= kAhead) return false;
  keep(sequence, bytes);
  return true;
}

/// The socket keeps the order, and it carries no new notify before the repetitions of lost SENDs. A repetition may have
/// any old number, because SENDs of another path overtake it while the socket is slow.
bool NotifyReceiver::from_socket(uint64_t sequence, std::span<const std::byte> bytes) {
  uint64_t expected = next_;  // delivered, or kept because delivery is not allowed yet
  while (kept_.contains(expected)) ++expected;
  if (sequence > expected) return false;
  keep(sequence, bytes);
  return true;
}

void NotifyReceiver::keep(uint64_t sequence, std::span<const std::byte> bytes) {
  if (sequence >= next_) kept_.try_emplace(sequence, bytes.begin(), bytes.end());
}

bool NotifyReceiver::take(std::vector<std::byte>& out) {
  const auto first = kept_.find(next_);
  if (first == kept_.end()) return false;
  out = std::move(first->second);
  kept_.erase(first);
  ++next_;
  MC_ASSERT_LE(told_, next_);
  MC_ASSERT(kept_.empty() || kept_.begin()->first >= next_);
  return true;
}

}  // namespace mc::xfer
