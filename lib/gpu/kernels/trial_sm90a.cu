// Trials of the instructions of sm_90 and sm_90a (trial.h).
#include "gpu/kernels/trial.h"
#include "gpu/ptx/arithmetic.cuh"
#include "gpu/ptx/bulk.cuh"
#include "gpu/ptx/cluster.cuh"
#include "gpu/ptx/memory.cuh"
#include "gpu/ptx/warp.cuh"
#include "gpu/ptx/wgmma.cuh"

namespace mc::gpu {
namespace {

constexpr uint32_t kBoxBytes = 64 * 128;  // 64 rows of 64 elements

MC_DEVICE uint32_t word(const TrialArgs& args, int i) {
  return ptx::load(args.in + i * kTrialThreads + ptx::tid_x());
}
MC_DEVICE void put(const TrialArgs& args, int i, uint32_t value) {
  ptx::store(args.out + i * kTrialThreads + ptx::tid_x(), value);
}

/// The CTA makes `count` mbarriers, 8 bytes apart, for its own threads.
MC_DEVICE void make_own_barriers(uint32_t first, int count, uint32_t arrivals) {
  if (ptx::tid_x() == 0)
    for (int i = 0; i < count; ++i) ptx::mbarrier_init(first + i * 8, arrivals);
  ptx::barrier_all();
}
/// One mbarrier that bulk copies may use too, once the CTA or the cluster has met.
MC_DEVICE void init_barrier(uint32_t at) {
  if (ptx::tid_x() > 0) return;
  ptx::mbarrier_init(at, 1);
  ptx::mbarrier_init_fence();
}
MC_DEVICE void make_barrier(uint32_t at) {
  init_barrier(at);
  ptx::barrier_all();
}

/// Shared memory with rows 0 to 127 of `in` in two boxes.
MC_DEVICE uint32_t load_rows(const TensorMap& map) {
  const uint32_t base = ptx::dynamic_shared<1024>(), barrier = base + kTrialTile;
  make_barrier(barrier);
  if (ptx::tid_x() == 0) {
    ptx::mbarrier_arrive_expect(barrier, 2 * kBoxBytes);
    ptx::load_box(base, map, 0, 0, 0, 0, barrier);
    ptx::load_box(base + kBoxBytes, map, 0, 64, 0, 0, barrier);
  }
  ptx::mbarrier_wait(barrier, 0);
  return base;
}

template <int kRegisters>
MC_DEVICE void put_all(const TrialArgs& args, const Acc (&d)[kRegisters]) {
#pragma unroll
  for (int i = 0; i < kRegisters; ++i) put(args, i, ptx::to_bits(d[i]));
}

}  // namespace

/// A ring of two stages and seven rounds: warp 0 fills them, three warps read them.
MC_KERNEL(trial_mbarrier, (kTrialThreads, 1))(MC_PARAM(TrialArgs) args, MC_PARAM(TensorMap), MC_PARAM(TensorMap)) {
  constexpr int kRounds = 7;
  const uint32_t base = ptx::dynamic_shared<1024>(), full = base + kTrialTile, empty = full + 16;
  const uint32_t lane = ptx::tid_x() % 32;
  make_own_barriers(full, 2, 1);
  make_own_barriers(empty, 2, 3);
  uint32_t sum = 0;
  for (int round = 0; round < kRounds; ++round) {
    const uint32_t stage = round % 2, parity = round / 2 % 2, at = base + stage * 128;
    if (ptx::tid_x() < 32) {
      ptx::mbarrier_wait(empty + stage * 8, parity ^ 1);
      ptx::store_shared_u32(at + lane * 4, word(args, round));
      ptx::warp_sync();
      if (lane == 0) ptx::mbarrier_arrive(full + stage * 8);
    } else {
      ptx::mbarrier_wait(full + stage * 8, parity);
      sum = sum * 31 + ptx::load_shared_u32(at + (lane ^ 11) * 4);
      ptx::warp_sync();
      if (lane == 0) ptx::mbarrier_arrive(empty + stage * 8);
    }
  }
  put(args, 0, sum);
}

/// Copies that count as an arrival, and copies for which the phase waits beside the arrival of their thread.
MC_KERNEL(trial_cp_async_arrive, (kTrialThreads, 1))
(MC_PARAM(TrialArgs) args, MC_PARAM(TensorMap), MC_PARAM(TensorMap)) {
  const uint32_t base = ptx::dynamic_shared<1024>(), barrier = base + kTrialTile, thread = ptx::tid_x();
  make_own_barriers(barrier, 2, kTrialThreads);
  ptx::cp_async_16(base + thread * 16, args.in + thread * 4, 16);
  ptx::cp_async_arrive(barrier);
  ptx::cp_async_16(base + (kTrialThreads + thread) * 16, args.in + (kTrialThreads + thread) * 4, 16);
  ptx::cp_async_arrive_inc(barrier + 8);
  ptx::mbarrier_arrive(barrier + 8);
  ptx::mbarrier_wait(barrier, 0);
  for (int i = 0; i < 4; ++i) put(args, i, ptx::load_shared_u32(base + (i * kTrialThreads + thread) * 4));
  ptx::mbarrier_wait(barrier + 8, 0);
  for (int i = 4; i < 8; ++i) put(args, i, ptx::load_shared_u32(base + (i * kTrialThreads + thread) * 4));
}

/// The bytes of a box as they lie in shared memory: swizzled, and zero outside of the tensor.
MC_KERNEL(trial_load_box, (kTrialThreads, 1))
(MC_PARAM(TrialArgs) args, MC_PARAM(TensorMap) in_map, MC_PARAM(TensorMap)) {
  const uint32_t base = ptx::dynamic_shared<1024>(), barrier = base + kTrialTile;
  make_barrier(barrier);
  if (ptx::tid_x() == 0) {
    ptx::mbarrier_arrive_expect(barrier, kBoxBytes);
    ptx::load_box(base, in_map, args.column, args.row, 0, 0, barrier);
  }
  ptx::mbarrier_wait(barrier, 0);
  for (int i = 0; i < 16; ++i) put(args, i, ptx::load_shared_u32(base + (i * kTrialThreads + ptx::tid_x()) * 4));
}

/// Bytes of shared memory as rows of a tensor, whose end the box passes. Where a box that begins before the tensor is
/// stored is not modelled in the emulator, so none does.
MC_KERNEL(trial_store_box, (kTrialThreads, 1))
(MC_PARAM(TrialArgs) args, MC_PARAM(TensorMap), MC_PARAM(TensorMap) out_map) {
  const uint32_t base = ptx::dynamic_shared<1024>();
  for (int i = 0; i < 16; ++i) ptx::store_shared_u32(base + (i * kTrialThreads + ptx::tid_x()) * 4, word(args, i));
  ptx::fence_async_shared();
  ptx::barrier_all();
  if (ptx::tid_x() > 0) return;
  ptx::store_box(out_map, max(args.column, 0), max(args.row, 0) % kTrialOutRows, 0, 0, base);
  ptx::bulk_commit();
  ptx::bulk_wait<0>();
}

/// Adds small numbers to a tensor of f32 twice. The second ones take the place of the first in shared memory as soon as
/// these have been read. Then a thread reads a sum.
MC_KERNEL(trial_reduce_box, (kTrialThreads, 1))
(MC_PARAM(TrialArgs) args, MC_PARAM(TensorMap), MC_PARAM(TensorMap) out_map) {
  const uint32_t base = ptx::dynamic_shared<1024>(), thread = ptx::tid_x();
  const int column = max(args.column, 0), row = max(args.row, 0) % kTrialOutRows;
  for (int pass = 0; pass < 2; ++pass) {
    for (int i = 0; i < 16; ++i)
      ptx::store_shared_f32(base + (i * kTrialThreads + thread) * 4,
                            static_cast<float>(static_cast<int>(word(args, 16 * pass + i) & 255)));
    ptx::fence_async_shared();
    ptx::barrier_all();
    if (thread == 0) {
      ptx::reduce_box(out_map, column, row, 0, 0, base);
      ptx::bulk_commit();
      ptx::bulk_wait_read<0>();
    }
    ptx::barrier_all();
  }
  if (thread > 0) return;
  ptx::bulk_wait<0>();
  put(args, kTrialOutRows * 32 / kTrialThreads, ptx::load(args.out + row * 32 + column));
}

MC_KERNEL(trial_stmatrix, (kTrialThreads, 1))(MC_PARAM(TrialArgs) args, MC_PARAM(TensorMap), MC_PARAM(TensorMap)) {
  const uint32_t lane = ptx::tid_x() % 32, tile = ptx::dynamic_shared<1024>() + ptx::tid_x() / 32 * 1024;
  const uint32_t values[4] = {word(args, 0), word(args, 1), word(args, 2), word(args, 3)};
  ptx::stmatrix_x4(tile + (lane ^ 5) * 16, values);
  ptx::stmatrix_x4_trans(tile + 512 + (lane ^ 5) * 16, values);
  ptx::warp_sync();
  for (int i = 0; i < 8; ++i) put(args, i, ptx::load_shared_u32(tile + (i * 32 + lane) * 4));
}

/// Rows 0 to 63 of `in` times rows 64 to 127, transposed.
MC_KERNEL(trial_wgmma_shared, (kTrialThreads, 1))
(MC_PARAM(TrialArgs) args, MC_PARAM(TensorMap) in_map, MC_PARAM(TensorMap)) {
  const uint32_t base = load_rows(in_map);
  Acc d[32] = {};
  ptx::wgmma_fence(d);
#pragma unroll
  for (int step = 0; step < 4; ++step)
    ptx::wgmma_64x64_ss(d, ptx::descriptor(base + step * 32, 16), ptx::descriptor(base + kBoxBytes + step * 32, 16),
                        step > 0);
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>(d);
  put_all(args, d);
}

/// Words from `first` on: rows 0 to 63 of `in`, transposed when kMajor is 1, times the first kColumns of rows 64 to
/// 127, transposed.
template <int kColumns, int kMajor>
MC_DEVICE void multiply_columns(const TrialArgs& args, uint32_t base, int first) {
  Acc d[kColumns / 2] = {};
  ptx::wgmma_fence(d);
#pragma unroll
  for (int step = 0; step < 4; ++step)
    ptx::wgmma_ss<kColumns, kMajor>(
        d, kMajor == 1 ? ptx::descriptor(base + step * 2048, kBoxBytes) : ptx::descriptor(base + step * 32, 16),
        ptx::descriptor(base + kBoxBytes + step * 32, 16), step > 0);
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>(d);
#pragma unroll
  for (int i = 0; i < kColumns / 2; ++i) put(args, first + i, ptx::to_bits(d[i]));
}

template <int kMajor>
MC_DEVICE void multiply_few_columns(const TrialArgs& args, const TensorMap& in_map) {
  const uint32_t base = load_rows(in_map);
  multiply_columns<8, kMajor>(args, base, 0);
  multiply_columns<16, kMajor>(args, base, 4);
  multiply_columns<24, kMajor>(args, base, 12);
  multiply_columns<32, kMajor>(args, base, 24);
  multiply_columns<48, kMajor>(args, base, 40);
}
MC_KERNEL(trial_wgmma_columns, (kTrialThreads, 1))
(MC_PARAM(TrialArgs) args, MC_PARAM(TensorMap) in_map, MC_PARAM(TensorMap)) {
  multiply_few_columns<0>(args, in_map);
}
MC_KERNEL(trial_wgmma_transposed, (kTrialThreads, 1))
(MC_PARAM(TrialArgs) args, MC_PARAM(TensorMap) in_map, MC_PARAM(TensorMap)) {
  multiply_few_columns<1>(args, in_map);
}
MC_KERNEL(trial_wgmma_transposed_64, (kTrialThreads, 1))
(MC_PARAM(TrialArgs) args, MC_PARAM(TensorMap) in_map, MC_PARAM(TensorMap)) {
  multiply_columns<64, 1>(args, load_rows(in_map), 0);
}

/// Two groups of two accumulators. The first group is read while the second may be unfinished.
MC_KERNEL(trial_wgmma_groups, (kTrialThreads, 1))
(MC_PARAM(TrialArgs) args, MC_PARAM(TensorMap) in_map, MC_PARAM(TensorMap)) {
  const uint32_t base = load_rows(in_map), columns = base + kBoxBytes;
  Acc early[2][16] = {}, late[2][8] = {};
  ptx::wgmma_fence(early);
  ptx::wgmma_fence(late);
#pragma unroll
  for (int i = 0; i < 8; ++i)
    ptx::wgmma_ss<32, 0>(early[i / 4], ptx::descriptor(base + i % 4 * 32, 16),
                         ptx::descriptor(columns + i / 4 * 4096 + i % 4 * 32, 16), i % 4 > 0);
  ptx::wgmma_commit();
#pragma unroll
  for (int i = 0; i < 8; ++i)
    ptx::wgmma_ss<16, 0>(late[i / 4], ptx::descriptor(base + i % 4 * 32, 16),
                         ptx::descriptor(columns + i / 4 * 2048 + i % 4 * 32, 16), i % 4 > 0);
  ptx::wgmma_commit();
  ptx::wgmma_wait<1>(early);
#pragma unroll
  for (int i = 0; i < 32; ++i) put(args, i, ptx::to_bits(early[i / 16][i % 16]));
  ptx::wgmma_wait<0>(late);
#pragma unroll
  for (int i = 0; i < 16; ++i) put(args, 32 + i, ptx::to_bits(late[i / 8][i % 8]));
}

/// A fragment in registers times rows 0 to 63, and times those beside rows 64 to 127.
MC_KERNEL(trial_wgmma_registers_64, (kTrialThreads, 1))
(MC_PARAM(TrialArgs) args, MC_PARAM(TensorMap) in_map, MC_PARAM(TensorMap)) {
  const uint32_t base = load_rows(in_map);
  uint32_t a[4] = {word(args, 0), word(args, 1), word(args, 2), word(args, 3)};
  Acc d[32] = {};
  ptx::wgmma_hold(a);
  ptx::wgmma_fence(d);
#pragma unroll
  for (int step = 0; step < 4; ++step) ptx::wgmma_64x64_rs(d, a, ptx::descriptor(base + step * 2048, kBoxBytes));
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>(d);
  put_all(args, d);
}
/// A fragment in registers times rows 64 to 127, transposed.
MC_KERNEL(trial_wgmma_registers_k, (kTrialThreads, 1))
(MC_PARAM(TrialArgs) args, MC_PARAM(TensorMap) in_map, MC_PARAM(TensorMap)) {
  const uint32_t base = load_rows(in_map);
  uint32_t a[4] = {word(args, 0), word(args, 1), word(args, 2), word(args, 3)};
  Acc d[32] = {};
  ptx::wgmma_hold(a);
  ptx::wgmma_fence(d);
#pragma unroll
  for (int step = 0; step < 4; ++step)
    ptx::wgmma_64x64_rs_k(d, a, ptx::descriptor(base + kBoxBytes + step * 32, 16), step > 0);
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>(d);
  put_all(args, d);
}
MC_KERNEL(trial_wgmma_registers_128, (kTrialThreads, 1))
(MC_PARAM(TrialArgs) args, MC_PARAM(TensorMap) in_map, MC_PARAM(TensorMap)) {
  const uint32_t base = load_rows(in_map);
  uint32_t a[4] = {word(args, 0), word(args, 1), word(args, 2), word(args, 3)};
  Acc d[64] = {};
  ptx::wgmma_hold(a);
  ptx::wgmma_fence(d);
#pragma unroll
  for (int step = 0; step < 4; ++step) ptx::wgmma_64x128_rs(d, a, ptx::descriptor(base + step * 2048, kBoxBytes));
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>(d);
  put_all(args, d);
}

/// The first of three warpgroups gives registers away. The others take them, and keep more numbers at a time than the
/// 168 registers that the launch gave to a thread. Shuffles make the numbers, so that none can be made a second time.
MC_KERNEL(trial_registers, (kTrialGroups * kTrialThreads, 1))
(MC_PARAM(TrialArgs) args, MC_PARAM(TensorMap), MC_PARAM(TensorMap)) {
  const uint32_t group = ptx::tid_x() / kTrialThreads, thread = ptx::tid_x() % kTrialThreads;
  uint32_t* const out = args.out + 2 * group * kTrialThreads + thread;
  if (group == 0) {
    ptx::decrease_registers<40>();
    ptx::store(out, ptx::load(args.in + thread) + 1);
    return;
  }
  ptx::increase_registers<232>();
  uint32_t kept[kTrialKept];
#pragma unroll
  for (uint32_t i = 0; i < kTrialKept; ++i)
    kept[i] = ptx::shuffle_xor(ptx::load(args.in + i % kTrialIn * kTrialThreads + thread) + i * group, 1 + i % 31);
  uint32_t up = 0, down = 0;
#pragma unroll
  for (uint32_t i = 0; i < kTrialKept; ++i) up = up * 31 + kept[i];
#pragma unroll
  for (uint32_t i = kTrialKept; i > 0; --i) down = down * 31 + kept[i - 1];
  ptx::store(out, up);
  ptx::store(out + kTrialThreads, down);
}

/// Launched twice. The second grid may start before the first has ended, and reads what that writes.
MC_KERNEL(trial_dependents, (kTrialThreads, 1))
(MC_PARAM(TrialArgs) args, MC_PARAM(TensorMap), MC_PARAM(TensorMap)) {
  ptx::launch_dependents();
  for (int i = 0; i < 16; ++i) ptx::pause();
  ptx::wait_for_grids();
  put(args, 0, ptx::load(args.out + ptx::tid_x()) * 31 + word(args, 0));
}

/// Two CTAs of a cluster read and write each other's shared memory, and the first arrives at the second one's mbarrier.
MC_CLUSTER_KERNEL(trial_cluster, (kTrialThreads, 1), 2)
(MC_PARAM(TrialArgs) args, MC_PARAM(TensorMap), MC_PARAM(TensorMap)) {
  const uint32_t base = ptx::dynamic_shared<1024>(), barrier = base + kTrialTile, thread = ptx::tid_x();
  const uint32_t rank = ptx::cluster_rank();
  if (thread == 0) ptx::mbarrier_init(barrier, kTrialThreads);
  ptx::store_shared_u32(base + thread * 4, word(args, static_cast<int>(rank)));
  ptx::warp_sync();
  ptx::cluster_arrive();
  ptx::cluster_wait();
  const uint32_t seen = ptx::load_cluster_u32(ptx::map_to_rank(base + (thread ^ 77) * 4, rank ^ 1));
  ptx::store_cluster_u32(ptx::map_to_rank(base + 512 + thread * 4, rank ^ 1), seen + thread);
  if (rank == 0) ptx::mbarrier_arrive_cluster(ptx::map_to_rank(barrier, 1));
  ptx::cluster_arrive();
  ptx::cluster_wait();
  if (rank == 1) ptx::mbarrier_wait(barrier, 0);
  const int out = static_cast<int>(rank) * kTrialOut;
  put(args, out, rank);
  put(args, out + 1, seen);
  put(args, out + 2, ptx::load_shared_u32(base + 512 + thread * 4));
}

/// The first CTA of a cluster copies a box into both.
MC_CLUSTER_KERNEL(trial_multicast, (kTrialThreads, 1), 2)
(MC_PARAM(TrialArgs) args, MC_PARAM(TensorMap) in_map, MC_PARAM(TensorMap)) {
  const uint32_t base = ptx::dynamic_shared<1024>(), barrier = base + kTrialTile, rank = ptx::cluster_rank();
  init_barrier(barrier);
  if (ptx::tid_x() == 0) ptx::mbarrier_arrive_expect(barrier, kBoxBytes);
  ptx::warp_sync();
  ptx::cluster_arrive();
  ptx::cluster_wait();
  if (rank == 0 && ptx::tid_x() == 0) ptx::load_box_multicast(base, in_map, args.column, args.row, 0, 0, barrier, 3);
  ptx::mbarrier_wait(barrier, 0);
  for (int i = 0; i < 16; ++i)
    put(args, static_cast<int>(rank) * kTrialOut + i,
        ptx::load_shared_u32(base + (i * kTrialThreads + ptx::tid_x()) * 4));
  ptx::warp_sync();
  ptx::cluster_arrive();
  ptx::cluster_wait();
}

}  // namespace mc::gpu
