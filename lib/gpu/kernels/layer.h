// Arguments of the kernels of a transformer layer beside attention (layer_sm80.cu, gemm_sm80.cu), as the host fills
// them and the device reads them. Activations between layers are f32; inputs of matrix products are bf16. Addresses are
// the device's.
#pragma once

#include <cstdint>

#include "gpu/kernels/attention.h"
#include "gpu/kernels/draw.h"

namespace mc::gpu {

constexpr int kRowsPerCta = 4;  // of the kernels with a warp a row

/// x[row] = the embedding of tokens[row], widened. Grid: (rows).
struct EmbedArgs {
  const int32_t* tokens = nullptr;  // [rows], each below the rows of the table; fed_token() of fed.cuh takes each
  const uint16_t* table = nullptr;  // bf16 [vocab, columns]
  const Drawn* fed = nullptr;       // results of the step before
  float* x = nullptr;               // [rows, columns]
  int32_t columns = 0;
};

/// out = bf16(x / sqrt(mean(x^2) + epsilon) * weight). Grid: (rows / kRowsPerCta, rounded up).
struct NormArgs {
  const float* x = nullptr;       // [rows, columns]
  const float* weight = nullptr;  // [columns]
  uint16_t* out = nullptr;        // bf16 [rows, columns]
  int32_t rows = 0, columns = 0;
  float epsilon = 0;
};

/// y[row] += x for every row. Grid: (rows).
struct AddArgs {
  const float* x = nullptr;  // [columns]
  float* y = nullptr;        // [rows, columns]
  int32_t columns = 0;
};

/// out = bf16(gate / (1 + exp(-gate)) * up). Grid: (rows).
struct SiluArgs {
  const float* gate_up = nullptr;  // [rows, 2 columns]: gate, then up
  uint16_t* out = nullptr;         // bf16 [rows, columns]
  int32_t columns = 0;
};

/// y = x w^T, or y += x w^T. Grid: (columns / 64, rows / 64 or 16, both rounded up).
struct ProductArgs {
  const uint16_t* x = nullptr;  // bf16 [rows, inner]; inner a multiple of 8
  const uint16_t* w = nullptr;  // bf16 [columns, inner]
  float* y = nullptr;           // [rows, columns]
  int32_t rows = 0, columns = 0, inner = 0;
  bool adds = false;
};

/// Dynamic shared memory of the products, with `rows` of 64 or 16: two stages of 64 columns of x and w.
constexpr uint32_t product_shared(uint32_t rows) {
  return 2 * (rows + 64) * 128;
}

/// The place of one row's K and V.
struct RowPlace {
  int32_t page = 0, slot = 0;  // page number, and the row in it; page -1: the row has no place
};

/// Normalises the heads of q and k if the model does, turns them by RoPE, and writes q for attention, and K and V into
/// pages and, where it is asked for, side by side. K and V of pages of codes stay in qkv for code_rows. Grid: (rows,
/// (q_heads + 2 kv_heads) / kRowsPerCta, rounded up).
struct RotateArgs {
  KvPool pool;
  float* qkv = nullptr;           // [rows, (q_heads + 2 kv_heads) head_dim]
  const float* cosine = nullptr;  // [rows, head_dim / 2]
  const float* sine = nullptr;
  const float* q_norm = nullptr;  // [head_dim], or null
  const float* k_norm = nullptr;
  const RowPlace* places = nullptr;  // [rows]
  uint16_t* q = nullptr;             // bf16 [rows, q_heads, head_dim]
  uint16_t* kept = nullptr;          // bf16 [kept_rows, 2, kv_heads, head_dim]: K and V once more, side by side
  int32_t kept_rows = 0;             // the first rows, which are written to `kept` too
  int32_t q_heads = 0, head_dim = 0;
  float epsilon = 0;
};

/// Rows of a pass, side by side in it, that become rows `slot`, `slot` + 1, ... of a page.
struct PageRows {
  int32_t page = 0, slot = 0;  // page -1: there are none
  int32_t first = 0, count = 0;
};

/// Stores K and V of rows as codes of E4M3 under the scales of their pages, bit for bit as attn/seal.h does. A page's
/// rows are those of one PageRows. Grid: (pages, kv_heads, 2): K, then V; kCodeShared bytes of shared memory.
struct CodeArgs {
  KvPool pool;
  const float* qkv = nullptr;       // that rotate_and_keep has turned
  const PageRows* pages = nullptr;  // [pages]
  unsigned char* kept = nullptr;    // [kept_rows, kept_code_bytes()]
  int32_t kept_rows = 0;            // the first rows, which are written to `kept` too
  int32_t q_heads = 0, head_dim = 0;
};
constexpr int kPageRowsMax = 512;
constexpr uint32_t kCodeShared =
    (kPageRowsMax + kThreads / 32) * 4;  // exponents: of each row, the largest of each warp
/// A kept row: codes [2, kv_heads, head_dim] under scales of their own, which follow as f32 [2, kv_heads].
constexpr uint32_t kept_code_bytes(uint32_t kv_heads, uint32_t head_dim) {
  return 2 * kv_heads * (head_dim + 4);
}

/// to[i] = from[rows[i]]. Grid: (rows of `to`).
struct GatherArgs {
  const uint32_t* from = nullptr;  // [..., words]
  uint32_t* to = nullptr;          // [grid, words]
  const int32_t* rows = nullptr;   // [grid]
  int32_t words = 0;               // of a row
};

/// Zeroes the rows of a page behind its tokens and writes ksum and kmean, bit for bit as attn/seal.h does.
/// Grid: (pages, kv_heads).
struct SealArgs {
  KvPool pool;
  const RowPlace* pages = nullptr;  // [pages]: the page, and its tokens as `slot`; page -1: nothing is sealed
  int32_t head_dim = 0;
};

/// CRC32C of a layer's extents, as base/hash.h defines it. Grid: (pages); kChecksumShared bytes of shared memory.
struct ChecksumArgs {
  const unsigned char* extents = nullptr;  // the layer's extent in page 0, aligned to 4
  uint64_t page_bytes = 0;
  const RowPlace* pages = nullptr;  // [pages]; `slot` is not used; page -1: nothing is summed
  uint32_t* sums = nullptr;         // [pages]
  uint32_t words = 0;               // 32-bit words of an extent
  uint32_t start = 0;               // crc32c_shift(0xffffffff, bytes of an extent)
};
constexpr uint32_t kChecksumShared = 16;  // a word for each of four warps

}  // namespace mc::gpu
