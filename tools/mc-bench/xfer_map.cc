// The zero-copy read: what it costs to lease a block and map it, both ends' work on one thread. The
// message that asks for a lease is not in it: a reader gets its lease with its placement.
#include <algorithm>

#include "base/errors.h"
#include "kv/kv.h"
#include "xfer_ends.h"

namespace mc::bench {

Result<xfer::BenchResult> bench_map(const ClientEnd& end, const xfer::BufferInfo& remote, size_t block_bytes,
                                    Duration duration) {
  constexpr size_t kLatenciesMax = size_t{1} << 20;
  const auto& clock = SystemClock::instance();
  kv::EventLog log;
  kv::Pool pool({.page_count = static_cast<uint32_t>(std::clamp<uint64_t>(remote.length / block_bytes, 1, 1 << 20))},
                log);
  MC_TRY(pages, pool.allocate(pool.counts().total));
  kv::Leases leases(pool);
  xfer::BenchResult result;
  result.latencies.reserve(kLatenciesMax);
  unsigned seen = 0;
  const TimePoint begin = clock.now();
  for (TimePoint at = begin; at - begin < duration && result.latencies.size() < kLatenciesMax;) {
    const kv::PageIndex page = pages[result.batches % pages.size()];
    at = clock.now();
    MC_TRY(lease, leases.grant("bench", {&page, 1}, at + 1s));
    MC_TRY(view, end.engine->map(end.peer, remote.id, uint64_t{page} * block_bytes, block_bytes));
    seen += static_cast<unsigned>(view.bytes()[0]);  // the page is really there
    result.latencies.push_back(clock.now() - at);
    ++result.batches;
    MC_CHECK(leases.release(lease));
  }
  result.failed = seen == 0 ? result.batches : 0;  // the content is not all zero
  result.elapsed = clock.now() - begin;
  for (const kv::PageIndex page : pages) pool.release(page);
  return result;
}

}  // namespace mc::bench
