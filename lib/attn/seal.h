// Writes K and V of new tokens into pages, and the gate data that MoBA needs of every page:
//   ksum   f32 sum of the page's keys as stored, by a fixed pairwise tree over its block_tokens rows
//          (rows beyond the last token are zero), so it does not depend on how the tokens arrived
//   kmean  bf16(ksum / block_tokens): the centroid of a full page
// The centroid of a moba_block of r pages is bf16((ksum_0 + ... + ksum_{r-1}) / (r block_tokens)), added in page order,
// so chunked, resumed and one-shot prefill select equal blocks.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attn/view.h"
#include "base/dtype.h"

namespace mc {
class Parallel;
}

namespace mc::attn {

struct AppendArgs {
  ExtentLayout layout;
  KvTarget target;       // pages of the sequence, this layer
  int64_t position = 0;  // position of the first new token
  int64_t tokens = 0;
  const float* k = nullptr;  // [tokens, kv_heads, head_dim], after RoPE; rounded to layout.dtype (base/extent.h)
  const float* v = nullptr;  // likewise
  int64_t k_stride = 0;      // floats from token to token; 0 = kv_heads * head_dim
  int64_t v_stride = 0;
};

/// Writes the rows and seals every page that becomes full. A page that stays open has undefined bytes beyond its last
/// token until seal(). Runs on `parallel` if given. No reader may share the pages.
void append(const AppendArgs& args, Parallel* parallel = nullptr);

/// Appends row `row` of K and V of one layer of a page, which stays unsealed, from codes that another device has made
/// under the scale of each head's row (base/e4m3.h): [2, kv_heads, head_dim], and their scales, f32 [2, kv_heads].
void append_codes(const ExtentLayout& layout, std::byte* layer, int64_t row, const std::byte* codes);

/// Seals one layer of one page of `tokens` tokens: zeroes the rows beyond and writes ksum, kmean. It is for partial
/// tails before they travel, because append() seals full pages. layer = page + layer_offset.
void seal(const ExtentLayout& layout, std::byte* layer, int64_t tokens);

/// The centroid of moba_block `index` of `moba_block` tokens, bf16 [head_dim]. The block must be complete.
void centroid(const ExtentLayout& layout, const KvView& kv, int kv_head, int32_t moba_block, int64_t index,
              bf16_t* out);

}  // namespace mc::attn
