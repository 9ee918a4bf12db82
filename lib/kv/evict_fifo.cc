// First in, first out: the simplest baseline for a comparison of policies.
#include "kv/eviction.h"

namespace mc::kv {

const Eviction kFifo = {
    .name = "fifo",
    .summary = "oldest stored leaf of the prefix tree first, whatever its use",
    .rank = [](const Use& use) { return use.stored; },
};

}  // namespace mc::kv
