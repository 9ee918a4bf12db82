// Fewest uses while resident, then the later position in its prompt (Mooncake, arXiv:2407.00079, section 4:
// LengthAwareCache). Blocks far down a prompt are shared by fewer prompts.
#include <algorithm>

#include "kv/eviction.h"

namespace mc::kv {
namespace {

// | uses, saturating: 12 bits | blocks from the end of 16 Mi tokens, in steps of 16: 20 bits | stamp: 32 bits |
constexpr uint64_t kUsesMax = 0xfff, kPlacesMax = 0xfffff;
constexpr uint32_t kPlaceTokens = 16;  // the smallest block

uint64_t rank(const Use& use) {
  const uint64_t uses = std::min<uint64_t>(std::max(use.use_count, 1u), kUsesMax);
  const uint64_t place = std::min<uint64_t>(use.first_position / kPlaceTokens, kPlacesMax);
  return uses << 52 | (kPlacesMax - place) << 32 | (use.last_use & 0xffffffff);
}

}  // namespace

const Eviction kLengthAware = {
    .name = "length-aware",
    .summary = "leaf with the fewest uses while resident, then the one farthest down its prompt",
    .rank = rank,
};

}  // namespace mc::kv
