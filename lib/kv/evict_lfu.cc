// Least frequently used while resident, then least recently used (Mooncake, arXiv:2407.00079, section 4: LFU).
#include <algorithm>

#include "kv/eviction.h"

namespace mc::kv {
namespace {
constexpr uint32_t kStampBits = 44;  // 1.7e13 touches; the counts above it saturate at about a million
}  // namespace

const Eviction kLfu = {
    .name = "lfu",
    .summary = "leaf with the fewest uses while resident, then the least recently used",
    .rank =
        [](const Use& use) {
          const uint64_t count = std::min<uint64_t>(use.use_count, (uint64_t{1} << (64 - kStampBits)) - 1);
          return count << kStampBits | (use.last_use & ((uint64_t{1} << kStampBits) - 1));
        },
};

}  // namespace mc::kv
