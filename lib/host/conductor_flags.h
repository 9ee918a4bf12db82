// Flags of the conductor alone. Those that mean the same elsewhere: product/flags.h, daemon_flags.h.
#pragma once

#include "base/cli.h"
#include "host/choice_flags.h"

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
inline constexpr Flag kGenerationConfig{.name = "generation-config",
                                        .kind = FlagKind::choice,
                                        .value = "W",
                                        .fallback = "auto",
                                        .help = "sampling defaults; auto is the model's own",
                                        .choices = "auto|none"};
inline constexpr Flag kPolicy{.name = "policy",
                              .kind = FlagKind::choice,
                              .value = "P",
                              .fallback = "kv-centric",
                              .help = "how requests are placed on prefill nodes",
                              .table = policy_names};
inline constexpr Flag kFetchRule{.name = "fetch-rule",
                                 .kind = FlagKind::choice,
                                 .value = "R",
                                 .fallback = "cost",
                                 .help = "when to fetch a missing prefix",
                                 .choices = "cost|threshold"};
inline constexpr Flag kFetchThreshold{.name = "fetch-threshold",
                                      .kind = FlagKind::number,
                                      .value = "X",
                                      .fallback = "1",
                                      .help = "threshold rule: fetch when best match > X times the local one"};
inline constexpr Flag kPrefixFrom{.name = "prefix-from",
                                  .kind = FlagKind::choice,
                                  .value = "F",
                                  .fallback = "auto",
                                  .help = "where decode nodes read a reused prefix",
                                  .choices = "auto|holders|prefill"};
inline constexpr Flag kAdmission{.name = "admission",
                                 .kind = FlagKind::choice,
                                 .value = "A",
                                 .fallback = "auto",
                                 .help = "which decode load early rejection looks at",
                                 .choices = "auto",
                                 .table = admission_names};
inline constexpr Flag kHold{
    .name = "hold",
    .kind = FlagKind::duration,
    .value = "T",
    .fallback = "auto",
    .help = "hold requests until a prefill node has at most T of work; auto: 300ms where priorities or tenants need it",
    .choices = "auto|off"};
inline constexpr Flag kHoldOrder{.name = "hold-order",
                                 .kind = FlagKind::choice,
                                 .value = "O",
                                 .fallback = "arrival",
                                 .help = "order of held requests of a priority",
                                 .choices = "arrival|work"};
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
