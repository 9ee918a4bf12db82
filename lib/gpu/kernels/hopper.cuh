// One function for each instruction that sm_90a adds (PTX ISA 9.0): mbarriers, tensor copies, warpgroup products and
// their fences. The rules of their order stand in attend_sm90a.cuh where they are used.
#pragma once

#include "gpu/kernels/ptx.cuh"

namespace mc::gpu {

/// A CUtensorMap, or the emulator's.
struct alignas(64) TensorMap {
  unsigned char bytes[128];
};

namespace ptx {

// ---- mbarriers, 9.7.13.15 ----
MC_DEVICE void mbarrier_init(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
MC_DEVICE void mbarrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
MC_DEVICE void mbarrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
/// Announces `bytes` of copies and arrives, in this order.
MC_DEVICE void mbarrier_arrive_expect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
/// Waits until the phase of this parity is over.
MC_DEVICE void mbarrier_wait(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{.reg .pred done; again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1; @done bra over; bra again; "
      "over: }" ::"r"(barrier), "r"(parity)
      : "memory");
}

// ---- copies of tensor boxes, 9.7.9.27.1.2 ----
MC_DEVICE void load_box(uint32_t to, const TensorMap& map, int c0, int c1, int c2, int c3, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5}], "
      "[%6];" ::"r"(to), "l"(&map), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(barrier)
      : "memory");
}
/// Makes the thread's own accesses to shared memory visible to the async proxy, once they are released.
MC_DEVICE void fence_async_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/// bar.sync of `threads` threads, whole warps.
template <int kId, int kThreadCount>
MC_DEVICE void barrier_sync() {
  asm volatile("bar.sync %0, %1;" ::"n"(kId), "n"(kThreadCount) : "memory");
}

// ---- warpgroup products, 9.7.15 ----
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

/// Descriptor of a tile with 128-byte rows, swizzled by 128 bytes, whose start is aligned to 1024 (9.7.15.5.1): groups
/// of 8 rows lie 1024 bytes apart; `leading` is the distance of 64-column pieces of an MN-major tile.
MC_DEVICE uint64_t descriptor(uint32_t start, uint32_t leading) {
  return (uint64_t{1} << 62) | (uint64_t{1024 >> 4} << 32) | (uint64_t{leading >> 4} << 16) | (start >> 4 & 0x3fff);
}

#define MC_F4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define MC_F16(d, i) MC_F4(d, i), MC_F4(d, i + 4), MC_F4(d, i + 8), MC_F4(d, i + 12)

/// d [64, 64] (+)= a [64, 16] b [16, 64]: both bf16 in shared memory, both K-major.
MC_DEVICE void wgmma_64x64_ss(float (&d)[32], uint64_t a, uint64_t b, bool add) {
  asm volatile(
      "{.reg .pred p; setp.ne.b32 p, %34, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,"
      "%30,%31}, %32, %33, p, 1, 1, 0, 0;}"
      : MC_F16(d, 0), MC_F16(d, 16)
      : "l"(a), "l"(b), "r"(static_cast<int>(add))
      : "memory");
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

}  // namespace ptx
}  // namespace mc::gpu
