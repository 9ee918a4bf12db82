#include "node/prefill_pass.h"

#include <algorithm>

#include "base/assert.h"

namespace mc::node {

PassRoom::PassRoom(const Limits& limits, std::span<const Ptr> computing) : limits_(limits), computing_(computing) {
  const auto is_short = [](const Ptr& r) {
    return r->work.run != 0 && r->is_last_chunk() && !r->arriving && r->spec.prompt_logprobs < 0;
  };
  is_shared_ = limits.tokens > 0 && computing.size() < kRequestsMax && std::ranges::all_of(computing, is_short);
  if (!is_shared_) return;
  for (const Ptr& r : computing) tokens_ += r->work.end - r->work.next, blocks_ += r->pages.size();
}

bool PassRoom::takes(const PrefillRequest& r, uint32_t here) const {
  MC_ASSERT_LE(here, r.reusable);
  const uint32_t rest = r.tokens() - here * limits_.block_tokens;
  const uint64_t blocks = uint64_t{blocks_} + kv::blocks_for(r.tokens(), limits_.block_tokens);
  const auto computes = [&](const Ptr& other) {
    return here < other->hashes.size() && other->hashes[here] == r.hashes[here];
  };
  return is_shared_ && r.spec.prompt_logprobs < 0 && tokens_ + rest <= limits_.tokens &&
         blocks * limits_.block_tokens <= limits_.context_tokens &&
         (here == r.reusable || std::ranges::none_of(computing_, computes));
}

void share_time(std::span<const PassRoom::Ptr> computing) {
  if (computing.size() == 1) return;
  double tokens = 0;
  for (const auto& r : computing) tokens += r->work.end - r->work.next;
  for (const auto& r : computing) r->work.share = (r->work.end - r->work.next) / tokens;
}

size_t last_run(const Actions& actions) {
  size_t at = actions.size();
  while (at > 0 && !std::holds_alternative<RunChunk>(actions[at - 1])) --at;
  MC_ASSERT_LT(0u, at);
  return at - 1;
}

}  // namespace mc::node
