// Least recently used, tail first. Owners touch a chain from its last block to its first, so within one chain the tail
// has the older stamp and goes before the head (in a replay of Mooncake's trace, touching the head first costs hits as
// soon as the cache is small).
#include "kv/eviction.h"

namespace mc::kv {

const Eviction kLruTail = {
    .name = "lru-tail",
    .summary = "least recently used leaf of the prefix tree first",
    .rank = [](const Use& use) { return use.last_use; },
};

}  // namespace mc::kv
