// The times of uses. A pool stamps uses with a counter and reads no clock, so this class samples the counter from time
// to time. A block whose last stamp is no later than that of a sample was not used since that sample.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/clock.h"
#include "node/shelf.h"

namespace mc::node {

class UseClock {
 public:
  static constexpr Duration kEvery = 1s;          // between two samples of a pool
  static constexpr size_t kSamplesMax = 1 << 12;  // of a pool; beyond it they are thinned out
  /// Samples of an age of T lie T / kAgeParts apart at most, or kEvery. Those of ten years are some 2,000.
  static constexpr int kAgeParts = 64;

  void look(std::span<Shelf* const> shelves, TimePoint now);
  /// The newest stamp that the pool with this number is known to have had at `at`; 0 = none is known.
  uint64_t stamp_at(uint32_t shelf, TimePoint at) const;
  /// When the use with this stamp was over at the latest; nothing for a use since the last sample.
  std::optional<TimePoint> time_of(uint32_t shelf, uint64_t stamp) const;

 private:
  struct Sample {
    TimePoint at;
    uint64_t stamp;
  };
  static void thin_out(std::vector<Sample>& samples, TimePoint now);
  std::vector<std::vector<Sample>> samples_;  // by number of the shelf; oldest first
};

}  // namespace mc::node
