#include "node/slow_start.h"

#include <algorithm>

#include "base/assert.h"

namespace mc::node {
namespace {
constexpr auto kWholeMs = static_cast<uint64_t>(SlowStart::kTime / 1ms);
}  // namespace

void SlowStart::take(const wire::Peers& list, TimePoint now) {
  whole_at_.clear();
  for (const wire::Peer& peer : list.peers) {
    if (peer.role != wire::Role::cache || peer.member_ms == 0) continue;
    if (peer.member_ms < kWholeMs)
      whole_at_[peer.instance] = now + std::chrono::milliseconds(kWholeMs - peer.member_ms);
  }
}

double SlowStart::part(const InstanceId& cache, TimePoint now) const {
  const auto starts = whole_at_.find(cache);
  if (starts == whole_at_.end() || now >= starts->second) return 1;
  const double left =
      static_cast<double>((starts->second - now).count()) / static_cast<double>(Duration(kTime).count());
  const double part = std::max(kFirstPart, 1 - left);
  MC_ASSERT(part > 0 && part <= 1);
  return part;
}

}  // namespace mc::node
