#include "wire/miss.h"

#include <algorithm>
#include <iterator>

#include "base/assert.h"

namespace mc::wire {
namespace {

constexpr MissRow kMisses[] = {
    {MissKind::none, "", "", ""},
    {MissKind::cold, "cold", "the node has no record of the blocks, and no other node was named for them",
     "a new prompt needs no step; a repeated one is found once its blocks are published"},
    {MissKind::evicted, "evicted",
     "the node evicted the blocks to free their pages, or an operator did with mc-cache evict",
     "raise --kv-mem on the node, or add an mc-cache node; mc-cache pin spares blocks from both"},
    {MissKind::layout, "layout", "the node has the tokens under another attention plan, or nothing of this model",
     "start all nodes with one model and one --attention"},
    {MissKind::salt, "salt", "the node has the tokens under another cache salt",
     "send the same cache_salt; blocks of different tenants never match"},
    {MissKind::not_published_yet, "not-published-yet", "the node was still computing the blocks",
     "with --hold, requests wait for a prefix that is being computed"},
    {MissKind::node_down, "node-down", "the node that has the blocks was lost, or its connection broke",
     "mc-conductor ps lists the nodes that are left; the log of the lost node names the cause"},
    {MissKind::checksum, "checksum", "the bytes of the blocks changed in memory or during the transfer",
     "check memory and network of the named node"},
    {MissKind::timeout, "timeout", "the node that has the blocks did not answer in time",
     "check load and network of the named node"},
    {MissKind::no_space, "no-space", "no pages were free for the blocks, or no lease was free",
     "raise --kv-mem on the node that computes"},
    {MissKind::no_cache, "no-cache", "the request excluded cached blocks", "leave no_cache out of the request"},
    {MissKind::prompt_logprobs, "prompt-logprobs",
     "the request asked for the prompt's log-probabilities, which cached blocks do not have",
     "leave prompt_logprobs out of the request"},
    {MissKind::shorter_than_block, "shorter-than-block", "the prompt is shorter than a block",
     "lower --block-tokens if short prompts repeat"},
    {MissKind::tail_partial, "tail-partial", "the end of a prompt, from its last whole block on, is always computed",
     "lower --block-tokens if the last blocks of prompts matter"},
    {MissKind::disk, "disk", "the blocks were on the node's disk, which failed or did not give them in time",
     "check the disk of the named node; mc-conductor ps shows its last error"},
    {MissKind::stage, "stage", "a stage of the node's pipeline refused to read the blocks",
     "mc-conductor ps shows the last error of the node, which names the stage and the cause"},
};

constexpr std::string_view kFetch = "fetch:";

constexpr FallbackRow kFallbacks[] = {
    {Fallback::none, "", MissKind::none, ""},
    {Fallback::peer_lost, "peer_lost", MissKind::node_down, "the source node was lost"},
    {Fallback::lease_timeout, "lease_timeout", MissKind::timeout, "the source node granted no lease in time"},
    {Fallback::read_timeout, "read_timeout", MissKind::timeout, "the read did not end in time"},
    {Fallback::absent, "not_found", MissKind::cold, "the source node no longer had the blocks"},
    {Fallback::evicted, "evicted", MissKind::evicted, "the source node had evicted the blocks"},
    {Fallback::layout, "layout", MissKind::layout, "the blocks of the source node have another layout"},
    {Fallback::unknown_peer, "unknown_peer", MissKind::node_down,
     "the reader is not in the source node's list of members"},
    {Fallback::not_published_yet, "not_published_yet", MissKind::not_published_yet,
     "the node was still computing the blocks"},
    {Fallback::bad_grant, "bad_grant", MissKind::checksum, "the lease named other blocks than requested"},
    {Fallback::no_pages, "no_pages", MissKind::no_space, "no pages were free for the blocks"},
    {Fallback::refused, "busy", MissKind::no_space, "the source node had no free lease"},
    {Fallback::corrupt, "corrupt", MissKind::checksum, "bytes failed their checksum"},
    {Fallback::transfer, "io", MissKind::node_down, "the transfer failed"},
    {Fallback::disk, "disk", MissKind::disk, "the disk of the source node failed or did not give the blocks in time"},
    {Fallback::stage, "stage", MissKind::stage, "a stage of the reading pipeline refused the read"},
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
