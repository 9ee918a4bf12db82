// The operator's verbs of mc-conductor: ps, wait, drain, undrain, explain, keygen. All but keygen ask a
// running conductor over HTTP.
#pragma once

#include <span>

#include "base/cli.h"

namespace mc::verbs {

extern const std::span<const cli::Verb> kConductorVerbs;

/// Runs the verb named by `args`. Exit code 3 when the conductor cannot be reached.
Result<int> run_conductor_verb(const cli::Args& args);

}  // namespace mc::verbs
