// The conductor daemon from flags to exit, and what `--local 2p2d1c` forks.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/cli.h"

namespace mc::run {

/// mc-conductor without a verb. Returns the exit code.
Result<int> serve_conductor(const cli::Args& args);

/// In the run directory: where the conductor answers operators of its own host.
inline constexpr std::string_view kOperatorsSocket = "conductor.http";

/// "2p2d1c" as counts; MC1002 for anything else.
struct LocalShape {
  int prefill = 0, decode = 0, cache = 0;
};
Result<LocalShape> parse_local(std::string_view text);

}  // namespace mc::run
