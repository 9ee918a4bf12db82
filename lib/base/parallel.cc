// See parallel.h. The gate lets late workers come and go freely: the caller closes it when no index
// is left and waits only for the workers that are inside, so a sleeping worker never delays a loop.
#include "base/parallel.h"

#include <algorithm>
#include <system_error>

#include "base/assert.h"
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace mc {
namespace {

/// Flush-to-zero and denormals-are-zero for the current scope.
class FlushDenormals {
 public:
#if defined(__x86_64__)
  FlushDenormals() : saved_(_mm_getcsr()) {
    _mm_setcsr(saved_ | 0x8040u);
  }
  ~FlushDenormals() {
    _mm_setcsr(saved_);
  }

 private:
  unsigned saved_;
#else
  FlushDenormals() {}
  ~FlushDenormals() {}
#endif
};

// Between two loops of one decode step lie microseconds, and at a loop's end the last range of another thread,
// tens of them; a futex wake-up costs as much. Bounded, because the cores are shared with other processes, and
// after the first microseconds whoever else wants the core gets it.
constexpr int kSpins = 200;
constexpr int kYields = 100;

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

/// Returns when value differs from `old`: a short spin, some turns for others, then a futex.
void wait_while_equal(std::atomic<uint32_t>& value, uint32_t old) {
  for (int i = 0; i < kSpins; ++i) {
    if (value.load(std::memory_order_acquire) != old) return;
    pause();
  }
  for (int i = 0; i < kYields; ++i) {
    if (value.load(std::memory_order_acquire) != old) return;
    std::this_thread::yield();
  }
  value.wait(old, std::memory_order_acquire);
}

}  // namespace

Parallel::Parallel(int threads) {
  MC_ASSERT_LE(1, threads);
  workers_.reserve(static_cast<size_t>(threads - 1));
  try {
    for (int worker = 1; worker < threads; ++worker) workers_.emplace_back([this, worker] { serve(worker); });
  } catch (const std::system_error&) {  // no destructor runs for what is not made
    stop();
    throw;
  }
}

Parallel::~Parallel() {
  stop();
}

void Parallel::stop() {
  stopping_.store(true, std::memory_order_relaxed);
  signal_.fetch_add(1, std::memory_order_release);  // pairs with the acquire in serve(): stopping_
  signal_.notify_all();
  for (std::thread& thread : workers_) thread.join();
}

void Parallel::run(int64_t count, int64_t grain, Call call, void* context) {
  MC_ASSERT_LE(1, grain);
  if (count <= 0) return;
  const FlushDenormals flushed;
  if (workers_.empty() || count <= grain) {
    for (int64_t begin = 0; begin < count; begin += grain) call(context, begin, std::min(begin + grain, count), 0);
    return;
  }
  MC_ASSERT_EQ(gate_.load(std::memory_order_relaxed), 0u);  // one loop at a time
  count_ = count;
  grain_ = grain;
  call_ = call;
  context_ = context;
  next_.store(0, std::memory_order_relaxed);
  gate_.store(1, std::memory_order_release);
  signal_.fetch_add(1, std::memory_order_release);
  signal_.notify_all();
  take_ranges(0);
  uint32_t inside = gate_.fetch_sub(1, std::memory_order_acq_rel) - 1;
  while (inside != 0) {
    wait_while_equal(gate_, inside);
    inside = gate_.load(std::memory_order_acquire);
  }
}

void Parallel::take_ranges(int worker) {
  for (;;) {
    const int64_t begin = next_.fetch_add(grain_, std::memory_order_relaxed);
    if (begin >= count_) return;
    call_(context_, begin, std::min(begin + grain_, count_), worker);
  }
}

void Parallel::serve(int worker) {
  const FlushDenormals flushed;
  uint32_t seen = 0;
  for (;;) {
    wait_while_equal(signal_, seen);
    seen = signal_.load(std::memory_order_acquire);
    if (stopping_.load(std::memory_order_relaxed)) return;
    uint32_t gate = gate_.load(std::memory_order_relaxed);
    while ((gate & 1) != 0) {
      if (!gate_.compare_exchange_weak(gate, gate + 2, std::memory_order_acquire, std::memory_order_relaxed)) continue;
      take_ranges(worker);
      if (gate_.fetch_sub(2, std::memory_order_release) == 2)
        gate_.notify_one();  // closed, and we were the last inside
      break;
    }
  }
}

}  // namespace mc
