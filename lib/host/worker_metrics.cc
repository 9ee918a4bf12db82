#include "host/worker_metrics.h"

#include <algorithm>

#include "base/assert.h"
#include "base/cli.h"
#include "node/cache.h"
#include "node/decode.h"
#include "node/prefill.h"
#include "product/metric_names.h"
#include "wire/codec.h"

namespace mc::host {

WorkerMetrics::WorkerMetrics(Metrics& metrics, const node::Worker& worker, DataPlane& data, LeaseChannels& leases)
    : metrics_(metrics), worker_(worker), data_(data), leases_(leases) {
  const auto& build = cli::build_info();
  metrics_.gauge(metric::kBuildInfo, {build.version, build.commit, build.program}).set(1);
  if (const node::Shelf* shelf = worker_.shelf()) {
    const std::string pages = std::to_string(shelf->pool.counts().total);
    metrics_
        .gauge(metric::kVllmCacheConfig,
               {std::to_string(shelf->layout.block_tokens), to_string(shelf->layout.dtype), "True", pages})
        .set(1);
    iteration_tokens_ = metrics_.histogram(metric::kVllmIterationTokens);
  }
}

void WorkerMetrics::computes(size_t tokens) {
  if (tokens > 0) iteration_tokens_.observe(static_cast<double>(tokens));  // else it only checks a prefix
}

// Machines keep totals; a counter gets what has come since the last look.
void WorkerMetrics::count(const MetricFamily& family, std::initializer_list<std::string_view> labels, uint64_t total) {
  std::string key = family.name;
  for (std::string_view label : labels) key.append("|").append(label);
  uint64_t& last = last_[key];
  metric::Counter counter = metrics_.counter(family, labels);
  if (total > last) counter.add(static_cast<double>(total - last));
  last = total;
}

void WorkerMetrics::update() {
  const wire::Load load = worker_.load();
  metrics_.gauge(metric::kVllmRunning).set(load.running);
  metrics_.gauge(metric::kVllmWaiting).set(load.waiting);
  metrics_.gauge(metric::kVllmWaitingByReason, {"capacity"}).set(load.waiting);
  metrics_.gauge(metric::kVllmWaitingByReason, {"deferred"}).set(0);
  const double pages = static_cast<double>(load.pages_free + load.pages_private + load.pages_cached);
  metrics_.gauge(metric::kVllmKvUsage).set(pages > 0 ? 1.0 - static_cast<double>(load.pages_free) / pages : 0);
  metrics_.gauge(metric::kKvBlocks, {"host", "used"}).set(static_cast<double>(load.pages_private));
  metrics_.gauge(metric::kKvBlocks, {"host", "cached"}).set(static_cast<double>(load.pages_cached));
  metrics_.gauge(metric::kKvBlocks, {"host", "free"}).set(static_cast<double>(load.pages_free));
  metrics_.gauge(metric::kKvBlocks, {"host", "leased"}).set(static_cast<double>(load.leases));
  uint64_t evicted = 0;
  for (const node::Shelf* shelf : worker_.shelves()) evicted += shelf->pool.counts().evicted_total;
  count(metric::kKvEvictions, {"host", "evicted"}, evicted);
  std::map<wire::Role, uint64_t> peers;
  for (const auto& [name, peer] : worker_.peers().all()) ++peers[peer.role];
  for (const wire::Role role : {wire::Role::prefill, wire::Role::decode, wire::Role::cache})
    metrics_.gauge(metric::kPeers, {wire::to_string(role), "ready"}).set(static_cast<double>(peers[role]));
  update_work();
  if (load.device_pages > 0) update_device(load);
  if (load.disk_capacity_bytes > 0) update_disk(load);
  update_transfers();
  update_leases();
}

void WorkerMetrics::update_device(const wire::Load& load) {
  MC_ASSERT_LE(load.device_pages_held, load.device_pages);
  metrics_.gauge(metric::kKvBlocks, {"device", "used"}).set(static_cast<double>(load.device_pages_held));
  metrics_.gauge(metric::kKvBlocks, {"device", "cached"}).set(static_cast<double>(load.device_blocks));
  metrics_.gauge(metric::kKvBlocks, {"device", "free"})
      .set(static_cast<double>(load.device_pages - load.device_pages_held));
  count(metric::kKvEvictions, {"device", "evicted"}, load.device_evicted_blocks);
  count(metric::kDeviceLoaded, {}, load.device_loaded_blocks);
}

void WorkerMetrics::update_disk(const wire::Load& load) {
  const auto& s = worker_.disk().stats();
  metrics_.gauge(metric::kKvBlocks, {"disk", "cached"}).set(static_cast<double>(load.disk_blocks));
  metrics_.gauge(metric::kSsdBytes, {"used"}).set(static_cast<double>(load.disk_bytes));
  metrics_.gauge(metric::kSsdBytes, {"capacity"}).set(static_cast<double>(load.disk_capacity_bytes));
  metrics_.gauge(metric::kSsdLost).set(load.disk_lost ? 1 : 0);
  count(metric::kKvEvictions, {"disk", "evicted"}, s.evicted_blocks);
  count(metric::kSsdMoved, {"write"}, s.written_bytes);
  count(metric::kSsdMoved, {"read"}, s.loaded_bytes);
  count(metric::kSsdFailures, {"write"}, s.write_failures);
  count(metric::kSsdFailures, {"read"}, s.load_failures);
  count(metric::kSsdFailures, {"drop"}, s.drop_failures);
  count(metric::kSsdFailures, {"maintain"}, s.maintain_failures);
  count(metric::kSsdPromoted, {}, s.promoted_blocks);
  count(metric::kSsdSpared, {}, worker_.disk().writes().spared());
}

// Counts the tokens that the role computed and the places that its blocks came from.
void WorkerMetrics::update_work() {
  const uint64_t rotten = worker_.disk().stats().checksum_failures + worker_.orders().checksum_failures();
  if (const auto* prefill = dynamic_cast<const node::Prefill*>(&worker_)) {
    const auto& s = prefill->stats();
    MC_ASSERT_LE(s.local_tokens, s.prompt_tokens);
    count(metric::kVllmPromptTokens, {}, s.prompt_tokens);
    count(metric::kVllmPrefixQueries, {}, s.prompt_tokens);
    count(metric::kVllmPrefixHits, {}, s.local_tokens);
    count(metric::kVllmExternalQueries, {}, s.prompt_tokens - s.local_tokens);
    count(metric::kVllmExternalHits, {}, s.remote_tokens);
    count(metric::kVllmPromptTokensCached, {}, s.local_tokens + s.remote_tokens);
    count(metric::kChecksumFailures, {}, s.checksum_failures + prefill->fetches().checksum_failures + rotten);
    count(metric::kFallback, {"fetch"}, prefill->fetches().failures);
    const uint32_t block_tokens = worker_.shelf()->layout.block_tokens;
    MC_ASSERT(block_tokens > 0);
    count(metric::kKvBlockHits, {"host"}, (s.local_tokens - s.disk_tokens) / block_tokens);
    count(metric::kKvBlockHits, {"disk"}, s.disk_tokens / block_tokens);
    count(metric::kKvBlockHits, {"remote"}, s.remote_tokens / block_tokens);
    metric::Histogram exposed = metrics_.histogram(metric::kXferExposed);
    s.exposed_s.after(exposed_, [&](double seconds) { exposed.observe(seconds); });
    exposed_ = s.exposed_s.count();
  } else if (const auto* decode = dynamic_cast<const node::Decode*>(&worker_)) {
    const auto& s = decode->stats();
    const auto& inlined = decode->inlined();
    MC_ASSERT_LE(inlined.cached_tokens, inlined.prompt_tokens);
    count(metric::kInlined, {}, inlined.requests);
    count(metric::kVllmPromptTokens, {}, inlined.prompt_tokens);
    count(metric::kVllmPrefixQueries, {}, inlined.prompt_tokens);
    count(metric::kVllmPrefixHits, {}, inlined.cached_tokens);
    count(metric::kVllmPromptTokensCached, {}, inlined.cached_tokens);
    count(metric::kVllmGenerationTokens, {}, s.tokens);
    count(metric::kVllmPreemptions, {}, s.preempted);
    const auto& holders = decode->from_holders();
    count(metric::kKvBlockHits, {"host"}, s.local_blocks);
    count(metric::kKvBlockHits, {"remote"}, holders.blocks);
    count(metric::kFallback, {"holder"}, holders.failures);
    count(metric::kChecksumFailures, {}, s.checksum_failures + holders.checksum_failures + rotten);
  } else {
    count(metric::kChecksumFailures, {}, rotten);
  }
}

void WorkerMetrics::update_transfers() {
  for (const auto& transfer : data_.take_transfers()) {
    metrics_.histogram(metric::kXferSeconds, {transfer.transport}).observe(transfer.seconds);
    metrics_.histogram(metric::kVllmXferTime).observe(transfer.seconds);
    metrics_.histogram(metric::kVllmXferBytes).observe(static_cast<double>(transfer.bytes));
  }
  const auto counters = data_.counters();
  metrics_.gauge(metric::kXferRdmaPairs).set(static_cast<double>(counters.rdma_pairs));
  count(metric::kXferRdmaEvictions, {}, counters.rdma_evictions);
  count(metric::kXferRdmaWakes, {}, counters.rdma_wakes);
  count(metric::kXferRdmaSends, {}, counters.rdma_sends);
  count(metric::kXferClassBytes, {"urgent"}, counters.urgent_bytes);
  count(metric::kXferClassBytes, {"bulk"}, counters.bulk_bytes);
  count(metric::kXferBatches, {"ok"}, counters.batches_done - std::min(counters.batches_done, counters.batches_failed));
  count(metric::kXferBatches, {"failed"}, counters.batches_failed);
  count(metric::kXferSlices, {"posted"}, counters.slices_posted);
  count(metric::kXferSlices, {"retried"}, counters.slices_retried);
  count(metric::kXferSlices, {"moved"}, counters.slices_failed_over);
  count(metric::kXferServed, {"ok"}, counters.requests_served);
  count(metric::kXferServed, {"refused"}, counters.requests_refused);
  count(metric::kXferNotifies, {"out"}, counters.notifies_sent);
  count(metric::kXferNotifies, {"in"}, counters.notifies_received);
  count(metric::kXferConnections, {"dialled"}, counters.connects);
  count(metric::kXferConnections, {"accepted"}, counters.accepts);
  count(metric::kXferConnections, {"up"}, counters.peers_up);
  count(metric::kXferConnections, {"lost"}, counters.peers_lost);
  metrics_.gauge(metric::kXferQuarantined).set(static_cast<double>(counters.quarantined_bytes));
  for (const auto& [reason, times] : counters.failures) count(metric::kXferFailures, {reason}, times);
  const auto reached = data_.peers_by_transport();
  for (const auto& flow : counters.flows) {
    const auto peers = reached.find(flow.transport);
    metrics_.gauge(metric::kXferPeers, {flow.transport})
        .set(peers == reached.end() ? 0 : static_cast<double>(peers->second));
    for (const wire::Role role : {wire::Role::prefill, wire::Role::decode, wire::Role::cache}) {
      const auto read = data_.read_bytes().find({flow.transport, role});
      count(metric::kXferBytes, {flow.transport, "in", wire::to_string(role)},
            read == data_.read_bytes().end() ? 0 : read->second);
    }
    count(metric::kXferBytes, {flow.transport, "out", "any"}, flow.served_bytes);
  }
}

void WorkerMetrics::update_leases() {
  node::LeaseCarrier& carrier = leases_.carrier();
  for (const auto& time : carrier.take_times())
    metrics_.histogram(metric::kLeaseSeconds, {time.by_channel ? "channel" : "control"}).observe(time.seconds);
  const auto& s = carrier.stats();
  count(metric::kLeaseRequests, {"channel"}, s.by_channel);
  count(metric::kLeaseRequests, {"control"}, s.by_control);
  count(metric::kLeaseCalls, {"served"}, s.served);
  count(metric::kLeaseCalls, {"late"}, s.late);
  count(metric::kLeaseCalls, {"refused"}, s.refused);
  count(metric::kLeaseCalls, {"repeated"}, s.repeated);
  count(metric::kLookups, {"asked"}, s.lookups_asked);
  count(metric::kLookups, {"failed"}, s.lookups_failed);
  count(metric::kLookups, {"served"}, s.lookups_served);
  count(metric::kLookups, {"read"}, leases_.tables_read());
  count(metric::kLookups, {"torn"}, leases_.reads().torn());
  count(metric::kLookups, {"touched"}, s.touches_served);
  count(metric::kLeaseRenewals, {"granted"}, s.renewals_granted);
  count(metric::kLeaseRenewals, {"refused"}, s.renewals_refused);
  const auto channels = leases_.channels();
  metrics_.gauge(metric::kLeaseChannels, {"reader"}).set(static_cast<double>(channels.to_holders));
  metrics_.gauge(metric::kLeaseChannels, {"holder"}).set(static_cast<double>(channels.from_readers));
}

}  // namespace mc::host
