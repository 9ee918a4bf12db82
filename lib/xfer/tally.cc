// Makes the public snapshot from the counters.
#include "xfer/tally.h"

#include "base/assert.h"
#include "xfer/transport.h"

namespace mc::xfer {

Counters Tally::snapshot(std::span<const TransportEntry* const> table) const {
  MC_ASSERT_LE(table.size(), kTransportsMax);
  Counters out;
  for (size_t i = 0; i < table.size(); ++i) {
    const auto flow = [&](Flow what) {
      return flows_[i][static_cast<size_t>(what)].load(std::memory_order_relaxed);  // totals only
    };
    out.flows.push_back({table[i]->scheme, flow(Flow::read_bytes), flow(Flow::written_bytes), flow(Flow::served_bytes),
                         flow(Flow::landed_bytes), flow(Flow::slices)});
  }
  out.batches_submitted = get(Count::batches_submitted);
  out.batches_done = get(Count::batches_done);
  out.batches_failed = get(Count::batches_failed);
  out.batches_open = get(Count::batches_open);
  out.requests_failed = get(Count::requests_failed);
  out.checksum_failures = get(Count::checksum_failures);
  out.slices_posted = get(Count::slices_posted);
  out.slices_retried = get(Count::slices_retried);
  out.slices_in_flight = get(Count::slices_in_flight);
  out.slices_failed_over = get(Count::slices_failed_over);
  out.completions_unknown = get(Count::completions_unknown);
  out.urgent_bytes = get(Count::urgent_bytes);
  out.bulk_bytes = get(Count::bulk_bytes);
  out.quarantined_bytes = get(Count::quarantined_bytes);
  out.notifies_sent = get(Count::notifies_sent);
  out.notifies_received = get(Count::notifies_received);
  out.immediates_received = get(Count::immediates_received);
  out.connects = get(Count::connects);
  out.accepts = get(Count::accepts);
  out.streams_sealed = get(Count::streams_sealed);
  out.peers_lost = get(Count::peers_lost);
  out.peers_up = get(Count::peers_up);
  out.requests_served = get(Count::requests_served);
  out.requests_refused = get(Count::requests_refused);
  out.rdma_pairs = get(Count::rdma_pairs);
  out.rdma_sends = get(Count::rdma_sends);
  out.rdma_evictions = get(Count::rdma_evictions);
  out.rdma_wakes = get(Count::rdma_wakes);
  std::lock_guard lock(mutex_);
  out.failures.assign(failures_.begin(), failures_.end());
  return out;
}

}  // namespace mc::xfer
