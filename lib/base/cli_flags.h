// The flags of any command line: configuration, logs, results. The command-line parser itself reads most of them.
#pragma once

#include "base/cli.h"
#include "base/flag_list.h"

namespace mc::flags {

inline constexpr Flag kConfig{
    .name = "config", .value = "FILE", .help = "TOML file whose keys are the flag names", .common = true};
inline constexpr Flag kSeed{.name = "seed",
                            .kind = FlagKind::count,
                            .value = "N",
                            .fallback = "0",
                            .help = "every random choice of the process derives from it",
                            .common = true};
inline constexpr Flag kLogLevel{.name = "log-level",
                                .kind = FlagKind::choice,
                                .value = "L",
                                .fallback = "info",
                                .help = "least severe level that goes to stderr",
                                .choices = "trace|debug|info|warn|error|off",
                                .common = true};
inline constexpr Flag kLogFormat{.name = "log-format",
                                 .kind = FlagKind::choice,
                                 .value = "F",
                                 .fallback = "text",
                                 .help = "text, or one JSON object a line",
                                 .choices = "text|json",
                                 .common = true};
inline constexpr Flag kJson{.name = "json",
                            .kind = FlagKind::boolean,
                            .help = "results as JSON lines on stdout; the last line is the summary",
                            .common = true};
inline constexpr Flag kOutput{.name = "output",
                              .letter = 'o',
                              .value = "FILE",
                              .fallback = "-",
                              .help = "where results go; - is stdout",
                              .common = true};
inline constexpr Flag kQuiet{.name = "quiet",
                             .letter = 'q',
                             .kind = FlagKind::boolean,
                             .help = "no progress and no notes, only results and errors",
                             .common = true};
inline constexpr Flag kProgress{.name = "progress",
                                .kind = FlagKind::choice,
                                .value = "W",
                                .fallback = "auto",
                                .help = "progress line on stderr",
                                .choices = "auto|always|never",
                                .common = true};
inline constexpr Flag kPrintConfig{.name = "print-config",
                                   .kind = FlagKind::boolean,
                                   .help = "print every setting with its origin, then exit",
                                   .common = true,
                                   .one_shot = true};
inline constexpr Flag kCheck{.name = "check",
                             .kind = FlagKind::boolean,
                             .help = "validate model, memory, ports and devices, then exit",
                             .common = true,
                             .one_shot = true};

/// The flags that every one-shot verb has besides its own.
inline constexpr auto kEveryRun = list(&kConfig, &kJson, &kLogLevel, &kLogFormat, &kPrintConfig);

}  // namespace mc::flags
