// Warpgroup products (PTX ISA 9.0, section 9.7.15). sm_90a alone.
#pragma once

#include "gpu/ptx/base.cuh"

namespace mc::gpu::ptx {

/// Descriptor of a tile with 128-byte rows, swizzled by 128 bytes, whose start is aligned to 1024 (9.7.15.5.1): groups
/// of 8 rows lie 1024 bytes apart; `leading` is the distance of 64-column pieces of an MN-major tile.
MC_DEVICE uint64_t descriptor(uint32_t start, uint32_t leading) {
  return (uint64_t{1} << 62) | (uint64_t{1024 >> 4} << 32) | (uint64_t{leading >> 4} << 16) | (start >> 4 & 0x3fff);
}

#ifdef __CUDACC__

/// Orders writes of the registers before the products behind it. The accumulators are operands, so that no write of
/// them moves below.
template <int kRegisters>
MC_DEVICE void wgmma_fence(float (&d)[kRegisters]) {
#pragma unroll
  for (int i = 0; i < kRegisters; ++i) asm volatile("" : "+f"(d[i])::"memory");
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
/// Keeps a fragment of A above the fence that follows.
MC_DEVICE void wgmma_hold(uint32_t (&a)[4]) {
  asm volatile("" : "+r"(a[0]), "+r"(a[1]), "+r"(a[2]), "+r"(a[3])::"memory");
}
MC_DEVICE void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/// Waits until at most kLeft groups are unfinished. The accumulators are operands, so that no use of them moves above.
template <int kLeft, int kRegisters>
MC_DEVICE void wgmma_wait(float (&d)[kRegisters]) {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kLeft) : "memory");
#pragma unroll
  for (int i = 0; i < kRegisters; ++i) asm volatile("" : "+f"(d[i])::"memory");
}
/// Likewise for several accumulators.
template <int kCount, int kRegisters>
MC_DEVICE void wgmma_fence(float (&d)[kCount][kRegisters]) {
#pragma unroll
  for (int i = 0; i < kCount * kRegisters; ++i) asm volatile("" : "+f"(d[i / kRegisters][i % kRegisters])::"memory");
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
template <int kLeft, int kCount, int kRegisters>
MC_DEVICE void wgmma_wait(float (&d)[kCount][kRegisters]) {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kLeft) : "memory");
#pragma unroll
  for (int i = 0; i < kCount * kRegisters; ++i) asm volatile("" : "+f"(d[i / kRegisters][i % kRegisters])::"memory");
}

#define MC_F4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define MC_F16(d, i) MC_F4(d, i), MC_F4(d, i + 4), MC_F4(d, i + 8), MC_F4(d, i + 12)

#define MC_LIST4 "%0,%1,%2,%3"
#define MC_LIST8 MC_LIST4 ",%4,%5,%6,%7"
#define MC_LIST12 MC_LIST8 ",%8,%9,%10,%11"
#define MC_LIST16 MC_LIST12 ",%12,%13,%14,%15"
#define MC_LIST24 MC_LIST16 ",%16,%17,%18,%19,%20,%21,%22,%23"
#define MC_LIST32 MC_LIST24 ",%24,%25,%26,%27,%28,%29,%30,%31"
#define MC_WGMMA_SS(n, list, a_at, b_at, add_at, order_at, ...)                                   \
  asm volatile("{.reg .pred p; setp.ne.b32 p, " add_at ", 0; wgmma.mma_async.sync.aligned.m64n" n \
               "k16.f32.bf16.bf16 {" list "}, " a_at ", " b_at ", p, 1, 1, " order_at ", 0;}"     \
               : __VA_ARGS__                                                                      \
               : "l"(a), "l"(b), "r"(static_cast<int>(add)), "n"(kMajor)                          \
               : "memory")

/// d [64, kColumns] (+)= a [64, 16] b [16, kColumns]: both bf16 in shared memory. b is K-major; a is K-major, or
/// M-major when kMajor is 1.
template <int kColumns, int kMajor>
MC_DEVICE void wgmma_ss(float (&d)[kColumns / 2], uint64_t a, uint64_t b, bool add) {
  if constexpr (kColumns == 8) MC_WGMMA_SS("8", MC_LIST4, "%4", "%5", "%6", "%7", MC_F4(d, 0));
  if constexpr (kColumns == 16) MC_WGMMA_SS("16", MC_LIST8, "%8", "%9", "%10", "%11", MC_F4(d, 0), MC_F4(d, 4));
  if constexpr (kColumns == 24)
    MC_WGMMA_SS("24", MC_LIST12, "%12", "%13", "%14", "%15", MC_F4(d, 0), MC_F4(d, 4), MC_F4(d, 8));
  if constexpr (kColumns == 32) MC_WGMMA_SS("32", MC_LIST16, "%16", "%17", "%18", "%19", MC_F16(d, 0));
  if constexpr (kColumns == 48)
    MC_WGMMA_SS("48", MC_LIST24, "%24", "%25", "%26", "%27", MC_F16(d, 0), MC_F4(d, 16), MC_F4(d, 20));
  if constexpr (kColumns == 64) MC_WGMMA_SS("64", MC_LIST32, "%32", "%33", "%34", "%35", MC_F16(d, 0), MC_F16(d, 16));
}
MC_DEVICE void wgmma_64x64_ss(float (&d)[32], uint64_t a, uint64_t b, bool add) {
  wgmma_ss<64, 0>(d, a, b, add);
}
/// d [64, 64] += a [64, 16] b [16, 64]: a in registers, b MN-major in shared memory.
MC_DEVICE void wgmma_64x64_rs(float (&d)[32], const uint32_t (&a)[4], uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,"
      "%30,%31}, {%32,%33,%34,%35}, %36, 1, 1, 1, 1;"
      : MC_F16(d, 0), MC_F16(d, 16)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)
      : "memory");
}
/// d [64, 64] (+)= a [64, 16] b [16, 64]: a in registers, b K-major in shared memory.
MC_DEVICE void wgmma_64x64_rs_k(float (&d)[32], const uint32_t (&a)[4], uint64_t b, bool add) {
  asm volatile("{.reg .pred p; setp.ne.b32 p, %37, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" MC_LIST32
               "}, {%32,%33,%34,%35}, %36, p, 1, 1, 0;}"
               : MC_F16(d, 0), MC_F16(d, 16)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add))
               : "memory");
}
MC_DEVICE void wgmma_64x128_rs(float (&d)[64], const uint32_t (&a)[4], uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,"
      "%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,"
      "%58,%59,%60,%61,%62,%63}, {%64,%65,%66,%67}, %68, 1, 1, 1, 1;"
      : MC_F16(d, 0), MC_F16(d, 16), MC_F16(d, 32), MC_F16(d, 48)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)
      : "memory");
}

#undef MC_F4
#undef MC_F16
#undef MC_LIST4
#undef MC_LIST8
#undef MC_LIST12
#undef MC_LIST16
#undef MC_LIST24
#undef MC_LIST32
#undef MC_WGMMA_SS

#else

template <int kRegisters>
inline void wgmma_fence(Acc (&d)[kRegisters] MC_AND_WHERE) {
  emu::wgmma_fence(d, kRegisters, where);
}
inline void wgmma_hold(uint32_t (&a)[4]) {
  emu::wgmma_hold(a);
}
inline void wgmma_commit(MC_WHERE) {
  emu::wgmma_commit(where);
}
template <int kLeft, int kRegisters>
inline void wgmma_wait(Acc (&)[kRegisters] MC_AND_WHERE) {
  emu::wgmma_wait(kLeft, where);
}
template <int kCount, int kRegisters>
inline void wgmma_fence(Acc (&d)[kCount][kRegisters] MC_AND_WHERE) {
  for (Acc(&one)[kRegisters] : d) emu::wgmma_fence(one, kRegisters, where);
}
template <int kLeft, int kCount, int kRegisters>
inline void wgmma_wait(Acc (&)[kCount][kRegisters] MC_AND_WHERE) {
  emu::wgmma_wait(kLeft, where);
}
template <int kColumns, int kMajor>
inline void wgmma_ss(Acc (&d)[kColumns / 2], uint64_t a, uint64_t b, bool add MC_AND_WHERE) {
  static_assert(kColumns == 8 || kColumns == 16 || kColumns == 24 || kColumns == 32 || kColumns == 48 ||
                kColumns == 64);
  emu::wgmma({.columns = kColumns, .b_k_major = true, .a_k_major = kMajor == 0}, d, nullptr, a, b, add, where);
}
inline void wgmma_64x64_ss(Acc (&d)[32], uint64_t a, uint64_t b, bool add MC_AND_WHERE) {
  wgmma_ss<64, 0>(d, a, b, add, where);
}
inline void wgmma_64x64_rs(Acc (&d)[32], const uint32_t (&a)[4], uint64_t b MC_AND_WHERE) {
  emu::wgmma({.columns = 64, .b_k_major = false}, d, a, 0, b, true, where);
}
inline void wgmma_64x64_rs_k(Acc (&d)[32], const uint32_t (&a)[4], uint64_t b, bool add MC_AND_WHERE) {
  emu::wgmma({.columns = 64, .b_k_major = true}, d, a, 0, b, add, where);
}
inline void wgmma_64x128_rs(Acc (&d)[64], const uint32_t (&a)[4], uint64_t b MC_AND_WHERE) {
  emu::wgmma({.columns = 128, .b_k_major = false}, d, a, 0, b, true, where);
}

#endif

}  // namespace mc::gpu::ptx
