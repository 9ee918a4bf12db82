// Peaks and useful work. See peak.h.
#include "attn/peak.h"

#include <time.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "attn/attn.h"
#include "attn/bursts.h"
#include "base/parallel.h"
#include "mem/mem.h"

namespace mc::attn {
namespace {

struct Probe {
  std::string_view variant;  // the variant with the instruction set that it needs
  const Burst* burst;
};

constexpr Probe kProbes[] = {
#if defined(__x86_64__)
    {"avx2", &kFmaAvx2},
    {"avx512", &kFmaAvx512},
    {"avx512bf16", &kDotAvx512Bf16},
#endif
    {"", nullptr},
};

double thread_seconds() {
  timespec t = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

/// Work per second of all threads together. `body` does `work` in each call, and every thread calls it until the budget
/// is spent. Times are processor time of the best call of each thread, so other processes do not count.
template <class Body>
double best_rate(Parallel& parallel, Duration budget, double work, const Body& body) {
  const TimePoint end = SystemClock::instance().now() + budget;
  std::vector<double> best(static_cast<size_t>(parallel.threads()), 0.0);
  parallel.for_each(parallel.threads(), [&](int64_t part, int) {
    do {
      const double start = thread_seconds();
      body(part);
      best[static_cast<size_t>(part)] = std::max(best[static_cast<size_t>(part)], work / (thread_seconds() - start));
    } while (SystemClock::instance().now() < end);
  });
  double sum = 0;
  for (double rate : best) sum += rate;
  return sum;
}

constexpr size_t kSweepAlign = size_t{2} << 20;

std::atomic<float> g_sink{0};  // takes the results, so that the compiler keeps the work

}  // namespace

double MachinePeak::rate(std::string_view name) const {
  for (const PeakRate& peak : rates)
    if (peak.name == name) return peak.flop_per_s;
  return 0;
}

double MachinePeak::best_flop_per_s() const {
  double best = 0;
  for (const PeakRate& peak : rates) best = std::max(best, peak.flop_per_s);
  return best;
}

std::vector<PeakRate> measure_rates(Parallel& parallel, Duration budget) {
  std::vector<PeakRate> rates;
  for (const Probe& probe : kProbes) {
    if (probe.burst == nullptr) continue;
    const auto variant = find_variant(probe.variant);
    if (!variant) continue;
    constexpr int64_t kRounds = 50'000;  // a fraction of a millisecond
    const double flop = probe.burst->flop_per_round * static_cast<double>(kRounds);
    const double rate = best_rate(parallel, budget / std::size(kProbes), flop,
                                  [&](int64_t) { g_sink.store(probe.burst->run(kRounds), std::memory_order_relaxed); });
    rates.push_back({probe.burst->name, rate});
  }
  return rates;
}

double measure_read_bandwidth(Parallel& parallel, Duration budget) {
  // The part of a thread. Last-level caches of servers hold hundreds of MiB (128 MiB a thread ran at 37 GB/s, 1 GiB at
  // 33, 64 MiB at 58). The data that a model reads in a step is larger than the caches.
  const size_t room = mem::available_bytes() / 4 / static_cast<size_t>(parallel.threads());
  const size_t share = std::clamp(room / kSweepAlign * kSweepAlign, kSweepAlign, size_t{512} << 20);
  auto buffer = mem::HostBuffer::allocate(share * static_cast<size_t>(parallel.threads()),
                                          {.name = "bandwidth probe", .huge_pages = true, .prefault = &parallel});
  if (!buffer) return 0;
  return best_rate(parallel, budget, static_cast<double>(share), [&](int64_t part) {
    const std::byte* at = buffer->data() + static_cast<size_t>(part) * share;
    uint64_t sum = 0;
    for (size_t i = 0; i < share; i += 64) {  // one word brings the line
      uint64_t word;
      std::memcpy(&word, at + i, 8);
      sum += word;
    }
    g_sink.store(static_cast<float>(sum), std::memory_order_relaxed);
  });
}

MachinePeak measure_peak(Parallel& parallel, Duration budget) {
  return {.threads = parallel.threads(),
          .rates = measure_rates(parallel, budget * 3 / 4),
          .read_bytes_per_s = measure_read_bandwidth(parallel, budget / 4)};
}

std::string_view bounding_rate(std::string_view variant, Dtype dtype) {
  if (variant == "avx512bf16") return dtype != Dtype::f32 ? "dot_avx512bf16" : "fma_avx512";
  if (variant == "avx512") return "fma_avx512";
  if (variant == "avx2") return "fma_avx2";
  return "";
}

double prefill_keys(const Mode& mode, int64_t q_begin, int64_t rows) {
  double keys = 0;
  const int64_t dense = dense_below(mode);
  for (int64_t p = std::max<int64_t>(q_begin, 0); p < q_begin + rows; ++p)
    keys += static_cast<double>(p < dense ? p + 1 - first_key(mode, p)
                                          : int64_t{mode.top_k - 1} * mode.block + p % mode.block + 1);
  return keys;
}

double prefill_flop(const Mode& mode, int32_t q_heads, int32_t head_dim, int64_t q_begin, int64_t rows) {
  return 4.0 * head_dim * q_heads * prefill_keys(mode, q_begin, rows);
}

double gate_flop(const Mode& mode, int32_t q_heads, int32_t head_dim, int64_t q_begin, int64_t rows) {
  double scores = 0;
  const int64_t dense = dense_below(mode);
  if (dense == kDenseForEver) return 0;
  for (int64_t p = std::max(q_begin, dense); p < q_begin + rows; ++p) scores += static_cast<double>(p / mode.block);
  return 2.0 * head_dim * q_heads * scores;
}

double decode_bytes(const ExtentLayout& layout, int64_t kv_len) {
  return 2.0 * static_cast<double>(layout.row_bytes()) * layout.kv_heads * static_cast<double>(kv_len);
}

}  // namespace mc::attn
