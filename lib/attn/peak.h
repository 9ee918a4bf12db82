// The machine's limits, which measurements are compared with: arithmetic peaks of each instruction set, memory read
// bandwidth, and the useful work of a call.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "attn/args.h"
#include "base/clock.h"

namespace mc {
class Parallel;
}

namespace mc::attn {

struct PeakRate {
  std::string name;       // "fma_avx512": instruction and register width
  double flop_per_s = 0;  // all threads together
};

struct MachinePeak {
  int threads = 0;
  std::vector<PeakRate> rates;  // rates that this CPU can run
  double read_bytes_per_s = 0;  // one pass over memory larger than the caches
  /// Rate by name; 0 if absent.
  double rate(std::string_view name) const;
  double best_flop_per_s() const;
};

/// Measures rates and read bandwidth. The budget covers hundreds of bursts of arithmetic and two or three passes over
/// memory, of which the best ones count.
inline constexpr Duration kPeakBudget = 400ms;
MachinePeak measure_peak(Parallel& parallel, Duration budget = kPeakBudget);
/// Measures the arithmetic peaks. Keeps all threads of the pool busy for about `budget` in all. Rates are sums over the
/// threads of the best of many short bursts in processor time, so other processes hardly count.
std::vector<PeakRate> measure_rates(Parallel& parallel, Duration budget);
/// Measures the bandwidth of reading 512 MiB a thread (less when memory is short); 0 if there is no such memory.
double measure_read_bandwidth(Parallel& parallel, Duration budget);

/// The instruction that limits a variant's tiles, as a key of MachinePeak::rate().
std::string_view bounding_rate(std::string_view variant, Dtype dtype);

/// Number of keys that the rows of one query head attend to, summed over the rows.
double prefill_keys(const Mode& mode, int64_t q_begin, int64_t rows);
/// 4 head_dim FLOP for every (query head, key) attended: two products of 2 head_dim. The gate's 2 head_dim
/// for every (query head, candidate block) is counted by gate_flop.
double prefill_flop(const Mode& mode, int32_t q_heads, int32_t head_dim, int64_t q_begin, int64_t rows);
double gate_flop(const Mode& mode, int32_t q_heads, int32_t head_dim, int64_t q_begin, int64_t rows);
/// Bytes of K and V that full decode of one sequence must read.
double decode_bytes(const ExtentLayout& layout, int64_t kv_len);

}  // namespace mc::attn
