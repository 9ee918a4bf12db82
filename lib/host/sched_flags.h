// Flags of placement and admission that the conductor and `mc-bench sim` share: what was tried on a trace is typed the
// same in production.
#pragma once

#include <span>

#include "base/choice.h"
#include "sched/policy.h"

namespace mc {

namespace flags {

/// --slack: above 0.
Result<void> check_slack(std::string_view value);

inline constexpr Flag kDecodeTime{.name = "t-d",
                                  .kind = FlagKind::duration,
                                  .value = "T",
                                  .fallback = "20s",
                                  .help = "admission predict: time to decode a request; 0 learns it"};
inline constexpr Flag kSlack{.name = "slack",
                             .kind = FlagKind::number,
                             .value = "X",
                             .fallback = "1",
                             .help = "admission at arrival: reject above X times the TBT bound",
                             .check = check_slack};
inline constexpr FlagWord<sched::Aggregate> kAggregates[] = {{"mean", sched::Aggregate::mean},
                                                             {"max", sched::Aggregate::max}};
inline constexpr ChoiceFlag kAggregate =
    with_choices<kAggregates>({.name = "aggregate",
                               .kind = FlagKind::choice,
                               .value = "A",
                               .fallback = "mean",
                               .help = "admission predict: which decode load counts"});
inline constexpr Flag kSlowStart{.name = "slow-start",
                                 .kind = FlagKind::duration,
                                 .value = "T",
                                 .fallback = "0s",
                                 .help = "time during which a new node gets less than its share"};

/// Whether the first token waits for the second one.
inline constexpr FlagWord<bool> kFirstTokens[] = {{"at-once", false}, {"with-second", true}};
inline constexpr ChoiceFlag kFirstToken = with_choices<kFirstTokens>({.name = "first-token",
                                                                      .kind = FlagKind::choice,
                                                                      .value = "F",
                                                                      .fallback = "at-once",
                                                                      .help = "when the first token is sent"});

}  // namespace flags

namespace host {

/// Sets what these five flags say.
void read_sched_flags(const cli::Args& args, sched::Options& out);
/// One of them was given that none of `admissions` looks at.
Result<void> check_sched_flags(const cli::Args& args, std::span<const sched::Admission* const> admissions);

}  // namespace host
}  // namespace mc
