#include "node/decode_request.h"

#include "base/assert.h"

namespace mc::node {

// The prompt, and after it the answer; a prompt that was resumed ends with the answer of earlier attempts.
std::vector<uint32_t> DecodeRequest::block_ids(uint32_t block, uint32_t block_tokens) const {
  std::vector<uint32_t> out;
  out.reserve(block_tokens);
  for (size_t at = size_t{block} * block_tokens; out.size() < block_tokens; ++at) {
    const size_t in_answer = at - prompt_tokens();
    MC_ASSERT(at < spec.ids.size() || in_answer < answer.size());
    out.push_back(at < spec.ids.size() ? spec.ids[at] : answer[in_answer]);
  }
  return out;
}

std::vector<uint32_t> DecodeRequest::prompt_crcs(const kv::Pool& pool, uint32_t blocks) const {
  std::vector<uint32_t> out;
  for (uint32_t block = 0; block < blocks; ++block) {
    const auto sums = block < have_blocks ? pool.meta(pages[block]).layer_crcs : crcs(block);
    out.insert(out.end(), sums.begin(), sums.end());
  }
  return out;
}

RunChunk DecodeRequest::chunk(uint32_t block_tokens) const {
  MC_ASSERT(inlined && spec.prompt_logprobs < 0);
  RunChunk chunk;
  chunk.start = chunk.reused = have_blocks * block_tokens;
  MC_ASSERT_LT(chunk.start, spec.ids.size());
  chunk.tokens.assign(spec.ids.begin() + chunk.start, spec.ids.end());
  const auto held = pages.all().first(kv::blocks_for(spec.ids.size(), block_tokens));
  chunk.pages.assign(held.begin(), held.end());
  const auto on_device = device.pages.all().first(device.pages.empty() ? 0 : held.size());
  chunk.device_pages.assign(on_device.begin(), on_device.end());
  chunk.attention = spec.prefill_attention;
  chunk.sample = true;
  chunk.sampling = spec.sampling;
  if (spec.sampling.needs_history()) chunk.history = spec.ids;
  chunk.prompt_tokens = prompt_tokens();
  if (spec.resumed < spec.stopping.min_tokens) chunk.banned = spec.stopping.stop_ids;
  return chunk;
}

wire::KvReport DecodeRequest::kv_report(uint32_t block_tokens) const {
  wire::KvReport out;
  out.req = spec.req, out.attempt = spec.attempt;
  out.local = have_blocks * block_tokens;
  out.from_holders = from_holders.blocks * block_tokens;
  MC_ASSERT_LE(out.local + out.from_holders, spec.ids.size());
  out.from_prefill = static_cast<uint32_t>(spec.ids.size()) - out.local - out.from_holders;
  out.holders = from_holders.tokens;
  if (from_holders.blocks > 0) out.holders_ms = to_ms(from_holders.ended - from_holders.began);
  out.fallback = from_holders.fallback;
  out.reads = from_holders.reads;
  return out;
}

}  // namespace mc::node
