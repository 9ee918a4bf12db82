// Trials of the instructions of sm_80 (trial.h).
#include "gpu/kernels/trial.h"
#include "gpu/ptx/arithmetic.cuh"
#include "gpu/ptx/memory.cuh"
#include "gpu/ptx/warp.cuh"

namespace mc::gpu {
namespace {

MC_DEVICE uint32_t word(const TrialArgs& args, int i) {
  return ptx::load(args.in + i * kTrialThreads + ptx::tid_x());
}
MC_DEVICE void put(const TrialArgs& args, int i, uint32_t value) {
  ptx::store(args.out + i * kTrialThreads + ptx::tid_x(), value);
}
MC_DEVICE void put_float(const TrialArgs& args, int i, float value) {
  put(args, i, ptx::to_bits(value));
}

}  // namespace

/// Four matrices of 8 rows a warp, which the lanes name in another order than they wrote them.
MC_KERNEL(trial_ldmatrix, (kTrialThreads))(MC_PARAM(TrialArgs) args) {
  const uint32_t lane = ptx::tid_x() % 32, tile = ptx::dynamic_shared<1024>() + ptx::tid_x() / 32 * 512;
  for (int i = 0; i < 4; ++i) ptx::store_shared_u32(tile + (i * 32 + lane) * 4, word(args, i));
  ptx::warp_sync();
  uint32_t d[4];
  ptx::ldmatrix_x4(d, tile + (lane ^ 5) * 16);
  for (int i = 0; i < 4; ++i) put(args, i, d[i]);
  ptx::ldmatrix_x4_trans(d, tile + (lane ^ 5) * 16);
  for (int i = 0; i < 4; ++i) put(args, 4 + i, d[i]);
}

MC_KERNEL(trial_mma, (kTrialThreads))(MC_PARAM(TrialArgs) args) {
  uint32_t a[4];
  float d[4];
  for (int i = 0; i < 4; ++i) a[i] = word(args, i);
  for (int i = 0; i < 4; ++i) d[i] = static_cast<float>(static_cast<int>(word(args, 6 + i) & 255));
  ptx::mma_16816(d, a, word(args, 4), word(args, 5));
  for (int i = 0; i < 4; ++i) put_float(args, i, d[i]);
}

MC_KERNEL(trial_shuffle, (kTrialThreads))(MC_PARAM(TrialArgs) args) {
  const uint32_t value = word(args, 0);
  uint32_t sum = 0;
#pragma unroll
  for (int i = 0; i < 5; ++i) {
    const uint32_t other = ptx::shuffle_xor(value, 1u << i);
    put(args, i, other);
    sum += other;
  }
  const uint64_t pair = ptx::shuffle_xor(uint64_t{value} << 32 | sum, 9);
  put(args, 5, static_cast<uint32_t>(pair));
  put(args, 6, static_cast<uint32_t>(pair >> 32));
  put(args, 7, ptx::ballot((value & 1) != 0));
}

/// Each lane names a lane. Of a number above 31 the lowest five bits count.
MC_KERNEL(trial_shuffle_from, (kTrialThreads))(MC_PARAM(TrialArgs) args) {
  const uint32_t value = word(args, 0), lane = word(args, 1);
  put(args, 0, ptx::shuffle_from(value, lane));
  put(args, 1, ptx::shuffle_from(value, lane % 32));
  put(args, 2, ptx::shuffle_from(value, 21));
  const uint64_t pair = ptx::shuffle_from(uint64_t{value} << 32 | lane, value);
  put(args, 3, static_cast<uint32_t>(pair));
  put(args, 4, static_cast<uint32_t>(pair >> 32));
}

/// Words with many bits, with few, with one and with none.
MC_KERNEL(trial_bits, (kTrialThreads))(MC_PARAM(TrialArgs) args) {
  const uint32_t many = word(args, 0), one = 1u << word(args, 1) % 32;
  const uint32_t few = many & word(args, 1) & word(args, 2) & word(args, 3);
  const uint32_t words[] = {many, few, one, ~one, many << 24 | one};
#pragma unroll
  for (int i = 0; i < 5; ++i) {
    put(args, 2 * i, static_cast<uint32_t>(ptx::popcount(words[i])));
    put(args, 2 * i + 1, static_cast<uint32_t>(ptx::lowest_bit(words[i] | 1u << 31)));
  }
  put(args, 10, static_cast<uint32_t>(ptx::popcount(0)));
}

/// The thread and the CTA of a grid of several CTAs in each dimension.
MC_KERNEL(trial_place, (kTrialThreads))(MC_PARAM(TrialArgs) args) {
  const uint32_t x = ptx::ctaid_x(), y = ptx::ctaid_y(), z = ptx::ctaid_z();
  const uint32_t cta = x + kTrialGrid[0] * (y + kTrialGrid[1] * z);
  put(args, static_cast<int>(cta), word(args, 0) ^ (x | y << 8 | z << 16 | ptx::tid_x() << 24));
}

/// Floats as they are written, 16 bytes of zeros at a time among words, and what other threads read of both.
MC_KERNEL(trial_shared, (kTrialThreads))(MC_PARAM(TrialArgs) args) {
  const uint32_t base = ptx::dynamic_shared<1024>(), thread = ptx::tid_x(), words = base + kTrialThreads * 4;
  ptx::store_shared_f32(base + thread * 4, ptx::from_bits(word(args, 0)));
  for (int i = 0; i < 4; ++i) ptx::store_shared_u32(words + (i * kTrialThreads + thread) * 4, word(args, 1 + i));
  ptx::barrier_all();
  if (thread % 3 == 0) ptx::zero_16(words + thread * 16);
  ptx::barrier_all();
  put(args, 0, ptx::load_shared_u32(base + (thread ^ 37) * 4));
  put_float(args, 1, ptx::load_shared_f32(base + (thread ^ 91) * 4));
  for (int i = 0; i < 4; ++i) put(args, 2 + i, ptx::load_shared_u32(words + (i * kTrialThreads + thread) * 4));
}

MC_KERNEL(trial_numbers, (kTrialThreads))(MC_PARAM(TrialArgs) args) {
  const float x = ptx::from_bits(word(args, 0)), y = ptx::from_bits(word(args, 1));
  put_float(args, 0, ptx::max_f32(x, y));
  put_float(args, 1, ptx::add_rn(x, y));
  put_float(args, 2, ptx::div_rn(x, y));
  put_float(args, 3, ptx::mul_rn(x, y));
  put_float(args, 4, ptx::sqrt_rn(ptx::from_bits(word(args, 0) & 0x7fffffffu)));
  put_float(args, 5, ptx::fma_rn(x, y, ptx::from_bits(word(args, 2))));
}
MC_KERNEL(trial_pack, (kTrialThreads))(MC_PARAM(TrialArgs) args) {
  put(args, 0, ptx::pack_bf16(ptx::from_bits(word(args, 0)), ptx::from_bits(word(args, 1))));
}
/// Exponents from -128 to 128 in steps of 2^-23.
MC_KERNEL(trial_exp2, (kTrialThreads))(MC_PARAM(TrialArgs) args) {
  put_float(args, 0, ptx::exp2_approx(static_cast<float>(static_cast<int32_t>(word(args, 0))) * 0x1p-24f));
}

/// Copies of 0, 4, 8 and 16 of 16 bytes, each a group: two of them are read before the others have ended.
MC_KERNEL(trial_cp_async, (kTrialThreads))(MC_PARAM(TrialArgs) args) {
  const uint32_t base = ptx::dynamic_shared<1024>(), thread = ptx::tid_x();
#pragma unroll
  for (uint32_t i = 0; i < 4; ++i) {
    const uint32_t at = i * kTrialThreads + thread;
    ptx::cp_async_16(base + at * 16, args.in + at * 4, i == 0 ? 0 : 2u << i);
    ptx::cp_async_commit();
  }
  ptx::cp_async_wait<2>();
  for (uint32_t i = 0; i < 2; ++i)  // the thread's own first word of the two oldest copies
    put(args, static_cast<int>(16 + i), ptx::load_shared_u32(base + (i * kTrialThreads + thread) * 16, {.lanes = 4}));
  ptx::cp_async_wait<0>();
  ptx::barrier_all();
  for (int i = 0; i < 16; ++i) put(args, i, ptx::load_shared_u32(base + (i * kTrialThreads + thread) * 4));
}

/// The sums of many threads, whose order is open, and the values before in words of one thread each.
MC_KERNEL(trial_atomics, (kTrialThreads))(MC_PARAM(TrialArgs) args) {
  const uint32_t base = ptx::dynamic_shared<1024>(), value = word(args, 0);
  const uint32_t own = base + 128 + ptx::tid_x() * 4;
  if (ptx::tid_x() < 2) ptx::store_shared_u32(base + ptx::tid_x() * 4, 0);
  ptx::store_shared_u32(own, word(args, 1));
  ptx::barrier_all();
  put(args, 4, ptx::atomic_or_shared(own, value));
  put(args, 5, ptx::atomic_add_shared(own, value));
  uint32_t* own_sum = args.out + 8 * kTrialThreads + ptx::tid_x();  // 0
  put(args, 6, ptx::atomic_add(own_sum, value));
  put(args, 7, ptx::atomic_add_ordered(own_sum, 7));
  ptx::atomic_or_shared(base, value & 1u << value % 32);
  ptx::atomic_add_shared(base + 4, value);
  ptx::barrier_all();
  put(args, 0, ptx::load_shared_u32(base));
  put(args, 1, ptx::load_shared_u32(base + 4));
  uint32_t* sums = args.out + 2 * kTrialThreads;
  ptx::atomic_add(sums, value);
  ptx::atomic_add_ordered(sums + 1, value >> 7);
  ptx::reduce_add(reinterpret_cast<float*>(sums + 2), static_cast<float>(value & 255));
}

/// Two CTAs: the second one waits for a flag of the first, and passes on what that wrote before.
MC_KERNEL(trial_message, (kTrialThreads))(MC_PARAM(TrialArgs) args) {
  uint32_t* flags = args.out + 4 * kTrialThreads;
  if (ptx::ctaid_x() == 0) {
    put(args, 0, word(args, 0));
    ptx::barrier_all();
    if (ptx::tid_x() > 0) return;
    ptx::fence_gpu();
    ptx::store_release(flags, 1);
    return;
  }
  if (ptx::tid_x() == 0)
    while (ptx::load_acquire(flags) == 0) ptx::pause();
  ptx::barrier_all();
  put(args, 1, ptx::load(args.out + (ptx::tid_x() ^ 33)) + 1);
}

/// Half of the warps arrives at a barrier and goes on, the other half waits for it. Then lanes of a warp meet, and at
/// last half of them.
MC_KERNEL(trial_barriers, (kTrialThreads))(MC_PARAM(TrialArgs) args) {
  const uint32_t base = ptx::dynamic_shared<1024>(), thread = ptx::tid_x();
  if (thread < 64) {
    ptx::store_shared_u32(base + thread * 4, word(args, 0));
    ptx::barrier_arrive<1, kTrialThreads>();
    return;
  }
  ptx::barrier_sync<1, kTrialThreads>();
  const uint32_t value = ptx::load_shared_u32(base + (thread ^ 64 ^ 17) * 4);
  put(args, 0, value);
  ptx::store_shared_u32(base + thread * 4, value + thread);
  ptx::barrier_sync<2, 64>();
  put(args, 1, ptx::load_shared_u32(base + (thread ^ 33) * 4));
  ptx::store_shared_u32(base + 512 + thread * 4, value ^ thread);
  ptx::warp_sync();
  put(args, 2, ptx::load_shared_u32(base + 512 + (thread ^ 3) * 4));
  if (thread % 32 >= 16) return;
  ptx::store_shared_u32(base + 1024 + thread * 4, value + 1);
  ptx::warp_sync(0xffff);
  put(args, 3, ptx::load_shared_u32(base + 1024 + (thread ^ 5) * 4));
}

}  // namespace mc::gpu
