// The arguments of prefill and decode. Tensors are borrowed for the call. q, out and states are f32 for every KV dtype.
// With bf16 or fp8_e4m3 KV, q is rounded to bf16, like the model's own activations.
#pragma once

#include <cstdint>

#include "attn/mode.h"
#include "attn/state.h"
#include "attn/view.h"

namespace mc::attn {

/// Rows of one sequence: tokens at positions q_begin .. q_begin + rows - 1 against the KV of the sequence, which
/// includes their own K and V. A row at position p sees keys at positions <= p below kv_len. A negative position sees
/// no key: out 0, m = -inf. q_begin >= kv_len means a remote or shared prefix that every row sees whole (dense modes
/// only).
///
/// The result of a row depends only on its position, its q and the KV: not on the chunk, on page placement, or on
/// threads. This holds bit for bit, for one variant and CPU.
struct PrefillArgs {
  ExtentLayout layout;
  Mode mode;
  int32_t q_heads = 0;  // a multiple of layout.kv_heads; head h reads KV head h / (q_heads / kv_heads)
  int64_t rows = 0;
  int64_t q_begin = 0;
  const float* q = nullptr;  // [rows, q_heads, head_dim]
  int64_t q_stride = 0;      // floats from row to row; 0 = q_heads * head_dim
  KvView kv;
  float* out = nullptr;  // [rows, q_heads, head_dim], normalised; may be null when state is given
  int64_t out_stride = 0;
  StateView state;  // optional: rows * q_heads rows
  float scale = 0;  // 0 = 1 / sqrt(head_dim)
  /// Selected history blocks of each sparse row: [rows, q_heads, top_k - 1] ascending, then -1. `selection_in` replaces
  /// the gate. `selection_out` receives the blocks that were used (-1 for dense rows).
  const int32_t* selection_in = nullptr;
  int32_t* selection_out = nullptr;
};

/// One row of each sequence: its last token, at position kv_len - 1 (already appended). The result of a sequence does
/// not depend on the other sequences, on its index, on page placement or on threads. This holds bit for bit.
struct DecodeArgs {
  ExtentLayout layout;
  int32_t q_heads = 0;
  int64_t sequences = 0;
  const Mode* modes = nullptr;  // [sequences]
  const float* q = nullptr;     // [sequences, q_heads, head_dim]
  int64_t q_stride = 0;
  const KvView* kv = nullptr;  // [sequences]; kv_len 0 gives out 0, m = -inf
  float* out = nullptr;        // [sequences, q_heads, head_dim]
  int64_t out_stride = 0;
  StateView state;  // optional: sequences * q_heads rows
  float scale = 0;
};

}  // namespace mc::attn
