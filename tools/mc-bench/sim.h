// Parts that the two simulators of `mc-bench sim` share: flags, the trace, the shape of their answers.
#pragma once

#include "base/choice.h"
#include "host/choice_flags.h"
#include "host/conductor_flags.h"
#include "host/daemon_flags.h"
#include "host/disk_flags.h"
#include "host/sched_flags.h"
#include "print.h"
#include "product/flags.h"
#include "sim/cluster.h"
#include "sim/trace.h"
#include "verbs.h"

namespace mc::bench {
namespace sim_flags {

using flags::kAggregate, flags::kDecodeTime, flags::kFirstToken, flags::kLoadByLayer, flags::kSlack, flags::kSlowStart;

enum class Rules : uint8_t { cluster, machines, paper };
inline constexpr FlagWord<Rules> kAllRules[] = {
    {"cluster", Rules::cluster}, {"machines", Rules::machines}, {"paper", Rules::paper}};
inline constexpr ChoiceFlag kRules = with_choices<kAllRules>(
    {.name = "rules",
     .kind = FlagKind::choice,
     .value = "R",
     .fallback = "cluster",
     .help = "cluster: the model; machines: the daemons' state machines (slow); paper: reference rules"});
inline constexpr Flag kCluster{.name = "cluster",
                               .value = "SHAPE",
                               .fallback = "8p8d",
                               .help = "8p8d, or 16m (nodes that do both); 8p for --rules paper"};
inline constexpr Flag kPolicy{.name = "policy",
                              .kind = FlagKind::list,
                              .value = "P,P",
                              .fallback = "kv-centric",
                              .help = "how requests are placed on prefill nodes; several are compared",
                              .table = flags::policy_names};
inline constexpr ChoiceFlag kFetchRule =
    with_choices<flags::kFetchRules>({.name = "fetch-rule",
                                      .kind = FlagKind::choice,
                                      .value = "R",
                                      .fallback = "cost",
                                      .help = "rule to fetch a missing prefix or to compute it"});
inline constexpr Flag kTheta{.name = "theta",
                             .kind = FlagKind::number,
                             .value = "X",
                             .fallback = "1",
                             .help = "threshold rule: fetch when the best match > X times the local one"};
enum class CacheWord : uint8_t { unlimited, profile };
inline constexpr FlagWord<CacheWord> kCacheWords[] = {{"unlimited", CacheWord::unlimited},
                                                      {"profile", CacheWord::profile}};
inline constexpr ChoiceFlag kCacheBlocks =
    with_choices<kCacheWords>({.name = "cache-blocks",
                               .kind = FlagKind::count,
                               .value = "N",
                               .fallback = "profile",
                               .help = "blocks of 512 tokens that each prefill node keeps in DRAM"});
inline constexpr Flag kDeviceBlocks{.name = "device-blocks",
                                    .kind = FlagKind::count,
                                    .value = "N",
                                    .fallback = "0",
                                    .help = "blocks on each node's device, over DRAM (machines); 0: none"};
inline constexpr Flag kSimEviction =
    with_default(flags::kEviction, "lru-tail", "order in which blocks leave memory (machines)");
inline constexpr Flag kSpeedup{.name = "speedup",
                               .kind = FlagKind::number,
                               .value = "X",
                               .fallback = "1",
                               .help = "divide the trace's times by X",
                               .check = check_speedup};
inline constexpr Flag kBandwidth{.name = "bandwidth",
                                 .kind = FlagKind::number,
                                 .value = "B",
                                 .fallback = "profile",
                                 .help = "rate of a node's network, bytes a second",
                                 .choices = "profile"};
inline constexpr Flag kTtftSlo{.name = "ttft-slo",
                               .kind = FlagKind::duration,
                               .value = "T",
                               .fallback = "30s",
                               .help = "time to first token that counts as effective"};
inline constexpr Flag kTbtSlo{.name = "tbt-slo",
                              .kind = FlagKind::duration,
                              .value = "T",
                              .fallback = "100ms",
                              .help = "time between tokens that counts as effective: mean of a request's longest 10 %"};
inline constexpr Flag kAdmission{.name = "admission",
                                 .kind = FlagKind::list,
                                 .value = "A,A",
                                 .fallback = "none",
                                 .help = "which decode load early rejection looks at",
                                 .table = flags::admission_names};
inline constexpr Flag kLimit{.name = "limit",
                             .kind = FlagKind::count,
                             .value = "N",
                             .fallback = "all",
                             .help = "first N requests only",
                             .choices = "all"};
inline constexpr Flag kWide{.name = "wide",
                            .kind = FlagKind::boolean,
                            .help = "every column of the table; without it those that fit 80 columns"};
inline constexpr Flag kSaveRequests{
    .name = "save-requests", .value = "FILE", .help = "write each request as a line of JSON"};

inline constexpr Flag kProfile{.name = "profile",
                               .value = "P",
                               .fallback = "a800-llama3-70b",
                               .help = "what a node costs: a built-in name or a TOML file, see mc-profile(5)"};
inline constexpr Flag kHold{
    .name = "hold", .kind = FlagKind::boolean, .help = "hold requests until a node is about to be free"};
inline constexpr Flag kApiKeys{.name = "api-keys",
                               .value = "FILE",
                               .help = "tenants with shares and quotas, in the form of mc-conductor --api-keys"};
inline constexpr Flag kDram{.name = "dram",
                            .kind = FlagKind::bytes,
                            .value = "SIZE",
                            .fallback = "profile",
                            .help = "DRAM cache of each prefill node; replaces --cache-blocks",
                            .choices = "profile"};
inline constexpr Flag kSsd{.name = "ssd",
                           .kind = FlagKind::bytes,
                           .value = "SIZE",
                           .fallback = "profile",
                           .help = "SSD of each prefill node, for blocks evicted from DRAM",
                           .choices = "profile"};
inline constexpr Flag kPipeline{.name = "pipeline",
                                .kind = FlagKind::count,
                                .value = "N",
                                .fallback = "1",
                                .help = "prefill nodes of a pipeline, each with 1/N of the layers"};
/// Whether KV is sent layer by layer.
inline constexpr FlagWord<bool> kOverlaps[] = {{"layers", true}, {"none", false}};
inline constexpr ChoiceFlag kOverlap = with_choices<kOverlaps>({.name = "overlap",
                                                                .kind = FlagKind::choice,
                                                                .value = "O",
                                                                .fallback = "layers",
                                                                .help = "send KV layer by layer, or after prefill"});
inline constexpr FlagWord<sim::CoupledWay> kCoupledWays[] = {{"chunked", sim::CoupledWay::chunked},
                                                             {"prefill-first", sim::CoupledWay::prefill_first}};
inline constexpr ChoiceFlag kCoupled = with_choices<kCoupledWays>({.name = "coupled",
                                                                   .kind = FlagKind::choice,
                                                                   .value = "W",
                                                                   .fallback = "chunked",
                                                                   .help = "how nodes that do both divide a step"});
inline constexpr Flag kCoupledChunk{.name = "coupled-chunk",
                                    .kind = FlagKind::count,
                                    .value = "N",
                                    .fallback = "512",
                                    .help = "prompt tokens in a step of a node that does both"};
inline constexpr Flag kJoinStall{.name = "join-stall",
                                 .kind = FlagKind::duration,
                                 .value = "T",
                                 .fallback = "profile",
                                 .help = "time that a request adds to the step in which it joins",
                                 .choices = "profile"};
inline constexpr Flag kFail{.name = "fail",
                            .kind = FlagKind::list,
                            .value = "N@T,N@T",
                            .help = "nodes that fail: p3@120s; d0@1m-5m comes back"};
inline constexpr Flag kSaveSamples{
    .name = "save-samples", .value = "FILE", .help = "write load, queue, rows, KV and replicas of each node over time"};
inline constexpr Flag kSample{.name = "sample",
                              .kind = FlagKind::duration,
                              .value = "T",
                              .fallback = "15s",
                              .help = "time between samples, at least 1ms",
                              .check = check_measured_time};
inline constexpr Flag kCounterfactual{.name = "counterfactual",
                                      .kind = FlagKind::count,
                                      .value = "N",
                                      .fallback = "0",
                                      .help = "admit N rejected requests in turn; count those that miss a bound"};
inline constexpr Flag kFindMaxRate{.name = "find-max-rate",
                                   .kind = FlagKind::boolean,
                                   .help = "find the highest rate at which --share of the requests meet both bounds"};
inline constexpr Flag kFindRatio{.name = "find-ratio",
                                 .kind = FlagKind::boolean,
                                 .help = "try every split of the nodes into prefill and decode; * marks the best"};
inline constexpr Flag kShare{.name = "share",
                             .kind = FlagKind::number,
                             .value = "X",
                             .fallback = "0.9",
                             .help = "share of requests that must meet both bounds; rejected requests miss them"};
}  // namespace sim_flags

/// The flag's number, which must be above 0.
Result<double> positive(const cli::Args& args, const Flag& flag);
/// --share, above 0 and at most 1.
Result<double> read_share(const cli::Args& args);
/// `path` within --limit.
Result<std::vector<sim::TraceRequest>> read_sim_trace(const cli::Args& args);

/// --rules paper: the reference rules after Mooncake's papers (lib/sim/paper.h).
Result<int> simulate_paper(const cli::Args& args);
/// --rules cluster: policies of lib/sched over a simulated cluster (lib/sim/cluster.h).
Result<int> simulate_cluster(const cli::Args& args);

}  // namespace mc::bench
