// Flags of the conductor alone. Those that mean the same elsewhere: product/flags.h, daemon_flags.h.
#pragma once

#include "base/choice.h"
#include "host/choice_flags.h"
#include "sched/hold_order.h"
#include "sched/sched.h"

namespace mc::flags {

inline constexpr Flag kLocal{
    .name = "local", .value = "SHAPE", .help = "start a cluster on this host (2p2d1c); it stops with the conductor"};
inline constexpr Flag kPrintCommands{.name = "print-commands",
                                     .kind = FlagKind::boolean,
                                     .help = "print the commands of --local, then exit",
                                     .one_shot = true};
inline constexpr Flag kServedName{
    .name = "served-model-name", .value = "NAME", .help = "model name for clients; default is the name of the folder"};
inline constexpr Flag kChatTemplate{.name = "chat-template",
                                    .kind = FlagKind::choice,
                                    .value = "T",
                                    .fallback = "auto",
                                    .help = "chat template; auto is the model's own",
                                    .choices = "auto|chatml|llama3|mc"};
/// Whether the sampling defaults are the model's own.
inline constexpr FlagWord<bool> kGenerationDefaults[] = {{"auto", true}, {"none", false}};
inline constexpr ChoiceFlag kGenerationConfig =
    with_choices<kGenerationDefaults>({.name = "generation-config",
                                       .kind = FlagKind::choice,
                                       .value = "W",
                                       .fallback = "auto",
                                       .help = "sampling defaults; auto is the model's own"});
inline constexpr Flag kPolicy{.name = "policy",
                              .kind = FlagKind::choice,
                              .value = "P",
                              .fallback = "kv-centric",
                              .help = "how requests are placed on prefill nodes",
                              .table = policy_names};
inline constexpr FlagWord<sched::FetchRule> kFetchRules[] = {{"cost", sched::FetchRule::cost},
                                                             {"threshold", sched::FetchRule::threshold}};
inline constexpr ChoiceFlag kFetchRule = with_choices<kFetchRules>({.name = "fetch-rule",
                                                                    .kind = FlagKind::choice,
                                                                    .value = "R",
                                                                    .fallback = "cost",
                                                                    .help = "when to fetch a missing prefix"});
inline constexpr Flag kFetchThreshold{.name = "fetch-threshold",
                                      .kind = FlagKind::number,
                                      .value = "X",
                                      .fallback = "1",
                                      .help = "threshold rule: fetch when best match > X times the local one"};
inline constexpr FlagWord<sched::PrefixFrom> kPrefixSources[] = {{"auto", sched::PrefixFrom::automatic},
                                                                 {"holders", sched::PrefixFrom::holders},
                                                                 {"prefill", sched::PrefixFrom::prefill}};
inline constexpr ChoiceFlag kPrefixFrom =
    with_choices<kPrefixSources>({.name = "prefix-from",
                                  .kind = FlagKind::choice,
                                  .value = "F",
                                  .fallback = "auto",
                                  .help = "where decode nodes read a reused prefix"});
inline constexpr Flag kAdmission{.name = "admission",
                                 .kind = FlagKind::choice,
                                 .value = "A",
                                 .fallback = "auto",
                                 .help = "which decode load early rejection looks at",
                                 .choices = "auto",
                                 .table = admission_names};
inline constexpr FlagWord<sched::LineOptions::Hold> kHoldWords[] = {{"auto", sched::LineOptions::Hold::automatic},
                                                                    {"off", sched::LineOptions::Hold::off}};
inline constexpr ChoiceFlag kHold = with_choices<kHoldWords>(
    {.name = "hold",
     .kind = FlagKind::duration,
     .value = "T",
     .fallback = "auto",
     .help =
         "hold requests until a prefill node has at most T of work; auto: 300ms where priorities or tenants need it"});
inline constexpr FlagWord<sched::HoldOrder> kHoldOrders[] = {{"arrival", sched::HoldOrder::arrival},
                                                             {"work", sched::HoldOrder::work}};
inline constexpr ChoiceFlag kHoldOrder = with_choices<kHoldOrders>({.name = "hold-order",
                                                                    .kind = FlagKind::choice,
                                                                    .value = "O",
                                                                    .fallback = "arrival",
                                                                    .help = "order of held requests of a priority"});
inline constexpr Flag kApiKeys{
    .name = "api-keys", .value = "FILE", .help = "tenants with API keys, shares, quotas; TOML, mode 0600"};
inline constexpr Flag kReplicate{.name = "replicate",
                                 .kind = FlagKind::count,
                                 .value = "N",
                                 .fallback = "off",
                                 .help = "copy hot prefixes ahead of demand to at most N prefill nodes",
                                 .choices = "off"};
inline constexpr Flag kReplicateRate{.name = "replicate-rate",
                                     .kind = FlagKind::bytes,
                                     .value = "SIZE",
                                     .fallback = "256MiB",
                                     .help = "bytes a second that all these copies together may read"};
inline constexpr Flag kTtftSlo{.name = "ttft-slo",
                               .kind = FlagKind::duration,
                               .value = "T",
                               .fallback = "off",
                               .help = "longest predicted time to first token that is admitted",
                               .choices = "off"};
inline constexpr Flag kTbtSlo{.name = "tbt-slo",
                              .kind = FlagKind::duration,
                              .value = "T",
                              .fallback = "off",
                              .help = "longest predicted time between tokens that is admitted",
                              .choices = "off"};
inline constexpr Flag kDeadline{.name = "deadline",
                                .kind = FlagKind::duration,
                                .value = "T",
                                .fallback = "10m",
                                .help = "default deadline of a request, which then ends with 504"};

}  // namespace mc::flags
