#include "node/miss_reasons.h"

#include <algorithm>

namespace mc::node {
namespace {

// The fetch that gave the block up, if its reason says more than that the holder lacks the block.
const GivenUp* find_given_up(std::span<const GivenUp> given_up, uint32_t block) {
  const auto it = std::find_if(given_up.begin(), given_up.end(), [&](const GivenUp& up) {
    return block >= up.first_block && block < up.end_block && miss_of(up.why) != wire::MissKind::cold;
  });
  return it == given_up.end() ? nullptr : &*it;
}

bool computes(const MissReasons::Prompt& prompt, uint32_t block, const BlockHash& hash) {
  return !prompt.spec->no_cache && block >= prompt.cached && block < prompt.hashes.size() &&
         prompt.hashes[block] == hash;
}

}  // namespace

std::vector<wire::Miss> MissReasons::of(const Prompt& prompt, std::span<const GivenUp> given_up,
                                        std::span<const Prompt> computing, TimePoint now) const {
  using wire::MissKind;
  const wire::RequestSpec& spec = *prompt.spec;
  const uint32_t bt = shelf_.layout.block_tokens;
  const uint32_t all = kv::blocks_for(spec.ids.size(), bt), reusable = kv::reusable_blocks(spec.ids.size(), bt);
  // All blocks of a prompt are named under one namespace, so the first block stands for the later ones.
  const MissKind other_name =
      prompt.cached > 0 || reusable == 0
          ? MissKind::cold
          : memory_.other_name(std::span(spec.ids).first(bt), spec.prefill_attention, spec.salt);
  MissRuns runs;
  for (uint32_t block = prompt.cached; block < reusable; ++block) {
    const BlockHash& hash = prompt.hashes[block];
    const auto ago = memory_.evicted_ago(hash, now);
    if (spec.no_cache)
      runs.add(block, MissKind::no_cache);
    else if (spec.prompt_logprobs >= 0)
      runs.add(block, MissKind::prompt_logprobs);
    else if (spec.reuse_nothing)
      runs.add(block, MissKind::checksum, memory_.was_rotten(hash) ? self_ : "");
    // The block is cached, but the block before it is not.
    else if (!runs.empty() && shelf_.pool.find(hash) != kv::kNoPage)
      runs.extend();
    else if (memory_.was_rotten(hash))
      runs.add(block, MissKind::checksum, self_);
    else if (const GivenUp* up = find_given_up(given_up, block))
      runs.add(block, miss_of(up->why), up->node.empty() ? self_ : up->node, up->age_ms);
    else if (memory_.was_unreadable(hash))
      runs.add(block, MissKind::disk, self_);
    else if (ago)
      runs.add(block, MissKind::evicted, self_, static_cast<uint64_t>(*ago / 1ms));
    else if (std::ranges::any_of(computing, [&](const Prompt& other) { return computes(other, block, hash); }))
      runs.add(block, MissKind::not_published_yet, self_);
    else
      runs.add(block, other_name, other_name == MissKind::cold ? "" : self_);
  }
  for (uint32_t block = reusable; block < all; ++block)
    runs.add(block, spec.ids.size() < bt ? MissKind::shorter_than_block : MissKind::tail_partial);
  return runs.take();
}

}  // namespace mc::node
