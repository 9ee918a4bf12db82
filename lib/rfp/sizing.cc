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

}  // namespace mc::rfp
