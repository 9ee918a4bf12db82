// The flags of the tier on a node's disk, and of the order in which blocks leave memory.
#pragma once

#include "base/cli.h"
#include "base/flag_list.h"

namespace mc::flags {

/// --ssd: DIR:SIZE.
Result<void> check_ssd(std::string_view value);
/// --ssd-write-budget: "50MiB/s".
Result<void> check_write_budget(std::string_view value);
/// --ssd-min-uses: 1 to 1000.
Result<void> check_min_uses(std::string_view value);
std::vector<std::string_view> eviction_names();

inline constexpr Flag kSsd{.name = "ssd",
                           .value = "DIR:SIZE",
                           .help = "keep blocks that leave memory on disk, in a DIR of its own",
                           .check = check_ssd};
inline constexpr Flag kSsdWriteBudget{.name = "ssd-write-budget",
                                      .value = "RATE",
                                      .fallback = "none",
                                      .help = "mean rate of writes to --ssd, which spares flash: 50MiB/s",
                                      .choices = "none",
                                      .check = check_write_budget,
                                      .common = true};
inline constexpr Flag kSsdMinUses{.name = "ssd-min-uses",
                                  .kind = FlagKind::count,
                                  .value = "N",
                                  .fallback = "1",
                                  .help = "write a block to --ssd once N requests have used it; 1 = all, at most 1000",
                                  .check = check_min_uses,
                                  .common = true};
inline constexpr Flag kEviction{.name = "eviction",
                                .kind = FlagKind::choice,
                                .value = "P",
                                .fallback = "lru-tail",
                                .help = "order in which blocks leave memory",
                                .table = eviction_names,
                                .common = true};

}  // namespace mc::flags

namespace mc::host {

inline constexpr auto kDiskFlags =
    flags::list(&flags::kSsd, &flags::kSsdWriteBudget, &flags::kSsdMinUses, &flags::kEviction);

struct SsdPlace {
  std::string directory;
  uint64_t bytes = 0;
};
/// The value of --ssd. The size is behind the last colon.
Result<SsdPlace> parse_ssd(std::string_view value);

}  // namespace mc::host
