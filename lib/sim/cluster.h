// A cluster that serves a trace, as discrete events under one seed. The scheduler is the live conductor's own: its
// board, waiting queue, copies, policies and admissions (lib/sched), put together by Router. Simulated are the nodes,
// with the costs of a sched::Profile:
//
//   prefill   a queue a node, first in, first out among those whose prefix is there; groups of nodes as pipelines
//             of layer ranges, chunk by chunk (arXiv:2407.00079, 5.1)
//   caches    DRAM before SSD, blocks readable when computed, fetches from several nodes at once, as a whole or by
//             layers
//   network   a link out of and into each node, shared by its transfers; KV leaves layer by layer (5.2)
//   decode    continuous batching, joins at step boundaries, VRAM bound
//   coupled   nodes that do both, prefill first or in chunks beside decoding (vLLM's two ways)
//   failures  nodes that die, and come back empty
//
// World (sim/world.h) runs the production state machines message by message. Here an hour of trace takes about a
// second. Equal traces, options and seeds give equal bytes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "kv/eviction.h"
#include "sched/hold_order.h"
#include "sched/sched.h"
#include "sim/paper.h"
#include "sim/trace.h"

namespace mc::sim {

inline constexpr uint32_t kClusterNodesMax = 4096;
inline constexpr uint32_t kLayersMax = 4;  // of KV that stand for all layers of a model, as on costed nodes

/// 8p8d: prefill and decode nodes. 16m: coupled ("mixed") nodes, as the papers write it.
struct ClusterShape {
  uint32_t prefill = 0, decode = 0, coupled = 0;
  std::string text() const;
};
/// Code::invalid with the text quoted.
Result<ClusterShape> parse_cluster(std::string_view text);

/// p3@120s, d0@1m-5m: a node dies, and perhaps comes back empty.
struct NodeFailure {
  char role = 'p';  // p, d or m
  uint32_t index = 0;
  double at_s = 0, back_s = std::numeric_limits<double>::infinity();
};
Result<NodeFailure> parse_failure(std::string_view text, const ClusterShape& shape);

enum class CoupledWay : uint8_t { prefill_first, chunked };

/// The order of held requests of a tenant: mc-conductor's --hold-order.
using sched::HoldOrder;
std::string_view to_string(HoldOrder order);

/// Layers in which the KV of a model of this profile moves.
inline uint32_t layers_of(const sched::Profile& profile) {
  return static_cast<uint32_t>(std::min<uint64_t>(kLayersMax, profile.layers));
}

struct ClusterOptions {
  ClusterShape shape;
  const sched::Profile* profile = nullptr;
  const sched::Policy* policy = nullptr;
  sched::Options sched;  // with admission, and both bounds, by which a request counts as good
  /// When the pair of nodes is chosen: at arrival as in the papers, or not before a prefill node is about to be free,
  /// as under mc-conductor's --hold. Tenants and priorities make requests wait for their turn as well.
  bool hold = false;
  HoldOrder hold_order = HoldOrder::arrival;
  double hold_lead_s = 0.3;                  // queue of a node below which it is given held requests
  uint32_t pipeline = 1;                     // prefill nodes to a group
  uint64_t dram_blocks = 0, ssd_blocks = 0;  // of each prefill or coupled node, 512 tokens each
  uint64_t device_blocks = 0;                // on each node's device, as a tier over the others; 0: none. Machines only
  const kv::Eviction* eviction = &kv::kLruTail;  // order in which blocks leave memory; another one: machines only
  bool layer_wise = true;                        // KV leaves while it is computed
  uint64_t by_layer_bytes = UINT64_MAX;          // node::PrefillOptions::by_layer_bytes; not in a pipeline
  CoupledWay coupled_way = CoupledWay::chunked;
  uint32_t coupled_chunk_tokens = 512;
  double speedup = 1;
  double sample_s = 15;
  std::vector<NodeFailure> failures;
  std::vector<sched::Tenant> tenants;  // by TraceRequest::tenant; others are the default one's, without limits
  sched::ReplicateOptions replicate;   // not of coupled nodes, which do not read each other's caches
  uint64_t seed = 0;
  uint32_t force = UINT32_MAX;  // a request that no admission rejects, to see how it would have ended
  bool keep_samples = true;
  uint64_t misses_max = UINT64_MAX;             // the run ends, unfinished, when more requests are known not to be good
  std::function<void(uint64_t over)> progress;  // called every few thousand events
};

enum class Fate : uint8_t {
  unfinished,
  served,
  rejected_prefill,  // TTFT bound, before any work
  rejected_decode,   // TBT bound, before any work
  rejected_after,    // TBT bound, when its prefill was done
  rejected_node,     // no node of a role was up; a retried request waits ten seconds for one
  rejected_length,   // longer than the context, with its answer
  rejected_quota,    // its tenant had used up its quota
};
std::string_view to_string(Fate fate);

struct RequestRecord {
  Fate fate = Fate::unfinished;
  uint16_t attempts = 0;
  uint32_t prefill = 0, decode = 0;  // node numbers, when dispatched
  float predicted_ttft_s = 0, predicted_tbt_s = 0;
  double ttft_s = 0;                     // arrival to the first token
  double tbt_s = 0;                      // mean of the longest tenth of its gaps, hand-off included; 0: one token
  double heard_tbt_s = 0;                // with the wait for a step boundary, as its client hears it
  double mean_gap_s = 0;                 // between tokens
  double handoff_s = 0;                  // first token to joining the batch
  double end_s = 0;                      // time of the trace at which it was over
  double prefill_s = 0;                  // of a GPU, all attempts
  double queue_s = 0, fetch_wait_s = 0;  // arrival to compute, of that waiting for the prefix
  uint32_t dram_tokens = 0, ssd_tokens = 0, remote_tokens = 0;  // of the prompt, reused
};

struct NodeSample {
  float at_s = 0, load = 0, queue_s = 0;  // load: predicted TTFT or TBT over its bound
  uint32_t rows = 0, kv_tokens = 0;
};

struct ClusterRun {
  std::vector<RequestRecord> requests;
  /// Unknown are hand-off, wasted GPU seconds, busy time, batches, fetches, bytes moved, preemptions and which copies
  /// were used (run_machines).
  bool partial = false;
  double span_s = 0, end_s = 0;  // last arrival, end of all
  double prefill_busy_s = 0;     // of all nodes
  double moved_bytes = 0;
  uint64_t fetches = 0, retried = 0, preempted = 0, events = 0, rows_max = 0;
  uint64_t held = 0;                                 // requests that waited for their turn
  uint64_t copies = 0, copied_blocks = 0;            // of hot prefixes, ahead of demand
  uint64_t copies_used = 0, copied_blocks_used = 0;  // by a later request, on the node they went to
  double copied_bytes = 0;
  double row_s = 0, decode_busy_s = 0;
  std::vector<std::string> nodes;  // names of the sampled ones, prefill then decode or coupled
  std::vector<std::vector<NodeSample>> samples;
  std::vector<uint32_t> replica_ranks;          // popularity ranks watched
  std::vector<std::vector<uint32_t>> replicas;  // [sample][rank]
};

ClusterRun run_cluster(const std::vector<TraceRequest>& trace, const TraceBlocks& blocks,
                       const ClusterOptions& options);

/// Figures of requests that have something in common.
struct GroupFigures {
  std::string name;
  uint64_t requests = 0, served = 0, good = 0, rejected = 0, rejected_quota = 0;
  double goodput_per_s = 0, effective = 0;
  double share = 0;  // of the prompt and answer tokens of all that were served
  Percentiles ttft_s;
};

/// The figures of a run.
struct ClusterFigures {
  uint64_t requests = 0, served = 0, good = 0;  // good: served within both bounds
  uint64_t rejected_prefill = 0, rejected_decode = 0, rejected_after = 0, rejected_node = 0, rejected_length = 0;
  uint64_t rejected_quota = 0;
  double goodput_per_s = 0, goodput_low = 0, goodput_high = 0;  // with 95 % by bootstrap; 0: all came at once
  double effective = 0;                                         // good / requests
  double ttft_ok = 0, tbt_ok = 0;                               // share of served
  Percentiles ttft_s, tbt_s, heard_tbt_s, handoff_s;
  double token_hit = 0, dram_hit = 0, remote_hit = 0, ssd_hit = 0;
  double gpu_s = 0, gpu_s_mean = 0, wasted_gpu_s = 0;
  double batch_mean = 0;
  std::vector<GroupFigures> tenants, priorities;  // by name and by number; empty where all requests have the same
};
ClusterFigures figures_of(const std::vector<TraceRequest>& trace, const ClusterOptions& options, const ClusterRun& run);
bool is_good(const RequestRecord& r, const ClusterOptions& options);

}  // namespace mc::sim
