// The time to get an arena ready: its pages are touched by one thread and by all threads, as small pages and (if asked)
// huge ones, and then registered with the transports. Each figure is the median of four rounds. Every second round goes
// backwards, because a later step finds memory that was just given back: so neither a drift of the machine nor warm
// pages favour one kind.
#include <algorithm>
#include <array>
#include <thread>

#include "base/histogram.h"
#include "base/parallel.h"
#include "host/transfer_flags.h"
#include "xfer_ends.h"

namespace mc::bench {
namespace {

double seconds_since(TimePoint begin) {
  return to_seconds(SystemClock::instance().now() - begin);
}

double median_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return quantile_sorted(values, .5);
}

}  // namespace

Result<Json> bench_register(const xfer::Options& options, size_t bytes) {
  struct Kind {
    bool huge, parallel;
  };
  constexpr std::array<Kind, 4> kKinds = {{{false, false}, {false, true}, {true, false}, {true, true}}};
  constexpr size_t kRounds = 4;  // even: each kind is as often before another as after it
  const auto& clock = SystemClock::instance();
  const int cores = std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 2, 64);
  Parallel one(1), all(cores);
  std::vector<double> touched[2][2], registered;  // by page kind, by threads
  MC_TRY(engine, host::open_transfers(options));
  for (size_t round = 0; round < kRounds; ++round)
    for (size_t i = 0; i < kKinds.size(); ++i) {
      const auto [huge, parallel] = kKinds[round % 2 == 0 ? i : kKinds.size() - 1 - i];
      const TimePoint begin = clock.now();
      MC_TRY(memory, mem::HostBuffer::allocate(
                         bytes, {.name = "bench", .huge_pages = huge, .prefault = parallel ? &all : &one}));
      touched[huge ? 1 : 0][parallel ? 1 : 0].push_back(seconds_since(begin));
      if (!parallel || huge) continue;
      const TimePoint start = clock.now();
      MC_TRY(buffer, engine->register_buffer(memory.bytes(), {.name = "arena", .access = xfer::AccessClass::blocks}));
      registered.push_back(seconds_since(start));
      MC_CHECK(engine->unregister(buffer, clock.now() + 30s));
    }
  Json out = Json::object({{"type", "point"}, {"transport", options.transport}, {"op", "register"}});
  out.set("size_bytes", bytes).set("threads", cores);
  out.set("prefault_serial_s", median_of(touched[0][0])).set("prefault_parallel_s", median_of(touched[0][1]));
  out.set("prefault_huge_serial_s", median_of(touched[1][0])).set("prefault_huge_parallel_s", median_of(touched[1][1]));
  out.set("register_s", median_of(registered)).set("failed", 0);
  return out;
}

}  // namespace mc::bench
