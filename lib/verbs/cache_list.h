// mc-cache ls: the blocks of one node of the cluster, of any role.
#pragma once

#include "base/cli.h"
#include "product/doors.h"
#include "product/flags.h"

namespace mc::flags {

inline constexpr Flag kListSort{.name = "sort",
                                .kind = FlagKind::choice,
                                .value = "KEY",
                                .fallback = "uses",
                                .help = "order of the blocks in memory",
                                .choices = "uses|recent|position"};
inline constexpr Flag kListLimit{.name = "limit",
                                 .kind = FlagKind::count,
                                 .value = "N",
                                 .fallback = "20",
                                 .help = "most blocks in memory to list, and as many of those on disk alone",
                                 .check = check_between<0, 100'000>};

}  // namespace mc::flags

namespace mc::verbs {

inline constexpr const Flag* kListFlags[] = {&flags::kListSort, &flags::kListLimit, &flags::kAdminKeyFile,
                                             &flags::kJson};

/// Asks the conductor of this run directory where the node is, then the node. MC2101 when one of them does not answer.
Result<int> list_blocks(const cli::Args& args);

}  // namespace mc::verbs
