#include "node/use_clock.h"

#include <algorithm>

#include "base/assert.h"

namespace mc::node {

/// Leaves out samples whose neighbours are no further apart than a small part of their age.
void UseClock::thin_out(std::vector<Sample>& samples, TimePoint now) {
  size_t kept = 1;  // the oldest one stays
  for (size_t i = 1; i < samples.size(); ++i) {
    const bool is_last = i + 1 == samples.size();
    const bool is_needed = is_last || samples[i + 1].at - samples[kept - 1].at > (now - samples[i + 1].at) / kAgeParts;
    if (is_needed) samples[kept++] = samples[i];
  }
  samples.resize(kept);
  MC_ASSERT_LT(kept, kSamplesMax);
}

void UseClock::look(std::span<Shelf* const> shelves, TimePoint now) {
  if (samples_.size() < shelves.size()) samples_.resize(shelves.size());
  for (const Shelf* shelf : shelves) {
    std::vector<Sample>& samples = samples_[shelf->number];
    const uint64_t stamp = shelf->pool.counts().uses_total;
    if (!samples.empty() && (now - samples.back().at < kEvery || stamp == samples.back().stamp)) continue;
    MC_ASSERT(samples.empty() || samples.back().stamp < stamp);
    if (samples.size() >= kSamplesMax) thin_out(samples, now);
    samples.push_back({now, stamp});
  }
}

uint64_t UseClock::stamp_at(uint32_t shelf, TimePoint at) const {
  if (shelf >= samples_.size()) return 0;
  const std::vector<Sample>& samples = samples_[shelf];
  const auto later =
      std::upper_bound(samples.begin(), samples.end(), at, [](TimePoint t, const Sample& s) { return t < s.at; });
  return later == samples.begin() ? 0 : std::prev(later)->stamp;
}

std::optional<TimePoint> UseClock::time_of(uint32_t shelf, uint64_t stamp) const {
  if (shelf >= samples_.size()) return std::nullopt;
  const auto first = std::ranges::lower_bound(samples_[shelf], stamp, {}, &Sample::stamp);
  return first == samples_[shelf].end() ? std::nullopt : std::optional(first->at);
}

}  // namespace mc::node
