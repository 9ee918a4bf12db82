// A worker daemon from flags to exit: model, KV arena, both planes, control loop, pages, signals.
#pragma once

#include <string_view>

#include "base/cli.h"
#include "wire/messages.h"

namespace mc::host {

/// mc-prefill, mc-decode and mc-cache without a verb. Returns the exit code.
Result<int> serve_worker(wire::Role role, const cli::Args& args);

/// The header with which /livez of a worker names the file of its Unix socket in the run directory. The name has digits
/// of the instance, so a client sees whether the node that answers is the one that it means.
inline constexpr std::string_view kPagesSocketHeader = "x-mc-socket";

}  // namespace mc::host
