#include "rfp/sizing.h"

#include <algorithm>
#include <cmath>

#include "base/assert.h"

namespace mc::rfp {

uint32_t retries_bound(double reads_per_s, double pushes_per_s) {
  if (!(reads_per_s > 0) || !(pushes_per_s > 0)) return 1;
  return static_cast<uint32_t>(std::clamp(std::ceil(reads_per_s / pushes_per_s - 1), 1.0, 1000.0));
}

void SizeCounts::record(uint32_t bytes) {
  const auto at = std::lower_bound(kFetchSizes.begin(), kFetchSizes.end(), bytes);
  ++counts_[static_cast<size_t>(at - kFetchSizes.begin())];
  ++total_;
}

double SizeCounts::rate(size_t choice, const ReadRates& rates) const {
  MC_ASSERT_LT(choice, kFetchSizes.size());
  if (total_ == 0) return 0;
  uint64_t fits = 0;
  for (size_t i = 0; i <= choice; ++i) fits += counts_[i];
  const double share = static_cast<double>(fits) / static_cast<double>(total_);
  return rates[choice] * (share + (1 - share) / 2);
}

void SizeCounts::fade() {
  total_ = 0;
  for (uint64_t& count : counts_) total_ += count /= 2;
}

FetchSizes::FetchSizes(const ReadRates& rates, TimePoint now) : rates_(rates), next_(after(now, kInterval)) {}

uint32_t FetchSizes::bytes(uint16_t method) const {
  return kFetchSizes[methods_[std::min<size_t>(method, kMethodsMax - 1)].choice];
}

void FetchSizes::choose(Method& method) const {
  if (method.counts.total() == 0) return;
  size_t best = method.choice;
  for (size_t i = 0; i < kFetchSizes.size(); ++i)
    if (method.counts.rate(i, rates_) > method.counts.rate(best, rates_)) best = i;
  if (method.counts.rate(best, rates_) > kGainMin * method.counts.rate(method.choice, rates_)) method.choice = best;
  method.counts.fade();
}

void FetchSizes::record(uint16_t method, uint32_t response_bytes, TimePoint now) {
  methods_[std::min<size_t>(method, kMethodsMax - 1)].counts.record(response_bytes);
  if (now < next_) return;
  next_ = after(now, kInterval);
  for (Method& each : methods_) choose(each);
}

}  // namespace mc::rfp
