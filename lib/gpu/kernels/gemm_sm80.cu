// y = x w^T in bf16 with f32 sums, for sm_80 and later: cp.async copies of 64 columns of x and w at a time into two
// stages, mma.sync products. A CTA has 64 columns of y and 64 rows (product_64: each warp owns 16 of them) or 16 rows
// (product_16: each warp owns 16 columns). A row's result does not depend on the other rows. expert_product_64 and _16
// multiply the rows of each expert of a mixture with that expert's weights: a CTA takes one of the tiles that
// group_rows (experts_sm80.cu) listed.
#include "gpu/kernels/experts.h"
#include "gpu/kernels/layer.h"
#include "gpu/ptx/arithmetic.cuh"
#include "gpu/ptx/memory.cuh"
#include "gpu/ptx/warp.cuh"

namespace mc::gpu {
namespace {

constexpr int kStep = 64;  // inner elements of a stage
constexpr int kStepBytes = kStep * 2;
constexpr int kColumns = 64;  // of a CTA
constexpr int kChunks = kStep / 8;

/// 16-byte chunk `chunk` of row `row` of a tile; the chunks of 8 rows are permuted against bank conflicts.
MC_DEVICE uint32_t chunk_of(int row, int chunk) {
  return static_cast<uint32_t>(row * kStepBytes + ((chunk ^ (row & 7)) << 4));
}

/// 64 columns of y, of kRows rows at most.
struct Tile {
  const uint16_t* x = nullptr;  // [.., inner]
  const uint16_t* w = nullptr;  // [columns, inner]
  float* y = nullptr;           // row 0 of the tile, [rows, columns]
  int rows = 0, columns = 0, inner = 0;
  bool adds = false;
};

/// The rows of a matrix that the thread copies into a tile: of the tile's rows tid / 8, 16 + tid / 8, ... -1: it is
/// zero.
template <int kRows>
struct Source {
  int64_t row[kRows / 16];
};
MC_DEVICE int own_row(int i) {
  return static_cast<int>(ptx::tid_x()) / kChunks + 16 * i;
}

/// Queues the copy of `kRows` rows of a matrix from inner element `first`; what lies outside becomes zero.
template <int kRows>
MC_DEVICE void load_rows(uint32_t to, const uint16_t* from, const Source<kRows>& rows, int inner, int first) {
  const int chunk = ptx::tid_x() % kChunks, at = first + chunk * 8;
#pragma unroll
  for (int i = 0; i < kRows / 16; ++i) {
    const bool inside = rows.row[i] >= 0 && at < inner;
    ptx::cp_async_16(to + chunk_of(own_row(i), chunk), inside ? from + rows.row[i] * inner + at : from,
                     inside ? 16 : 0);
  }
}

template <int kRowWarps>
MC_DEVICE void multiply(const Tile& tile, const Source<16 * kRowWarps>& x_rows) {
  constexpr int kRows = 16 * kRowWarps;
  constexpr int kWarpColumns = kRowWarps == 4 ? kColumns : kColumns / 4;
  constexpr uint32_t kWeights = kRows * kStepBytes, kStage = kWeights + kColumns * kStepBytes;
  const uint32_t shared = ptx::dynamic_shared<1024>();
  const int warp = ptx::tid_x() / 32, lane = ptx::tid_x() % 32, column0 = static_cast<int>(ptx::ctaid_x()) * kColumns;
  const int my_row = kRowWarps == 4 ? warp * 16 : 0, my_column = kRowWarps == 4 ? 0 : warp * kWarpColumns;
  const int steps = (tile.inner + kStep - 1) / kStep;
  Source<kColumns> w_rows;
#pragma unroll
  for (int i = 0; i < kColumns / 16; ++i)
    w_rows.row[i] = column0 + own_row(i) < tile.columns ? column0 + own_row(i) : -1;
  float sums[kWarpColumns / 8][4];
#pragma unroll
  for (int n = 0; n < kWarpColumns / 8; ++n)
#pragma unroll
    for (int v = 0; v < 4; ++v) sums[n][v] = 0;
  const auto load = [&](int step) {
    const uint32_t stage = shared + (step % 2) * kStage;
    load_rows<kRows>(stage, tile.x, x_rows, tile.inner, step * kStep);
    load_rows<kColumns>(stage + kWeights, tile.w, w_rows, tile.inner, step * kStep);
  };
  load(0);
  ptx::cp_async_commit();
  for (int step = 0; step < steps; ++step) {
    if (step + 1 < steps) load(step + 1);
    ptx::cp_async_commit();
    ptx::cp_async_wait<1>();
    ptx::barrier_all();
    const uint32_t stage = shared + (step % 2) * kStage;
#pragma unroll
    for (int k = 0; k < kStep / 16; ++k) {
      uint32_t a[4];
      ptx::ldmatrix_x4(a, stage + chunk_of(my_row + lane % 16, 2 * k + lane / 16));
#pragma unroll
      for (int n = 0; n < kWarpColumns / 8; n += 2) {
        uint32_t b[4];
        const int row = my_column + 8 * n + (lane & 7) + ((lane >> 4) << 3);
        ptx::ldmatrix_x4(b, stage + kWeights + chunk_of(row, 2 * k + ((lane >> 3) & 1)));
        ptx::mma_16816(sums[n], a, b[0], b[1]);
        ptx::mma_16816(sums[n + 1], a, b[2], b[3]);
      }
    }
    ptx::barrier_all();  // the stage is free again
  }
#pragma unroll
  for (int n = 0; n < kWarpColumns / 8; ++n)
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      const int row = my_row + lane / 4 + 8 * (v / 2);
      const int column = column0 + my_column + 8 * n + 2 * (lane % 4) + v % 2;
      if (row >= tile.rows || column >= tile.columns) continue;
      float* y = tile.y + int64_t{row} * tile.columns + column;
      ptx::store(y, tile.adds ? ptx::add_rn(ptx::load(y), sums[n][v]) : sums[n][v]);
    }
}

/// The tile of a CTA, among consecutive rows of x.
template <int kRowWarps>
MC_DEVICE void multiply_rows(const ProductArgs& args) {
  constexpr int kRows = 16 * kRowWarps;
  const int64_t row0 = int64_t{ptx::ctaid_y()} * kRows;
  const auto count = static_cast<int>(min(args.rows - row0, int64_t{kRows}));
  const Tile tile{args.x, args.w, args.y + row0 * args.columns, count, args.columns, args.inner, args.adds};
  Source<kRows> rows;
#pragma unroll
  for (int i = 0; i < kRowWarps; ++i) rows.row[i] = own_row(i) < tile.rows ? row0 + own_row(i) : -1;
  multiply<kRowWarps>(tile, rows);
}

/// The tile of a CTA, among the rows of one expert.
template <int kRowWarps>
MC_DEVICE void multiply_group(const ExpertProductArgs& args) {
  const ExpertTile listed = ptx::load(args.tiles + ptx::ctaid_y());
  if (listed.expert < 0) return;
  const int expert = ptx::has_fault(Fault::neighbours_weights) ? max(listed.expert - 1, 0) : listed.expert;
  const Tile tile{args.x,
                  args.w + int64_t{expert} * args.columns * args.inner,
                  args.y + int64_t{listed.first} * args.columns,
                  listed.rows - (ptx::has_fault(Fault::tile_loses_row) ? 1 : 0),
                  args.columns,
                  args.inner,
                  false};
  Source<16 * kRowWarps> rows;
#pragma unroll
  for (int i = 0; i < kRowWarps; ++i) {
    rows.row[i] = -1;
    if (own_row(i) >= listed.rows) continue;
    const int slot = listed.first + own_row(i);
    rows.row[i] = args.rows == nullptr ? slot : ptx::load(args.rows + slot);
  }
  multiply<kRowWarps>(tile, rows);
}

}  // namespace

MC_KERNEL(product_64, (kThreads))(MC_PARAM(ProductArgs) args) {
  multiply_rows<4>(args);
}
MC_KERNEL(product_16, (kThreads))(MC_PARAM(ProductArgs) args) {
  multiply_rows<1>(args);
}
MC_KERNEL(expert_product_64, (kThreads))(MC_PARAM(ExpertProductArgs) args) {
  multiply_group<4>(args);
}
MC_KERNEL(expert_product_16, (kThreads))(MC_PARAM(ExpertProductArgs) args) {
  multiply_group<1>(args);
}

}  // namespace mc::gpu
