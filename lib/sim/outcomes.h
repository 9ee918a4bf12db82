// The ends of the requests of a run: how many are over, and how many have missed a bound. A search for the highest rate
// stops a run at too many misses, so a request counts as missed as soon as that is certain.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/cluster.h"

namespace mc::sim {

class Outcomes {
 public:
  /// `records` has a record for each request, and outlives this object.
  Outcomes(const ClusterOptions& options, std::vector<RequestRecord>& records)
      : options_(options), records_(records), missed_(records.size()) {}

  void first_token(uint32_t r, double ttft_s);
  /// A request ends once.
  void end(uint32_t r, Fate fate, double at_s);
  uint64_t over() const { return over_; }
  uint64_t missed() const { return missed_count_; }

 private:
  void miss(uint32_t r);

  const ClusterOptions& options_;
  std::vector<RequestRecord>& records_;
  std::vector<bool> missed_;
  uint64_t over_ = 0, missed_count_ = 0;
};

}  // namespace mc::sim
