// Flags of the daemons beyond the common ones (product/flags.h): each is spelt here once.
#pragma once

#include "product/flags.h"

namespace mc::flags {

inline constexpr Flag kAttention{.name = "attention",
                                 .value = "PLAN",
                                 .fallback = "auto",
                                 .help = "auto (what the model declares), full, or moba:block=128,top_k=3,full_last=1"};
inline constexpr Flag kPrefillAttention{
    .name = "prefill-attention", .value = "PLAN", .help = "attention plan of prefill; default is --attention"};
inline constexpr Flag kDecodeAttention{
    .name = "decode-attention", .value = "PLAN", .help = "attention plan of decode; default is --attention"};
inline constexpr Flag kChunkTokens{.name = "chunk-tokens",
                                   .kind = FlagKind::count,
                                   .value = "N",
                                   .fallback = "512",
                                   .help = "tokens computed at a time, a multiple of --block-tokens"};
inline constexpr Flag kLoadByLayer{.name = "load-by-layer",
                                   .kind = FlagKind::bytes,
                                   .value = "SIZE",
                                   .fallback = "off",
                                   .help = "begin to compute before a prefix of SIZE or more is complete",
                                   .choices = "off"};
inline constexpr Flag kBatchMax{.name = "batch-max",
                                .kind = FlagKind::count,
                                .value = "N",
                                .fallback = "64",
                                .help = "largest number of requests in a decode step",
                                .check = check_between<1, 65536>};
inline constexpr Flag kInlineTokens{
    .name = "inline-tokens",
    .kind = FlagKind::count,
    .value = "N",
    .fallback = "0",
    .help = "compute prompts with at most N uncached tokens here, beside the decode rows; 0: none",
    .check = check_between<0, 65536>};
inline constexpr Flag kCost{
    .name = "cost", .value = "PROFILE", .help = "cost profile of mc-bench model --save-cost; else measured at start"};
inline constexpr Flag kRunner{.name = "runner",
                              .value = "R",
                              .fallback = "model",
                              .help = "model, or costed:PROFILE for modelled times and stand-in KV",
                              .choices = "model"};
inline constexpr Flag kPipeline{.name = "pipeline",
                                .value = "S/N",
                                .fallback = "off",
                                .help = "stage S of N, from 0, of the pipeline called --name",
                                .choices = "off"};
inline constexpr Flag kDrainTimeout{.name = "drain-timeout",
                                    .kind = FlagKind::duration,
                                    .value = "T",
                                    .fallback = "30s",
                                    .help = "how long SIGTERM waits for work under way"};
/// The first of three ports, so at most 65533.
Result<void> check_ports(std::string_view value);
inline constexpr Flag kPorts{.name = "ports",
                             .value = "N",
                             .fallback = "any",
                             .help = "control port on --bind, with N+1 for tcp data and N+2 for set-up of rdma",
                             .choices = "any",
                             .check = check_ports,
                             .common = true};
/// At least 10ms.
Result<void> check_lease_time(std::string_view value);
inline constexpr Flag kLeaseTime{.name = "lease-time",
                                 .kind = FlagKind::duration,
                                 .value = "T",
                                 .fallback = "30s",
                                 .help = "longest lease or renewal of blocks; then they may be evicted",
                                 .check = check_lease_time};
/// 10ms to 10m.
Result<void> check_fetch_timeout(std::string_view value);
inline constexpr Flag kFetchTimeout{.name = "fetch-timeout",
                                    .kind = FlagKind::duration,
                                    .value = "T",
                                    .fallback = "5s",
                                    .help = "time-out of one lease request to another node, and of one read",
                                    .check = check_fetch_timeout,
                                    .common = true};
/// "delay=0.1:5ms,corrupt=0.01": see host::parse_faults.
Result<void> check_transfer_faults(std::string_view value);
inline constexpr Flag kTransferFaults{.name = "transfer-faults",
                                      .value = "F=P,F=P",
                                      .fallback = "none",
                                      .help = "break some transfers: delay=0.1:5ms,fail=0.01,corrupt=0.01",
                                      .choices = "none",
                                      .check = check_transfer_faults};
/// Set by mc-conductor --local for its children; not shown in manual pages' examples.
inline constexpr Flag kDieWithParent{
    .name = "die-with-parent", .kind = FlagKind::boolean, .help = "stop when the parent process dies"};

}  // namespace mc::flags
