#include "wire/end_reason.h"

#include <algorithm>
#include <iterator>

#include "base/assert.h"

namespace mc::wire {
namespace {

// The words are in the order of the enums.
constexpr std::string_view kDemoteEnds[] = {"",         "full",   "failed",       "corrupt",
                                            "draining", "layout", "unknown_peer", "other"};
static_assert(std::size(kDemoteEnds) == static_cast<size_t>(kDemoteEndLast) + 1);

constexpr std::string_view kCopyEnds[] = {
    "",         "invalid",       "unknown_peer", "busy",      "no_space",  "bad_grant", "peer_lost",
    "timeout",  "lease_timeout", "read_timeout", "not_found", "evicted",   "layout",    "not_published_yet",
    "no_pages", "corrupt",       "unsupported",  "io",        "cancelled", "disk",      "stage",
    "other",
};
static_assert(std::size(kCopyEnds) == static_cast<size_t>(kCopyEndLast) + 1);

template <class Enum, size_t kCount>
Enum named(const std::string_view (&words)[kCount], std::string_view word, Enum otherwise) {
  const auto* const at = std::ranges::find(words, word);
  return at == std::end(words) ? otherwise : static_cast<Enum>(at - words);
}

}  // namespace

std::string_view to_string(DemoteEnd end) {
  MC_ASSERT(end <= kDemoteEndLast);
  return kDemoteEnds[static_cast<size_t>(end)];
}

DemoteEnd demote_end_from(std::string_view word) {
  return named(kDemoteEnds, word, DemoteEnd::other);
}

std::string_view to_string(CopyEnd end) {
  MC_ASSERT(end <= kCopyEndLast);
  return kCopyEnds[static_cast<size_t>(end)];
}

CopyEnd copy_end_from(std::string_view word) {
  return named(kCopyEnds, word, CopyEnd::other);
}

}  // namespace mc::wire
