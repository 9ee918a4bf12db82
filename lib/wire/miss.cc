#include "wire/miss.h"

#include <algorithm>
#include <iterator>

#include "base/assert.h"

namespace mc::wire {
namespace {

constexpr MissRow kMisses[] = {
    {MissKind::none, "", ""},
    {MissKind::cold, "cold", "the node never had them, as far as it remembers, and was told of no node that has them"},
    {MissKind::evicted, "evicted", "the node had them and gave their pages to other blocks"},
    {MissKind::layout, "layout", "the node has the tokens under another attention, or nothing of this model"},
    {MissKind::salt, "salt", "the node has the tokens under another cache salt"},
    {MissKind::not_published_yet, "not-published-yet", "the node was still computing them"},
    {MissKind::node_down, "node-down", "the node that has them was gone, or its connection broke"},
    {MissKind::checksum, "checksum", "their bytes had changed, in memory or on their way"},
    {MissKind::timeout, "timeout", "the node that has them did not answer in time"},
    {MissKind::no_space, "no-space", "no pages were free to fetch them into, or no lease was free"},
    {MissKind::no_cache, "no-cache", "the request asked for no cached blocks"},
    {MissKind::prompt_logprobs, "prompt-logprobs",
     "the request asked for the prompt's log-probabilities, which cached blocks do not have"},
    {MissKind::shorter_than_block, "shorter-than-block", "the prompt is shorter than a block"},
    {MissKind::tail_partial, "tail-partial", "the end of a prompt, from its last whole block on, is always computed"},
};

constexpr std::string_view kFetch = "fetch:";

constexpr FallbackRow kFallbacks[] = {
    {Fallback::none, "", MissKind::none},
    {Fallback::peer_lost, "peer_lost", MissKind::node_down},
    {Fallback::lease_timeout, "lease_timeout", MissKind::timeout},
    {Fallback::read_timeout, "read_timeout", MissKind::timeout},
    {Fallback::absent, "not_found", MissKind::cold},
    {Fallback::evicted, "evicted", MissKind::evicted},
    {Fallback::layout, "layout", MissKind::layout},
    {Fallback::unknown_peer, "unknown_peer", MissKind::node_down},
    {Fallback::not_published_yet, "not_published_yet", MissKind::not_published_yet},
    {Fallback::bad_grant, "bad_grant", MissKind::checksum},
    {Fallback::no_pages, "no_pages", MissKind::no_space},
    {Fallback::refused, "busy", MissKind::no_space},
    {Fallback::corrupt, "corrupt", MissKind::checksum},
    {Fallback::transfer, "io", MissKind::node_down},
};

std::string seconds(uint64_t ms) {
  return std::to_string(ms / 1000) + "." + std::to_string(ms / 100 % 10) + " s";
}

}  // namespace

std::span<const MissRow> miss_rows() {
  return kMisses;
}

std::string_view to_string(MissKind kind) {
  const auto index = static_cast<size_t>(kind);
  MC_ASSERT(index < std::size(kMisses) && kMisses[index].kind == kind);
  return kMisses[index].name;
}

MissKind miss_from(std::string_view name) {
  const auto row = std::ranges::find(kMisses, name, &MissRow::name);
  return row == std::end(kMisses) ? MissKind::none : row->kind;
}

std::string describe(const Miss& miss) {
  std::string out(to_string(miss.kind));
  if (miss.kind == MissKind::evicted)
    return out + (miss.node.empty() ? "" : " by " + miss.node) + " " + seconds(miss.age_ms) + " ago";
  return out + (miss.node.empty() ? "" : " at " + miss.node);
}

std::span<const FallbackRow> fallback_rows() {
  return kFallbacks;
}

std::string_view to_string(Fallback fallback) {
  const auto index = static_cast<size_t>(fallback);
  MC_ASSERT(index < std::size(kFallbacks) && kFallbacks[index].fallback == fallback);
  return kFallbacks[index].name;
}

std::string describe(Fallback fallback) {
  return fallback == Fallback::none ? "" : std::string(kFetch) + std::string(to_string(fallback));
}

Fallback fallback_from(std::string_view name) {
  if (name.starts_with(kFetch)) name.remove_prefix(kFetch.size());
  const auto row = std::ranges::find(kFallbacks, name, &FallbackRow::name);
  return row == std::end(kFallbacks) ? Fallback::none : row->fallback;
}

MissKind miss_of(Fallback fallback) {
  MC_ASSERT_LT(static_cast<size_t>(fallback), std::size(kFallbacks));
  return kFallbacks[static_cast<size_t>(fallback)].miss;
}

}  // namespace mc::wire
