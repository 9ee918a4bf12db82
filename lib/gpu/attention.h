// Attention of a batch on a device: what the kernels of lib/gpu/kernels compute, in the meaning of lib/attn (attn/
// args.h, attn/visible.h). Prefill and decode are one call; they differ in the rows of a sequence.
#pragma once

#include <cstdint>
#include <vector>

#include "attn/visible.h"
#include "base/extent.h"
#include "gpu/gpu.h"

namespace mc::gpu {

/// Rows of one sequence: tokens at positions q_begin .. q_begin + tokens - 1, whose K and V are in the pool already.
struct SequenceRows {
  int64_t q_begin = 0, kv_len = 0;
  int32_t tokens = 0;
  std::vector<int32_t> pages;  // numbers in the pool, of all kv_len tokens
  attn::Mode mode;
};

enum class AttentionKernel : uint8_t {
  automatic,  // by the rows and the device
  prefill,    // 64 rows of a KV head share what they read
  decode,     // 16 rows; the keys of a tile go to different warps
  hopper,     // prefill by TMA and wgmma: compute capability 9.0 alone
};

/// One layer. Addresses are the device's; q and out are bf16 [tokens of all sequences, q_heads, head_dim].
struct AttentionCall {
  ExtentLayout layout;
  uint64_t pool = 0;        // the layer's extent in page 0
  uint64_t page_bytes = 0;  // from page to page
  int32_t q_heads = 0;
  std::vector<SequenceRows> sequences;
  uint64_t q = 0, out = 0;
  float scale = 0;               // 0 = 1 / sqrt(head_dim)
  uint64_t selection = 0;        // MoBA: int32 [tokens, q_heads, top_k - 1], written by the gate; 0: scratch memory
  bool selection_given = false;  // it is read instead
  AttentionKernel kernel = AttentionKernel::automatic;
  int32_t splits = 1;  // CTAs that share the keys of a row tile
};

/// Queues on the device's own stream. Code::unsupported names the limit: head_dim 64 or 128, bf16,
/// pages of a multiple of 64 tokens, at most 17 for top_k and 8192 MoBA blocks, at most 16 query heads a KV head in
/// decode.
Result<void> attend(Device& device, const AttentionCall& call);

}  // namespace mc::gpu
