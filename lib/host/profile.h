// A profile as users name it: a file, or one of the built-in ones.
#pragma once

#include <optional>
#include <string>

#include "base/cli.h"
#include "base/result.h"
#include "sched/profile.h"

namespace mc::host {

/// `name` is a path when it holds a '/' or ends in ".toml", else a built-in profile.
Result<sched::Profile> open_profile(const std::string& name);
/// --runner: nothing for "model", a profile for "costed:NAME".
Result<std::optional<sched::Profile>> runner_profile(const cli::Args& args);

}  // namespace mc::host
