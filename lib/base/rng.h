// Random numbers that one seed reproduces on every platform.
//   Rng        sequential stream (xoshiro256**), for simulations, jitter and tests
//   philox_*   counter-based (Philox 4x32-10, Salmon et al., SC 2011): the value depends only on
//              (key, counter), so sampling gives the same token on whichever node it runs
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace mc {

class Rng {
 public:
  explicit Rng(uint64_t seed = 0);
  uint64_t next();
  /// Uniform in [0, bound); bound > 0. Unbiased (rejection).
  uint64_t below(uint64_t bound);
  /// Uniform in [low, high], both included.
  int64_t between(int64_t low, int64_t high);
  /// Uniform in [0, 1) with 53 bits.
  double uniform();
  /// Standard normal (Box-Muller, no cached half).
  double normal();
  /// Exponential with the given mean.
  double exponential(double mean);
  bool chance(double probability) { return uniform() < probability; }
  /// An independent stream derived from this seed and a name.
  Rng fork(std::string_view name) const;

 private:
  std::array<uint64_t, 4> state_;
  uint64_t seed_;
};

/// Four 32-bit words from a 64-bit key and a 128-bit counter.
std::array<uint32_t, 4> philox4x32(uint64_t key, uint64_t counter_low, uint64_t counter_high);
/// Uniform in [0, 1) for (seed, stream, position): the sampler's only source of randomness.
double philox_uniform(uint64_t seed, uint64_t stream, uint64_t position);
/// FNV-1a, for deriving stream numbers from names; not for tables an outsider can fill.
uint64_t fnv1a(std::string_view text);

}  // namespace mc
