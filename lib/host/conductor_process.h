// The conductor daemon from flags to exit.
#pragma once

#include <string_view>

#include "base/cli.h"

namespace mc::host {

/// mc-conductor without a verb. Returns the exit code.
Result<int> serve_conductor(const cli::Args& args);

/// In the run directory: where the conductor answers operators of its own host.
inline constexpr std::string_view kOperatorsSocket = "conductor.http";

}  // namespace mc::host
