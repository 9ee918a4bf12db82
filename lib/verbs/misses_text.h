// The lines that tell why blocks of a prompt were computed and not taken from a cache.
#pragma once

#include <string>

#include "base/json.h"

namespace mc::verbs {

/// "blocks 12..19 computed: evicted by p0 3.2 s ago", of one run of blocks in the misses of a record or an answer.
std::string missed_line(const Json& run);

}  // namespace mc::verbs
