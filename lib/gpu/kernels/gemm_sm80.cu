// y = x w^T in bf16 with f32 sums, for sm_80 and later: cp.async copies of 64 columns of x and w at a time into two
// stages, mma.sync products. A CTA has 64 columns of y and 64 rows (product_64: each warp owns 16 of them) or 16 rows
// (product_16: each warp owns 16 columns). A row's result does not depend on the other rows.
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

/// Queues the copy of `kRows` rows of a matrix from inner element `first`; what lies outside becomes zero.
template <int kRows>
MC_DEVICE void load_rows(uint32_t to, const uint16_t* from, int64_t row0, int rows, int inner, int first) {
  for (int i = ptx::tid_x(); i < kRows * kChunks; i += kThreads) {
    const int row = i / kChunks, chunk = i % kChunks, at = first + chunk * 8;
    const bool inside = row0 + row < rows && at < inner;
    const uint16_t* source = inside ? from + (row0 + row) * inner + at : from;
    ptx::cp_async_16(to + chunk_of(row, chunk), source, inside ? 16 : 0);
  }
}

template <int kRowWarps>
MC_DEVICE void multiply(const ProductArgs& args) {
  constexpr int kRows = 16 * kRowWarps;
  constexpr int kWarpColumns = kRowWarps == 4 ? kColumns : kColumns / 4;
  constexpr uint32_t kWeights = kRows * kStepBytes, kStage = kWeights + kColumns * kStepBytes;
  const uint32_t shared = ptx::dynamic_shared<1024>();
  const int warp = ptx::tid_x() / 32, lane = ptx::tid_x() % 32;
  const int64_t row0 = int64_t{ptx::ctaid_y()} * kRows, column0 = int64_t{ptx::ctaid_x()} * kColumns;
  const int my_row = kRowWarps == 4 ? warp * 16 : 0, my_column = kRowWarps == 4 ? 0 : warp * kWarpColumns;
  const int steps = (args.inner + kStep - 1) / kStep;
  float sums[kWarpColumns / 8][4];
#pragma unroll
  for (int n = 0; n < kWarpColumns / 8; ++n)
#pragma unroll
    for (int v = 0; v < 4; ++v) sums[n][v] = 0;
  const auto load = [&](int step) {
    const uint32_t stage = shared + (step % 2) * kStage;
    load_rows<kRows>(stage, args.x, row0, args.rows, args.inner, step * kStep);
    load_rows<kColumns>(stage + kWeights, args.w, column0, args.columns, args.inner, step * kStep);
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
      const int64_t row = row0 + my_row + lane / 4 + 8 * (v / 2);
      const int64_t column = column0 + my_column + 8 * n + 2 * (lane % 4) + v % 2;
      if (row >= args.rows || column >= args.columns) continue;
      float* y = args.y + row * args.columns + column;
      ptx::store(y, args.adds ? ptx::add_rn(ptx::load(y), sums[n][v]) : sums[n][v]);
    }
}

}  // namespace

MC_KERNEL(product_64, (kThreads))(MC_PARAM(ProductArgs) args) {
  multiply<4>(args);
}
MC_KERNEL(product_16, (kThreads))(MC_PARAM(ProductArgs) args) {
  multiply<1>(args);
}

}  // namespace mc::gpu
