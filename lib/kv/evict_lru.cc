// Least recently used in the order of a prompt: the plain policy, which Mooncake's table names LRU
// (arXiv:2407.00079, section 4). Compare lru-tail.
#include "kv/eviction.h"

namespace mc::kv {

const Eviction kLru = {
    .name = "lru",
    .summary = "least recently used leaf, where a prompt uses its blocks from the first to the last",
    .rank = [](const Use& use) { return use.last_use; },
    .head_first = true,
};

}  // namespace mc::kv
