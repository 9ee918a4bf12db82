// `mc-conductor top`: the cluster and its requests, drawn again every second.
#pragma once

#include <string>

#include "base/cli.h"
#include "base/json.h"
#include "verbs/operators.h"

namespace mc::flags {

inline constexpr Flag kOnce{
    .name = "once", .kind = FlagKind::boolean, .help = "one screen, over one interval, then exit"};
/// 100ms to 1h.
Result<void> check_top_interval(std::string_view value);
inline constexpr Flag kTopInterval{.name = "interval",
                                   .kind = FlagKind::duration,
                                   .value = "T",
                                   .fallback = "1s",
                                   .help = "time between two screens; rates are means of it",
                                   .check = check_top_interval};

}  // namespace mc::flags

namespace mc::verbs {

inline constexpr auto kTopFlags = flags::join(kUrlFlags, flags::list(&flags::kTopInterval, &flags::kOnce));

/// Two looks at a cluster: the page /cluster before and now, and the page /requests now.
struct TopSample {
  Json before, now, requests;
  double seconds = 0;  // between the two; 0 if there is no look before

  /// The rates and the nodes, the object of --json.
  Json json() const;
  /// At most `rows` lines, none wider than `columns`.
  std::string screen(size_t columns, size_t rows) const;
};

/// On a terminal until q or ^C, elsewhere a screen an interval.
Result<int> top(const cli::Args& args);

}  // namespace mc::verbs
