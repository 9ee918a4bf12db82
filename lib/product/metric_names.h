// Every metric family that any of our programs exports, once. The `vllm:` rows carry the names,
// labels and buckets that existing dashboards, autoscalers and llm-d's endpoint picker query; the
// `mc_` rows are ours. Both are golden (tests/golden/product/metrics.txt): a rename keeps the old name
// for two minor releases. Common labels of all: model_name, engine (our node id).
#pragma once

#include "base/metrics.h"

namespace mc::metric {

inline constexpr double kFirstTokenBuckets[] = {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5,  .75,
                                                1,    2.5,  5,   7.5, 10,  20,  40,  80, 160, 640, 2560};
inline constexpr double kTokenGapBuckets[] = {.01, .025, .05, .075, .1,  .15, .2, .3, .4, .5,
                                              .75, 1,    2.5, 5,    7.5, 10,  20, 40, 80};
inline constexpr double kRequestTimeBuckets[] = {.3, .5, .8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                                 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680};
inline constexpr double kParamsNBuckets[] = {1, 2, 5, 10, 20};
inline constexpr double kIterationTokensBuckets[] = {1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384};
inline constexpr double kTransferTimeBuckets[] = {.005, .01, .025, .05, .075, .1, .2, .3, .5, .75, 1, 5};
inline constexpr double kTransferBytesBuckets[] = {0x1p11, 0x1p13, 0x1p15, 0x1p17, 0x1p19, 0x1p21,
                                                   0x1p23, 0x1p25, 0x1p27, 0x1p29, 0x1p31, 0x1p33};
inline constexpr double kTokenCountBuckets[] = {1,    2,    5,     10,    20,    50,     100,    200,    500,    1000,
                                                2000, 5000, 10000, 20000, 50000, 100000, 200000, 500000, 1000000};
inline constexpr double kDecisionBuckets[] = {1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, .001, .002, .005, .01, .05, .1, 1};
inline constexpr double kErrorBuckets[] = {-10, -5,  -2.5, -1, -.5, -.25, -.1, -.05, -.02, -.01, 0,
                                           .01, .02, .05,  .1, .25, .5,   1,   2.5,  5,    10};
inline constexpr double kStageBuckets[] = {1e-4, 2e-4, 5e-4, .001, .002, .005, .01, .02, .05, .1, .2,
                                           .5,   1,    2,    5,    10,   20,   50,  100, 200, 500};

// The vLLM family. The counters named by their unit count tokens.
inline constexpr MetricFamily kVllmRunning{"vllm:num_requests_running", MetricKind::gauge, "",
                                           "Requests in the running batch."};
inline constexpr MetricFamily kVllmWaiting{"vllm:num_requests_waiting", MetricKind::gauge, "",
                                           "Requests waiting to be run."};
inline constexpr MetricFamily kVllmWaitingByReason{"vllm:num_requests_waiting_by_reason", MetricKind::gauge, "reason",
                                                   "Requests waiting, by reason (capacity, deferred)."};
inline constexpr MetricFamily kVllmKvUsage{"vllm:kv_cache_usage_perc", MetricKind::gauge, "",
                                           "KV cache usage, 1 means 100 percent."};
inline constexpr MetricFamily kVllmCacheConfig{"vllm:cache_config_info", MetricKind::gauge,
                                               "block_size,cache_dtype,enable_prefix_caching,num_gpu_blocks",
                                               "Configuration of the KV cache, always 1."};
inline constexpr MetricFamily kVllmPrefixQueries{"vllm:prefix_cache_queries_total", MetricKind::counter, "",
                                                 "Tokens looked up in the local prefix cache."};
inline constexpr MetricFamily kVllmPrefixHits{"vllm:prefix_cache_hits_total", MetricKind::counter, "",
                                              "Tokens found in the local prefix cache."};
inline constexpr MetricFamily kVllmExternalQueries{"vllm:external_prefix_cache_queries_total", MetricKind::counter, "",
                                                   "Tokens looked up on other nodes and tiers."};
inline constexpr MetricFamily kVllmExternalHits{"vllm:external_prefix_cache_hits_total", MetricKind::counter, "",
                                                "Tokens found on other nodes and tiers."};
inline constexpr MetricFamily kVllmPromptTokens{"vllm:prompt_tokens_total", MetricKind::counter, "",
                                                "Prompt tokens of requests that were served."};
inline constexpr MetricFamily kVllmPromptTokensCached{"vllm:prompt_tokens_cached_total", MetricKind::counter, "",
                                                      "Prompt tokens whose KV came from a cache."};
inline constexpr MetricFamily kVllmPromptTokensBySource{
    "vllm:prompt_tokens_by_source_total", MetricKind::counter, "source",
    "Prompt tokens by source of their KV (local_compute, local_cache_hit, external_kv_transfer)."};
inline constexpr MetricFamily kVllmGenerationTokens{"vllm:generation_tokens_total", MetricKind::counter, "",
                                                    "Tokens generated."};
inline constexpr MetricFamily kVllmSuccess{"vllm:request_success_total", MetricKind::counter, "finished_reason",
                                           "Requests that ended, by finish reason."};
inline constexpr MetricFamily kVllmPreemptions{"vllm:num_preemptions_total", MetricKind::counter, "",
                                               "Requests preempted because KV pages ran out."};
inline constexpr MetricFamily kVllmRejections{"vllm:admission_rejections_total", MetricKind::counter, "reason",
                                              "Requests rejected before any work was spent."};
inline constexpr MetricFamily kVllmTtft{"vllm:time_to_first_token_seconds", MetricKind::histogram, "",
                                        "Time from arrival to the first token.", kFirstTokenBuckets};
inline constexpr MetricFamily kVllmItl{"vllm:inter_token_latency_seconds", MetricKind::histogram, "",
                                       "Gap between consecutive tokens.", kTokenGapBuckets};
inline constexpr MetricFamily kVllmTpot{"vllm:request_time_per_output_token_seconds", MetricKind::histogram, "",
                                        "Mean gap between tokens of a request.", kTokenGapBuckets};
inline constexpr MetricFamily kVllmE2e{"vllm:e2e_request_latency_seconds", MetricKind::histogram, "",
                                       "Time from arrival to the last token.", kRequestTimeBuckets};
inline constexpr MetricFamily kVllmQueueTime{"vllm:request_queue_time_seconds", MetricKind::histogram, "",
                                             "Time a request waited before prefill began.", kRequestTimeBuckets};
inline constexpr MetricFamily kVllmInferenceTime{"vllm:request_inference_time_seconds", MetricKind::histogram, "",
                                                 "Time from start of prefill to the last token.", kRequestTimeBuckets};
inline constexpr MetricFamily kVllmPrefillTime{"vllm:request_prefill_time_seconds", MetricKind::histogram, "",
                                               "Time from start of prefill to the first token.", kRequestTimeBuckets};
inline constexpr MetricFamily kVllmDecodeTime{"vllm:request_decode_time_seconds", MetricKind::histogram, "",
                                              "Time from the first token to the last.", kRequestTimeBuckets};
inline constexpr MetricFamily kVllmRequestPrompt{"vllm:request_prompt_tokens", MetricKind::histogram, "",
                                                 "Prompt tokens of a request.", kTokenCountBuckets};
inline constexpr MetricFamily kVllmRequestGeneration{"vllm:request_generation_tokens", MetricKind::histogram, "",
                                                     "Tokens generated for a request.", kTokenCountBuckets};
inline constexpr MetricFamily kVllmRequestMaxGeneration{"vllm:request_max_num_generation_tokens", MetricKind::histogram,
                                                        "", "Most tokens generated by one sequence of a request.",
                                                        kTokenCountBuckets};
inline constexpr MetricFamily kVllmRequestMaxTokens{"vllm:request_params_max_tokens", MetricKind::histogram, "",
                                                    "max_tokens of a request.", kTokenCountBuckets};
inline constexpr MetricFamily kVllmRequestComputed{"vllm:request_prefill_kv_computed_tokens", MetricKind::histogram, "",
                                                   "Prompt tokens whose KV was computed, not reused.",
                                                   kTokenCountBuckets};
inline constexpr MetricFamily kVllmRequestN{"vllm:request_params_n", MetricKind::histogram, "", "n of a request.",
                                            kParamsNBuckets};
inline constexpr MetricFamily kVllmIterationTokens{"vllm:iteration_tokens_total", MetricKind::histogram, "",
                                                   "Tokens of one engine step.", kIterationTokensBuckets};
inline constexpr MetricFamily kVllmXferTime{"vllm:nixl_xfer_time_seconds", MetricKind::histogram, "",
                                            "Duration of a KV transfer.", kTransferTimeBuckets};
inline constexpr MetricFamily kVllmXferBytes{"vllm:nixl_bytes_transferred", MetricKind::histogram, "",
                                             "Bytes of a KV transfer.", kTransferBytesBuckets};

// Our family.
inline constexpr MetricFamily kBuildInfo{"mc_build_info", MetricKind::gauge, "version,commit,role",
                                         "Version of this process, always 1."};
inline constexpr MetricFamily kRequests{"mc_requests_total", MetricKind::counter, "outcome,reason",
                                        "Requests that ended, by outcome (ok, rejected, failed, cancelled)."};
inline constexpr MetricFamily kStageSeconds{"mc_stage_seconds", MetricKind::histogram, "stage",
                                            "Time a request spent in a stage.", kStageBuckets};
inline constexpr MetricFamily kRouteDecision{"mc_route_decision_seconds", MetricKind::histogram, "",
                                             "Time one routing decision took.", kDecisionBuckets};
inline constexpr MetricFamily kPredictedTtftError{"mc_predicted_ttft_error_seconds", MetricKind::histogram, "",
                                                  "Observed minus predicted time to first token.", kErrorBuckets};
inline constexpr MetricFamily kPredictionError{
    "mc_prediction_error_ratio", MetricKind::gauge, "what",
    "Recent mean of |predicted - observed| / observed, by what was predicted (ttft, tbt, prefill, step, read)."};
inline constexpr MetricFamily kPredictionBias{
    "mc_prediction_bias_ratio", MetricKind::gauge, "what",
    "Recent mean of predicted / observed - 1, by what was predicted; above 0 = too high."};
inline constexpr MetricFamily kKvBlocks{"mc_kv_blocks", MetricKind::gauge, "tier,state",
                                        "KV blocks by tier and state (used, cached, free, leased)."};
inline constexpr MetricFamily kKvBlockHits{"mc_kv_block_hits_total", MetricKind::counter, "tier",
                                           "KV blocks reused, by the tier that held them."};
inline constexpr MetricFamily kKvMiss{"mc_kv_miss_total", MetricKind::counter, "reason",
                                      "Prompt blocks that had to be computed, by reason."};
inline constexpr MetricFamily kKvEvictions{"mc_kv_evictions_total", MetricKind::counter, "tier,reason",
                                           "KV blocks evicted."};
inline constexpr MetricFamily kDeviceLoaded{"mc_device_loaded_blocks_total", MetricKind::counter, "",
                                            "KV blocks copied from the host's memory to the device's."};
inline constexpr MetricFamily kSsdBytes{"mc_ssd_bytes", MetricKind::gauge, "state",
                                        "Bytes of the tier on this node's disk, by state (used, capacity)."};
inline constexpr MetricFamily kSsdMoved{"mc_ssd_moved_bytes_total", MetricKind::counter, "direction",
                                        "Bytes written to and read from the tier on disk."};
inline constexpr MetricFamily kSsdFailures{"mc_ssd_failures_total", MetricKind::counter, "operation",
                                           "Operations on disk that failed (write, read, drop, maintain)."};
inline constexpr MetricFamily kSsdLost{"mc_ssd_lost", MetricKind::gauge, "",
                                       "1 while the node goes on without its disk, which failed."};
inline constexpr MetricFamily kSsdPromoted{"mc_ssd_promoted_total", MetricKind::counter, "",
                                           "Blocks from disk that stayed in memory because a second reader came."};
inline constexpr MetricFamily kSsdSpared{"mc_ssd_spared_total", MetricKind::counter, "",
                                         "Blocks that left memory unwritten because of --ssd-min-uses."};
inline constexpr MetricFamily kStoreValues{"mc_store_values", MetricKind::gauge, "",
                                           "Values in the store of a cache node."};
inline constexpr MetricFamily kStoreBytes{
    "mc_store_bytes", MetricKind::gauge, "state",
    "Memory of the store of values, by state (used, held = pinned or leased, capacity)."};
inline constexpr MetricFamily kStorePuts{"mc_store_puts_total", MetricKind::counter, "outcome",
                                         "Values put, by outcome (created, replaced, rejected = no room)."};
inline constexpr MetricFamily kStoreGets{"mc_store_gets_total", MetricKind::counter, "outcome",
                                         "Gets of values, by outcome (hit, miss)."};
inline constexpr MetricFamily kStoreEnded{
    "mc_store_ended_total", MetricKind::counter, "reason",
    "Values that left the store, by reason (evicted, expired, removed, damaged)."};
inline constexpr MetricFamily kStoreReplicas{
    "mc_store_replicas_total", MetricKind::counter, "operation",
    "Replicas of values, by operation (made again, failed, fetched = got from another node)."};
inline constexpr MetricFamily kStoreDisk{"mc_store_disk_bytes", MetricKind::gauge, "state",
                                         "Disk of the store of values, by state (used, capacity)."};
inline constexpr MetricFamily kStoreDiskOps{"mc_store_disk_total", MetricKind::counter, "operation",
                                            "Values at the disk, by operation (written, loaded, failed)."};
inline constexpr MetricFamily kXferBytes{"mc_xfer_bytes_total", MetricKind::counter, "transport,direction,peer_role",
                                         "Bytes moved by the transfer engine."};
inline constexpr MetricFamily kXferSeconds{"mc_xfer_seconds", MetricKind::histogram, "transport",
                                           "Duration of a batch of transfers.", kStageBuckets};
inline constexpr MetricFamily kXferExposed{"mc_xfer_exposed_seconds", MetricKind::histogram, "",
                                           "Part of a prefill's transfer that computing did not hide.", kStageBuckets};
inline constexpr MetricFamily kXferRdmaPairs{"mc_xfer_rdma_pairs", MetricKind::gauge, "",
                                             "RDMA queue pairs granted to connections."};
inline constexpr MetricFamily kXferRdmaEvictions{"mc_xfer_rdma_evictions_total", MetricKind::counter, "",
                                                 "Connections that gave their RDMA queue pairs up until used again."};
inline constexpr MetricFamily kXferRdmaWakes{"mc_xfer_rdma_wakes_total", MetricKind::counter, "",
                                             "Connections that got their RDMA queue pairs back."};
inline constexpr MetricFamily kXferRdmaSends{"mc_xfer_rdma_sends_total", MetricKind::counter, "",
                                             "Notifies that went over RDMA queue pairs."};
inline constexpr MetricFamily kXferClassBytes{"mc_xfer_class_bytes_total", MetricKind::counter, "class",
                                              "Bytes moved for this node's requests, by class (urgent, bulk)."};
inline constexpr MetricFamily kXferBatches{"mc_xfer_batches_total", MetricKind::counter, "outcome",
                                           "Batches of transfers that ended, by outcome (ok, failed)."};
inline constexpr MetricFamily kXferSlices{
    "mc_xfer_slices_total", MetricKind::counter, "event",
    "Slices of transfers, by event (posted, retried, moved to another transport)."};
inline constexpr MetricFamily kXferServed{"mc_xfer_served_total", MetricKind::counter, "outcome",
                                          "Requests of peers, by outcome (ok, refused); over shm and rdma they are "
                                          "not seen."};
inline constexpr MetricFamily kXferNotifies{"mc_xfer_notifies_total", MetricKind::counter, "direction",
                                            "Notifies between nodes."};
inline constexpr MetricFamily kXferConnections{"mc_xfer_connections_total", MetricKind::counter, "event",
                                               "Data connections, by event (dialled, accepted, up, lost)."};
inline constexpr MetricFamily kXferPeers{"mc_xfer_peers", MetricKind::gauge, "transport",
                                         "Nodes that are connected, by the transport that was chosen."};
inline constexpr MetricFamily kXferQuarantined{"mc_xfer_quarantined_bytes", MetricKind::gauge, "",
                                               "Memory of transfers past their deadline that a transport may touch."};
inline constexpr MetricFamily kXferFailures{"mc_xfer_failures_total", MetricKind::counter, "reason",
                                            "What the transfer engine refused or saw break, by reason."};
inline constexpr MetricFamily kLeaseRequests{"mc_lease_requests_total", MetricKind::counter, "carrier",
                                             "Lease requests to other nodes, by the carrier that took them first "
                                             "(channel, control)."};
inline constexpr MetricFamily kLeaseSeconds{"mc_lease_seconds", MetricKind::histogram, "carrier",
                                            "Time from a lease request to its grant, by the carrier of the grant.",
                                            kDecisionBuckets};
inline constexpr MetricFamily kLeaseCalls{
    "mc_lease_calls_total", MetricKind::counter, "event",
    "Calls over lease channels, by event (served, late, refused by this node; repeated by control)."};
inline constexpr MetricFamily kLookups{
    "mc_block_lookups_total", MetricKind::counter, "event",
    "Lookups, not blocks, by event (asked, failed, read from tables, torn tables; served, touched for others)."};
inline constexpr MetricFamily kLeaseRenewals{"mc_lease_renewals_total", MetricKind::counter, "event",
                                             "Renewals of leases of other nodes, by event (granted, refused)."};
inline constexpr MetricFamily kLeaseChannels{"mc_lease_channels", MetricKind::gauge, "side",
                                             "Lease channels, by this node's side (reader, holder)."};
inline constexpr MetricFamily kFallback{
    "mc_fallback_total", MetricKind::counter, "what",
    "Times a slower way was taken: fetch, retry, or holder (the prefill node gave KV)."};
inline constexpr MetricFamily kHeld{"mc_held_total", MetricKind::counter, "for",
                                    "Requests that waited at the conductor: for their turn, or for a prefix."};
inline constexpr MetricFamily kInlined{"mc_inlined_total", MetricKind::counter, "",
                                       "Prompts that decode nodes computed themselves, without a prefill node."};
inline constexpr MetricFamily kSloRejections{"mc_slo_rejections_total", MetricKind::counter, "bound",
                                             "Requests rejected because this bound was predicted to be broken."};
inline constexpr MetricFamily kTenantUnfinished{"mc_tenant_unfinished", MetricKind::gauge, "tenant",
                                                "Unfinished requests of a tenant."};
inline constexpr MetricFamily kTenantHeld{"mc_tenant_held", MetricKind::gauge, "tenant",
                                          "Requests of a tenant that wait for their turn."};
inline constexpr MetricFamily kTenantTokens{"mc_tenant_tokens_total", MetricKind::counter, "tenant",
                                            "Tokens of prompts taken in and of answers, by tenant."};
inline constexpr MetricFamily kTenantRequests{"mc_tenant_requests_total", MetricKind::counter, "tenant,event",
                                              "Requests of a tenant, by event (submitted, rejected)."};
inline constexpr MetricFamily kReplication{"mc_replication_total", MetricKind::counter, "",
                                           "KV blocks copied to another node because they are hot."};
inline constexpr MetricFamily kChecksumFailures{"mc_checksum_failures_total", MetricKind::counter, "",
                                                "KV extents whose checksum did not match."};
inline constexpr MetricFamily kPeers{"mc_peers", MetricKind::gauge, "role,state", "Nodes known, by role and state."};
inline constexpr MetricFamily kBreakers{"mc_breakers", MetricKind::gauge, "state",
                                        "Pairs of nodes, and nodes, that fail requests, by state (open, half_open)."};
inline constexpr MetricFamily kBreakersOpened{
    "mc_breakers_opened_total", MetricKind::counter, "",
    "Times a pair of nodes, or a node, was set aside because it failed requests."};
inline constexpr MetricFamily kTransferPairs{
    "mc_transfer_pairs", MetricKind::gauge, "state",
    "Pairs of nodes with a learnt read cost; slow: less than half of the reader's usual rate, fast: over twice."};
inline constexpr MetricFamily kHttpConnections{"mc_http_connections", MetricKind::gauge, "", "HTTP connections open."};
inline constexpr MetricFamily kHttpResponses{"mc_http_responses_total", MetricKind::counter, "code",
                                             "HTTP responses, by class of status (2xx, 4xx, 5xx)."};
inline constexpr MetricFamily kHttpClosed{"mc_http_closed_total", MetricKind::counter, "reason",
                                          "HTTP connections closed, by reason."};
inline constexpr MetricFamily kConnectionsRefused{
    "mc_connections_refused_total", MetricKind::counter, "door",
    "Connections closed at once because too many were open, by door (http, control)."};
inline constexpr MetricFamily kAcceptPauses{"mc_accept_pauses_total", MetricKind::counter, "",
                                            "Times that accepting HTTP connections paused: no descriptors or memory."};
inline constexpr MetricFamily kMemoryShort{
    "mc_memory_short", MetricKind::gauge, "",
    "1 while the memory reserve is used up and large requests are refused, else 0."};
inline constexpr MetricFamily kLogLost{"mc_log_lines_lost_total", MetricKind::counter, "why",
                                       "Log lines that were not written, by why (slow_reader, repeated)."};

/// All of the above, in the order of the golden file.
inline constexpr const MetricFamily* kAll[] = {&kVllmRunning,
                                               &kVllmWaiting,
                                               &kVllmWaitingByReason,
                                               &kVllmKvUsage,
                                               &kVllmCacheConfig,
                                               &kVllmPrefixQueries,
                                               &kVllmPrefixHits,
                                               &kVllmExternalQueries,
                                               &kVllmExternalHits,
                                               &kVllmPromptTokens,
                                               &kVllmPromptTokensCached,
                                               &kVllmPromptTokensBySource,
                                               &kVllmGenerationTokens,
                                               &kVllmSuccess,
                                               &kVllmPreemptions,
                                               &kVllmRejections,
                                               &kVllmTtft,
                                               &kVllmItl,
                                               &kVllmTpot,
                                               &kVllmE2e,
                                               &kVllmQueueTime,
                                               &kVllmInferenceTime,
                                               &kVllmPrefillTime,
                                               &kVllmDecodeTime,
                                               &kVllmRequestPrompt,
                                               &kVllmRequestGeneration,
                                               &kVllmRequestMaxGeneration,
                                               &kVllmRequestMaxTokens,
                                               &kVllmRequestComputed,
                                               &kVllmRequestN,
                                               &kVllmIterationTokens,
                                               &kVllmXferTime,
                                               &kVllmXferBytes,
                                               &kBuildInfo,
                                               &kRequests,
                                               &kStageSeconds,
                                               &kRouteDecision,
                                               &kPredictedTtftError,
                                               &kPredictionError,
                                               &kPredictionBias,
                                               &kKvBlocks,
                                               &kKvBlockHits,
                                               &kKvMiss,
                                               &kKvEvictions,
                                               &kDeviceLoaded,
                                               &kSsdBytes,
                                               &kSsdMoved,
                                               &kSsdFailures,
                                               &kSsdLost,
                                               &kSsdPromoted,
                                               &kSsdSpared,
                                               &kStoreValues,
                                               &kStoreBytes,
                                               &kStorePuts,
                                               &kStoreGets,
                                               &kStoreEnded,
                                               &kStoreReplicas,
                                               &kStoreDisk,
                                               &kStoreDiskOps,
                                               &kXferBytes,
                                               &kXferSeconds,
                                               &kXferExposed,
                                               &kXferRdmaPairs,
                                               &kXferRdmaEvictions,
                                               &kXferRdmaWakes,
                                               &kXferRdmaSends,
                                               &kXferClassBytes,
                                               &kXferBatches,
                                               &kXferSlices,
                                               &kXferServed,
                                               &kXferNotifies,
                                               &kXferConnections,
                                               &kXferPeers,
                                               &kXferQuarantined,
                                               &kXferFailures,
                                               &kLeaseRequests,
                                               &kLeaseSeconds,
                                               &kLeaseCalls,
                                               &kLookups,
                                               &kLeaseRenewals,
                                               &kLeaseChannels,
                                               &kFallback,
                                               &kHeld,
                                               &kInlined,
                                               &kSloRejections,
                                               &kTenantUnfinished,
                                               &kTenantHeld,
                                               &kTenantTokens,
                                               &kTenantRequests,
                                               &kReplication,
                                               &kChecksumFailures,
                                               &kPeers,
                                               &kBreakers,
                                               &kBreakersOpened,
                                               &kTransferPairs,
                                               &kHttpConnections,
                                               &kHttpResponses,
                                               &kHttpClosed,
                                               &kConnectionsRefused,
                                               &kAcceptPauses,
                                               &kMemoryShort,
                                               &kLogLost};

}  // namespace mc::metric
