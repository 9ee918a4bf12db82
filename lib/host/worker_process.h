// A worker daemon from flags to exit: model, KV arena, both planes, control loop, pages, signals.
#pragma once

#include "base/cli.h"
#include "wire/messages.h"

namespace mc::host {

/// mc-prefill, mc-decode and mc-cache without a verb. Returns the exit code.
Result<int> serve_worker(wire::Role role, const cli::Args& args);

}  // namespace mc::host
