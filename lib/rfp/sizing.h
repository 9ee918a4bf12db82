// The two parameters of remote fetching (Su et al., EuroSys 2017, section on parameter selection). R is bounded by the
// point at which fetching in vain costs the server's NIC as much as a push; F is the size of the first read. Pure
// functions over measured rates.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace mc::rfp {

/// Candidates of F, in bytes, header included.
inline constexpr std::array<uint32_t, 9> kFetchSizes = {64, 128, 256, 512, 640, 768, 1024, 1536, 2048};

/// Reads of each size that a server's NIC serves, per second.
using ReadRates = std::array<double, kFetchSizes.size()>;

/// Upper bound N of R: with r reads per call a NIC serves reads_per_s / (1 + r) calls, and pushes_per_s pushed ones, so
/// fetching is better while r < reads_per_s / pushes_per_s - 1. At least 1.
uint32_t retries_bound(double reads_per_s, double pushes_per_s);

/// Sizes of a method's responses, header included, by the smallest candidate that holds them.
class SizeCounts {
 public:
  void record(uint32_t bytes);
  /// Calls per second when the first read has kFetchSizes[choice] bytes: a longer response costs a second read.
  double rate(size_t choice, const ReadRates& rates) const;

 private:
  std::array<uint64_t, kFetchSizes.size() + 1> counts_{};
  uint64_t total_ = 0;
};

}  // namespace mc::rfp
