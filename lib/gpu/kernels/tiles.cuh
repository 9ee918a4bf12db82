// Tiles of rows in shared memory: their layout, the copy of key tiles from pages by cp.async, and the widening of codes
// of E4M3 to bf16.
#pragma once

#include "base/e4m3.h"
#include "gpu/kernels/attention.h"
#include "gpu/ptx/arithmetic.cuh"
#include "gpu/ptx/memory.cuh"
#include "gpu/ptx/warp.cuh"

namespace mc::gpu {

/// Byte offset of 16-byte chunk `chunk` of row `row` in a tile of rows of kDim bf16. The chunks of 8 rows are permuted
/// so that the 8 rows that ldmatrix reads together lie in different banks.
template <int kDim>
MC_DEVICE uint32_t chunk_at(int row, int chunk) {
  return static_cast<uint32_t>(row * kDim * 2 + ((chunk ^ (row & 7)) << 4));
}

/// Shared memory of a CTA: the query tile, two stages of K and V, and the union of the rows' MoBA blocks.
template <int kDim, int kRows>
struct SharedLayout {
  static constexpr uint32_t kTile = kKeyTile * kDim * 2;
  static constexpr uint32_t kStages = kRows * kDim * 2;
  static constexpr uint32_t kUnion = kStages + 4 * kTile;
  static constexpr uint32_t kBytes = kUnion + kUnionBlocksMax / 8;
};

/// The place of a key tile's page in the page table.
MC_DEVICE int32_t page_of(const KvPool& pool, int32_t tile) {
  return tile * kKeyTile / pool.block_tokens;
}
/// The record of the KV head in page number `number`.
MC_DEVICE const unsigned char* record_in(const KvPool& pool, int32_t number, int kv_head) {
  return pool.base + number * pool.page_bytes + kv_head * pool.head_bytes;
}

/// Queues the copy of K and V of one key tile into a stage; rows at and behind kv_len become zero. `number_of(page)`:
/// the number of the page at a place of the page table.
template <int kDim, class NumberOf>
MC_DEVICE void copy_tile(const KvPool& pool, const Sequence& sequence, int kv_head, int32_t tile, uint32_t stage,
                         const NumberOf& number_of) {
  constexpr int kChunks = kDim / 8;
  const int32_t key = tile * kKeyTile;
  const int32_t page = key / pool.block_tokens;
  const unsigned char* record = pool.base + number_of(page) * pool.page_bytes + kv_head * pool.head_bytes;
  record += (key - page * pool.block_tokens) * (kDim * 2);
  for (int i = ptx::tid_x(); i < kKeyTile * kChunks; i += kThreads) {
    const int row = i / kChunks, chunk = i % kChunks;
    const uint32_t bytes = key + row < sequence.kv_len ? 16 : 0;
    const unsigned char* from = record + row * (kDim * 2) + chunk * 16;
    const uint32_t to = stage + chunk_at<kDim>(row, chunk);
    ptx::cp_async_16(to, from, bytes);
    ptx::cp_async_16(to + SharedLayout<kDim, 0>::kTile, from + pool.v_offset, bytes);
  }
}
template <int kDim>
MC_DEVICE void load_tile(const KvPool& pool, const Sequence& sequence, int kv_head, int32_t tile, uint32_t stage) {
  copy_tile<kDim>(pool, sequence, kv_head, tile, stage, [&](int32_t page) { return ptx::load(sequence.pages + page); });
}
/// Queues the copy of a key tile whose page has this number.
template <int kDim>
MC_DEVICE void load_tile(const KvPool& pool, const Sequence& sequence, int kv_head, int32_t tile, int32_t number,
                         uint32_t stage) {
  copy_tile<kDim>(pool, sequence, kv_head, tile, stage, [&](int32_t) { return number; });
}

/// The scales of a key tile's page.
struct TileScales {
  float k = 0, v = 0;
};

/// Queues the copy of the codes of one key tile into a stage: K, then V, each [kKeyTile][kDim] bytes. Rows at and
/// behind kv_len become zero. Returns the scales.
template <int kDim>
MC_DEVICE TileScales load_codes(const KvPool& pool, const Sequence& sequence, int kv_head, int32_t tile, int32_t number,
                                uint32_t stage) {
  constexpr int kChunks = kDim / 16;
  const int32_t key = tile * kKeyTile;
  const unsigned char* record = record_in(pool, number, kv_head);
  const unsigned char* from = record + key % pool.block_tokens * kDim;
  for (int i = ptx::tid_x(); i < kKeyTile * kChunks; i += kThreads) {
    const uint32_t bytes = key + i / kChunks < sequence.kv_len ? 16 : 0;
    ptx::cp_async_16(stage + i * 16, from + i * 16, bytes);
    ptx::cp_async_16(stage + kKeyTile * kDim + i * 16, from + pool.v_offset + i * 16, bytes);
  }
  const float* scales = reinterpret_cast<const float*>(record + pool.scale_offset);
  return {ptx::load(scales), ptx::load(scales + 1)};
}

/// The bf16 bits of two codes times a scale, the first in the low half: exact.
MC_DEVICE uint32_t widen_codes(uint32_t low, uint32_t high, float scale) {
  const float a = ptx::mul_rn(e4m3_to_f32(static_cast<uint8_t>(low)), scale);
  const float b = ptx::mul_rn(e4m3_to_f32(static_cast<uint8_t>(high)), scale);
  return ptx::to_bits(a) >> 16 | (ptx::to_bits(b) & 0xffff0000u);
}

/// Widens one matrix of a stage of codes into a tile of bf16.
template <int kDim>
MC_DEVICE void widen_matrix(uint32_t codes, float stored_scale, uint32_t tile) {
  constexpr int kPairs = kDim / 2;  // of a row; neighbouring threads store in neighbouring banks
  float scale = e4m3_scale(e4m3_exponent_of(stored_scale));
  if (ptx::has_fault(Fault::codes_unscaled)) scale = 1;
  for (int i = ptx::tid_x(); i < kKeyTile * kPairs; i += kThreads) {
    const uint32_t pair = ptx::load_shared_u32(codes + i / 2 * 4) >> (i % 2 * 16);
    const int row = i / kPairs, column = i % kPairs * 2;
    ptx::store_shared_u32(tile + chunk_at<kDim>(row, column / 8) + column % 8 * 2,
                          widen_codes(pair & 0xff, pair >> 8 & 0xff, scale));
  }
}

}  // namespace mc::gpu
