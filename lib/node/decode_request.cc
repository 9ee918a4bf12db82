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

}  // namespace mc::node
