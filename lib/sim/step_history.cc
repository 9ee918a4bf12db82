#include "sim/step_history.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <span>

#include "base/assert.h"

namespace mc::sim {
namespace {

/// The mean of the longest tenth of a first gap and the others, for several values of the first gap.
class LongestTenth {
 public:
  /// Reorders the others.
  explicit LongestTenth(std::span<double> others) : count_((others.size() + 10) / 10) {
    if (others.empty()) return;
    const auto last = others.begin() + static_cast<ptrdiff_t>(count_) - 1;
    std::nth_element(others.begin(), last, others.end(), std::greater<>());
    longer_s_ = std::accumulate(others.begin(), last, 0.0);
    last_s_ = *last;
  }
  double with(double first_s) const { return (longer_s_ + std::max(first_s, last_s_)) / static_cast<double>(count_); }

 private:
  size_t count_;                         // gaps in the tenth
  double longer_s_ = 0, last_s_ = -1e9;  // the sum of the others in it but for the last, and the last
};

}  // namespace

void StepHistory::add_steps(uint64_t count, double first_s, double growth_s, uint64_t rows, double seconds) {
  const bool follows = !past_.empty() && past_.back().first_step + past_.back().count == steps_ &&
                       past_.back().growth_s == growth_s &&
                       past_.back().first_s + growth_s * static_cast<double>(past_.back().count) == first_s;
  if (follows)
    past_.back().count += count;
  else
    past_.push_back({steps_, count, first_s, growth_s});
  steps_ += count;
  busy_s_ += seconds;
  row_s_ += seconds * static_cast<double>(rows);
}

void StepHistory::save(const Stay& stay) {
  auto saved = std::find_if(saved_.begin(), saved_.end(), [&](const Saved& s) { return s.request == stay.request; });
  if (saved == saved_.end()) saved = saved_.insert(saved_.end(), Saved{stay.request, stay.boundary_s, {}});
  collect(stay, saved->gaps);
}

double StepHistory::scatter(uint64_t step) const {
  const std::vector<double>& spread = profile_->step_spread;
  if (spread.empty()) return 1;
  uint64_t z = seed_ + (step + 1) * 0x9e3779b97f4a7c15ull;  // splitmix64: any step's draw without those before it
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return spread[(z ^ (z >> 31)) % spread.size()];
}

void StepHistory::collect(const Stay& stay, std::vector<double>& gaps) const {
  if (stay.first_step == stay.last_step) return;
  const size_t before = gaps.size();
  auto stretch = std::upper_bound(past_.begin(), past_.end(), stay.first_step,
                                  [](uint64_t step, const Stretch& s) { return step < s.first_step; });
  MC_ASSERT(stretch != past_.begin());
  --stretch;
  for (uint64_t step = stay.first_step; step < stay.last_step; ++stretch) {
    const uint64_t end = std::min(stay.last_step, stretch->first_step + stretch->count);
    for (; step < end; ++step)
      gaps.push_back(scatter(step) *
                     (stretch->first_s + stretch->growth_s * static_cast<double>(step - stretch->first_step)));
  }
  // A hole before a step is part of its gap for the rows that were there before it.
  auto hole = std::upper_bound(holes_.begin(), holes_.end(), stay.first_step,
                               [](uint64_t step, const Hole& h) { return step < h.step; });
  for (; hole != holes_.end() && hole->step < stay.last_step; ++hole)
    gaps[before + (hole->step - stay.first_step)] += hole->seconds;
  gaps[before] += stay.silent_s;
}

Gaps StepHistory::take_gaps(uint32_t request, double silence_s, bool without_first) {
  gaps_.clear();
  double boundary_s = -1;
  const auto saved = std::find_if(saved_.begin(), saved_.end(), [&](const Saved& s) { return s.request == request; });
  if (saved != saved_.end()) {
    gaps_ = std::move(saved->gaps);
    if (!gaps_.empty()) boundary_s = saved->boundary_s;
    saved_.erase(saved);
  }
  const auto ended = std::find_if(ended_.rbegin(), ended_.rend(), [&](const Stay& s) { return s.request == request; });
  MC_ASSERT(ended != ended_.rend());
  collect(*ended, gaps_);
  if (boundary_s < 0) boundary_s = ended->boundary_s;  // of its first joining
  ended_.erase(std::next(ended).base());
  if (silence_s > 0) gaps_.push_back(silence_s);
  Gaps out;
  if (without_first) {
    out.first_s = gaps_.front(), boundary_s = 0;
    gaps_.erase(gaps_.begin());
    if (gaps_.empty()) return out;
  }
  out.total_s = std::accumulate(gaps_.begin(), gaps_.end(), 0.0);
  out.count = gaps_.size();
  const LongestTenth longest(std::span<double>(gaps_).subspan(1));
  out.longest_s = longest.with(gaps_.front() - boundary_s);
  out.heard_s = longest.with(gaps_.front());
  return out;
}

}  // namespace mc::sim
