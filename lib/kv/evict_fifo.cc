// First stored, first evicted: the plainest baseline to compare a policy with.
#include "kv/eviction.h"

namespace mc::kv {

const Eviction kFifo = {
    .name = "fifo",
    .summary = "oldest stored leaf of the prefix tree first, whatever its use",
    .rank = [](const Use& use) { return use.stored; },
};

}  // namespace mc::kv
