// What the two simulators of `mc-bench sim` share: flags, the trace, the shape of their answers.
#pragma once

#include "base/common_flags.h"
#include "sim/trace.h"
#include "verbs.h"

namespace mc::bench {
namespace sim_flags {

inline constexpr Flag kRules{.name = "rules",
                             .kind = FlagKind::choice,
                             .value = "R",
                             .fallback = "paper",
                             .help = "paper: the reference rules for one request at a time a prefill node",
                             .choices = "paper"};
inline constexpr Flag kCluster{.name = "cluster",
                               .value = "SHAPE",
                               .fallback = "8p8d",
                               .help = "prefill and decode nodes: 8p8d; 8p simulates prefill alone"};
inline constexpr Flag kPolicy{.name = "policy",
                              .kind = FlagKind::list,
                              .value = "P,P",
                              .fallback = "kv-centric",
                              .help = "kv-centric, cache-aware, load, load-count, random, affinity; several compare"};
inline constexpr Flag kFetchRule{.name = "fetch-rule",
                                 .kind = FlagKind::choice,
                                 .value = "R",
                                 .fallback = "threshold",
                                 .help = "when kv-centric fetches a missing prefix rather than compute it",
                                 .choices = "threshold|cost"};
inline constexpr Flag kTheta{.name = "theta",
                             .kind = FlagKind::number,
                             .value = "X",
                             .fallback = "1",
                             .help = "threshold rule: fetch when the best match > X times the local one"};
inline constexpr Flag kCacheBlocks{.name = "cache-blocks",
                                   .kind = FlagKind::count,
                                   .value = "N",
                                   .fallback = "5859",
                                   .help = "blocks of 512 tokens each prefill node keeps",
                                   .choices = "unlimited"};
inline constexpr Flag kSpeedup{.name = "speedup",
                               .kind = FlagKind::number,
                               .value = "X",
                               .fallback = "1",
                               .help = "divide the trace's times by X"};
inline constexpr Flag kBandwidth{.name = "bandwidth",
                                 .kind = FlagKind::number,
                                 .value = "B",
                                 .fallback = "87e9",
                                 .help = "between nodes, bytes a second"};
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
                                 .kind = FlagKind::choice,
                                 .value = "A",
                                 .fallback = "none",
                                 .help = "who is turned away: by load as it is met, as it is now, as it will be",
                                 .choices = "none|baseline|early|predict"};
inline constexpr Flag kDecodeTime{.name = "t-d",
                                  .kind = FlagKind::duration,
                                  .value = "T",
                                  .fallback = "20s",
                                  .help = "admission predict: how long a request is taken to decode"};
inline constexpr Flag kSlack{.name = "slack",
                             .kind = FlagKind::number,
                             .value = "X",
                             .fallback = "1",
                             .help = "admission early and predict: reject above X times the TBT bound"};
inline constexpr Flag kLimit{.name = "limit",
                             .kind = FlagKind::count,
                             .value = "N",
                             .fallback = "all",
                             .help = "first N requests only",
                             .choices = "all"};
inline constexpr Flag kSaveRequests{
    .name = "save-requests", .value = "FILE", .help = "each request's fate as a line of JSON"};

}  // namespace sim_flags

/// The flag's number, which must be above 0.
Result<double> positive(const cli::Args& args, const Flag& flag);
/// `path` within --limit.
Result<std::vector<sim::TraceRequest>> read_sim_trace(const cli::Args& args);

/// --rules paper: the reference rules of the Mooncake brief, section 12 (lib/sim/paper.h).
Result<int> simulate_paper(const cli::Args& args);

}  // namespace mc::bench
