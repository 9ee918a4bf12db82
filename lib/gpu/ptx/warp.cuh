// Instructions of a whole warp or CTA: barriers, exchange between lanes, matrix fragments and products (PTX ISA 9.0,
// sections 9.7.9.6, 9.7.13 and 9.7.14).
#pragma once

#include "gpu/ptx/base.cuh"

namespace mc::gpu::ptx {

#ifdef __CUDACC__

// ---- barriers, 9.7.13.1 (bar) and 9.7.13.2 (bar.warp.sync) ----
/// All threads of the CTA meet here.
MC_DEVICE void barrier_all() {
  __syncthreads();
}
/// bar.sync of `kThreadCount` threads, whole warps.
template <int kId, int kThreadCount>
MC_DEVICE void barrier_sync() {
  asm volatile("bar.sync %0, %1;" ::"n"(kId), "n"(kThreadCount) : "memory");
}
/// The threads arrive and go on; those that sync wait for them.
template <int kId, int kThreadCount>
MC_DEVICE void barrier_arrive() {
  asm volatile("bar.arrive %0, %1;" ::"n"(kId), "n"(kThreadCount) : "memory");
}
MC_DEVICE void warp_sync(uint32_t lanes = 0xffffffffu) {
  __syncwarp(lanes);
}

#else

inline void barrier_all(MC_WHERE) {
  emu::barrier_sync(0, 0, false, where);
}
template <int kId, int kThreadCount>
inline void barrier_sync(MC_WHERE) {
  emu::barrier_sync(kId, kThreadCount, false, where);
}
template <int kId, int kThreadCount>
inline void barrier_arrive(MC_WHERE) {
  emu::barrier_sync(kId, kThreadCount, true, where);
}
inline void warp_sync(uint32_t lanes = 0xffffffffu MC_AND_WHERE) {
  emu::warp_sync(lanes, where);
}

#endif

// ---- exchange, 9.7.9.6 (shfl.sync.bfly): the value of lane (own ^ by) ----
template <class T>
MC_DEVICE T shuffle_xor(T value, uint32_t by MC_AND_WHERE) {
#ifdef __CUDACC__
  return __shfl_xor_sync(0xffffffffu, value, by);
#else
  static_assert(sizeof(T) % 4 == 0);
  emu::shuffle(emu::Shuffle::bfly, &value, sizeof(T), by, 0xffffffffu, where);
  return value;
#endif
}

/// The value of lane `lane` (shfl.sync.idx).
template <class T>
MC_DEVICE T shuffle_from(T value, uint32_t lane MC_AND_WHERE) {
#ifdef __CUDACC__
  return __shfl_sync(0xffffffffu, value, static_cast<int>(lane));
#else
  static_assert(sizeof(T) % 4 == 0);
  emu::shuffle(emu::Shuffle::idx, &value, sizeof(T), lane, 0xffffffffu, where);
  return value;
#endif
}

/// A bit of every lane's value, 9.7.13.9 (vote.ballot).
MC_DEVICE uint32_t ballot(bool value MC_AND_WHERE) {
#ifdef __CUDACC__
  return __ballot_sync(0xffffffffu, value);
#else
  return emu::ballot(value, 0xffffffffu, where);
#endif
}

// ---- matrix fragments, 9.7.14.5.15 (ldmatrix) and 9.7.14.5.8 (mma.m16n8k16) ----
MC_DEVICE void ldmatrix_x4(uint32_t (&d)[4], uint32_t from MC_AND_WHERE) {
#ifdef __CUDACC__
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
               : "r"(from)
               : "memory");
#else
  emu::ldmatrix(d, 4, false, from, where);
#endif
}
MC_DEVICE void ldmatrix_x4_trans(uint32_t (&d)[4], uint32_t from MC_AND_WHERE) {
#ifdef __CUDACC__
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
               : "r"(from)
               : "memory");
#else
  emu::ldmatrix(d, 4, true, from, where);
#endif
}
/// The way back, 9.7.14.5.16 (stmatrix); sm_90 and later.
MC_DEVICE void stmatrix_x4(uint32_t to, const uint32_t (&values)[4] MC_AND_WHERE) {
#ifdef __CUDACC__
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(to), "r"(values[0]),
               "r"(values[1]), "r"(values[2]), "r"(values[3])
               : "memory");
#else
  emu::stmatrix(values, 4, false, to, where);
#endif
}
MC_DEVICE void stmatrix_x4_trans(uint32_t to, const uint32_t (&values)[4] MC_AND_WHERE) {
#ifdef __CUDACC__
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(to), "r"(values[0]),
               "r"(values[1]), "r"(values[2]), "r"(values[3])
               : "memory");
#else
  emu::stmatrix(values, 4, true, to, where);
#endif
}
/// d += a b, bf16 products summed in f32.
MC_DEVICE void mma_16816(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1 MC_AND_WHERE) {
#ifdef __CUDACC__
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
  const uint32_t b[2] = {b0, b1};
  emu::mma_16816(d, a, b, where);
#endif
}

}  // namespace mc::gpu::ptx
