#include "sim/machines.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/assert.h"
#include "sim/world.h"

namespace mc::sim {
namespace {

constexpr Duration kJoin = 1s;        // for nodes to say hello
constexpr Duration kLongest = 3600s;  // the conductor's longest deadline
constexpr uint32_t kBatchMax = 4096;

// A prompt is computed in the pages that also cache.
uint64_t prompt_pages(const ClusterOptions& o) {
  return o.profile->context_tokens / kTraceBlockTokens + 2;
}

Result<void> check(const ClusterOptions& o) {
  const auto no = [](std::string what) { return Error{Code::unsupported, std::move(what)}; };
  if (o.shape.coupled > 0) return no("there is no live node that does both");
  if (o.pipeline > layers_of(*o.profile))
    return no(std::to_string(layers_of(*o.profile)) + " layers stand for all, so a pipeline has at most that many " +
              "stages, not " + std::to_string(o.pipeline));
  if (o.pipeline > 1 && o.ssd_blocks > 0) return no("a member of a live pipeline has no disk; give --ssd 0B");
  if (!o.failures.empty()) return no("failures are tested, not simulated, machine by machine");
  if (o.ssd_blocks >= UINT32_MAX) return no("a live disk has a size; give --ssd one");
  if (!o.layer_wise) return no("live nodes always send KV layer by layer");
  if (o.dram_blocks >= UINT32_MAX / o.pipeline) return no("live nodes have a number of pages; give --cache-blocks one");
  if (o.dram_blocks * o.pipeline < prompt_pages(o))
    return no("--cache-blocks " + std::to_string(o.dram_blocks) +
              " is less than a context: a live node computes in its " + "cache, and needs at least " +
              std::to_string((prompt_pages(o) + o.pipeline - 1) / o.pipeline));
  if (o.device_blocks > 0 && o.pipeline > 1) return no("a member of a live pipeline has no tier on its device");
  if (o.device_blocks >= UINT32_MAX) return no("a device has a size");
  if (o.device_blocks > 0 && o.device_blocks < prompt_pages(o))
    return no("--device-blocks " + std::to_string(o.device_blocks) +
              " is less than a context: a live node computes on its device, and needs at least " +
              std::to_string(prompt_pages(o)));
  return {};
}

WorldOptions world_of(const ClusterOptions& o) {
  const sched::Profile& p = *o.profile;
  WorldOptions w;
  w.seed = o.seed;
  w.prefill = o.shape.prefill / o.pipeline, w.decode = o.shape.decode;
  w.stages.assign(w.prefill, o.pipeline);
  w.layers = layers_of(p);
  w.block_tokens = kTraceBlockTokens;
  w.page_count = static_cast<uint32_t>(o.dram_blocks * o.pipeline);
  w.disk_blocks = static_cast<uint32_t>(o.ssd_blocks);
  w.eviction = o.eviction;
  w.device_pages = static_cast<uint32_t>(o.device_blocks);
  w.decode_pages = static_cast<uint32_t>(std::max(p.capacity.kv_tokens / kTraceBlockTokens, prompt_pages(o)));
  w.chunk_tokens = static_cast<uint32_t>(std::max<uint64_t>(1, p.chunk_tokens / kTraceBlockTokens) * kTraceBlockTokens);
  w.context_tokens = static_cast<uint32_t>(p.context_tokens);
  w.batch_max = kBatchMax;
  w.policy = o.policy->name;
  w.sched = o.sched;
  w.profile = o.profile;
  w.by_layer_bytes = o.by_layer_bytes;
  w.hold = o.hold ? node::ConductorOptions::Hold::on : node::ConductorOptions::Hold::automatic;
  w.hold_lead = from_seconds(o.hold_lead_s);
  if (o.hold_order == HoldOrder::work) w.fair.stretch = sched::kWorkStretch;
  w.tenants = o.tenants;
  w.replicate = o.replicate;
  w.events_per_check = 64;  // nodes of a real size have many pages
  w.faults.delay_min = 20us, w.faults.delay_max = 100us;
  return w;
}

std::vector<uint32_t> prompt_of(const TraceRequest& request, std::span<const uint32_t> blocks) {
  std::vector<uint32_t> ids(request.input_tokens);
  for (size_t i = 0; i < ids.size(); ++i)
    ids[i] = blocks[i / kTraceBlockTokens] * static_cast<uint32_t>(kTraceBlockTokens) +
             static_cast<uint32_t>(i % kTraceBlockTokens);
  return ids;
}

RequestRecord record_of(const World& world, const Outcome& outcome, TimePoint begin) {
  RequestRecord out;
  out.fate = fate_of(outcome);
  out.attempts = static_cast<uint16_t>(outcome.summary.attempts);
  out.end_s = to_seconds(outcome.ended - begin);
  out.predicted_ttft_s = static_cast<float>(outcome.summary.predicted_ttft_s);
  out.predicted_tbt_s = static_cast<float>(outcome.summary.predicted_tbt_s);
  if (outcome.answer.empty()) return out;
  out.prefill = world.index_of(outcome.summary.prefill);
  out.decode = world.index_of(outcome.summary.decode);
  out.ttft_s = to_seconds(outcome.first_token - outcome.submitted);
  const wire::PrefillReport& report = outcome.summary.report;
  out.prefill_s = report.compute_ms * 1e-3;
  out.fetch_wait_s = report.fetch_ms * 1e-3;
  const double fetched_ms = report.load_ms + report.fetch_ms;
  out.queue_s = outcome.summary.held_s + (report.queue_ms + std::max(fetched_ms, report.accept_ms)) * 1e-3;
  out.dram_tokens = report.cached_local - report.cached_disk, out.ssd_tokens = report.cached_disk;
  out.remote_tokens = report.cached_remote;
  std::vector<double> gaps = outcome.gaps_s;
  if (gaps.empty()) return out;
  out.mean_gap_s = std::accumulate(gaps.begin(), gaps.end(), 0.0) / static_cast<double>(gaps.size());
  const size_t longest = (gaps.size() + 9) / 10;
  std::partial_sort(gaps.begin(), gaps.begin() + static_cast<ptrdiff_t>(longest), gaps.end(), std::greater<>());
  out.tbt_s = out.heard_tbt_s =
      std::accumulate(gaps.begin(), gaps.begin() + static_cast<ptrdiff_t>(longest), 0.0) / static_cast<double>(longest);
  return out;
}

}  // namespace

Fate fate_of(const Outcome& outcome) {
  if (outcome.served()) return Fate::served;
  switch (outcome.reason) {
    case node::Reason::tenant_quota: return Fate::rejected_quota;
    case node::Reason::no_prefill:
    case node::Reason::no_decode: return Fate::rejected_node;
    case node::Reason::predicted_slo_miss:
      return outcome.bound == sched::Bound::ttft ? Fate::rejected_prefill : Fate::rejected_decode;
    default: return Fate::unfinished;
  }
}

Result<ClusterRun> run_machines(const std::vector<TraceRequest>& trace, const TraceBlocks& blocks,
                                const ClusterOptions& options) {
  MC_CHECK(check(options));
  World world(world_of(options));
  world.run_for(kJoin);
  const TimePoint begin = world.now();
  ClusterRun run;
  run.partial = true;
  run.requests.resize(trace.size());
  std::vector<RequestId> names(trace.size());
  for (size_t r = 0; r < trace.size(); ++r) {
    const TraceRequest& request = trace[r];
    const TimePoint at = begin + from_seconds(request.timestamp_ms / 1000 / options.speedup);
    if (at > world.now()) world.run_for(at - world.now());
    const uint64_t answer = std::max<uint64_t>(1, request.output_tokens);
    if (request.input_tokens + answer > options.profile->context_tokens) {
      run.requests[r].fate = Fate::rejected_length;
      continue;
    }
    node::Submit submit;
    submit.ids = prompt_of(request, blocks.of(r));
    submit.stopping.max_tokens = static_cast<uint32_t>(answer);
    submit.deadline = kLongest;
    submit.tenant = request.tenant, submit.priority = request.priority;
    names[r] = world.submit(std::move(submit));
    if (options.progress) options.progress(r + 1 - world.unended());
  }
  world.run_until_done(2 * kLongest);
  if (!world.violation().empty()) return Error{Code::corrupt, world.violation()};
  for (size_t r = 0; r < trace.size(); ++r)
    if (!names[r].empty()) {
      run.requests[r] = record_of(world, world.outcomes().at(names[r]), begin);
      run.retried += std::max<uint64_t>(1, run.requests[r].attempts) - 1;
    }
  run.span_s = trace.empty() ? 0 : trace.back().timestamp_ms / 1000 / options.speedup;
  run.end_s = to_seconds(world.now() - begin);
  run.events = world.events_run();
  const node::Flights::Stats& stats = world.conductor()->flights().stats();
  const sched::CopyOrders::Stats& copies = world.conductor()->copies().stats();
  run.held = stats.held_turn + stats.held_prefix;
  run.copies = copies.copies, run.copied_blocks = copies.blocks;
  run.copied_bytes = static_cast<double>(copies.blocks) * static_cast<double>(kTraceBlockTokens) *
                     static_cast<double>(options.profile->kv_bytes_per_token);
  return run;
}

}  // namespace mc::sim
