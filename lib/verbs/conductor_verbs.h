// The operator's verbs of mc-conductor: ps, wait, drain, undrain, explain, keygen. All but keygen ask a
// running conductor over HTTP.
#pragma once

#include <span>

#include "base/cli.h"

namespace mc::verbs {

/// All but keygen end with exit code 3 when the conductor cannot be reached.
extern const std::span<const cli::Verb> kConductorVerbs;

}  // namespace mc::verbs
