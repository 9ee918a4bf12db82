// mc-cache ls: the blocks of one node of the cluster, of any role.
#pragma once

#include <string>

#include "base/cli.h"
#include "base/json.h"
#include "product/doors.h"
#include "product/flags.h"
#include "verbs/store_verbs.h"

namespace mc::flags {

inline constexpr Flag kListSort{.name = "sort",
                                .kind = FlagKind::choice,
                                .value = "KEY",
                                .fallback = "uses",
                                .help = "order of the blocks in memory; hits = uses",
                                .choices = "uses|hits|recent|position"};
inline constexpr Flag kListLimit{.name = "limit",
                                 .kind = FlagKind::count,
                                 .value = "N",
                                 .fallback = "20",
                                 .help = "most blocks in memory to list, as many on disk alone, or most keys",
                                 .check = check_between<0, 100'000>};

}  // namespace mc::flags

namespace mc::verbs {

inline constexpr const Flag* kListFlags[] = {&flags::kListSort,   &flags::kListLimit, &flags::kListKeys,
                                             &flags::kKeyPrefix,  &flags::kTenant,    &flags::kAdminKeyFile,
                                             &flags::kApiKeyFile, &flags::kApiKey,    &flags::kJson};

/// The answer of GET /blocks as a table of at most 80 columns, and a line of totals.
std::string block_table(const Json& list);

/// Asks the conductor of this run directory where the node is, then the node. MC2101 when one of them does not answer.
/// With --keys it lists the values of the node instead.
Result<int> list_blocks(const cli::Args& args);

}  // namespace mc::verbs
