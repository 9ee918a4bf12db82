// mbarriers, copies of tensor boxes and the fences between the proxies (PTX ISA 9.0, sections 9.7.13.15, 9.7.9.27 and
// 9.7.13.4). sm_90 and later.
#pragma once

#include "gpu/ptx/base.cuh"

namespace mc::gpu::ptx {

// ---- mbarriers, 9.7.13.15 ----
MC_DEVICE void mbarrier_init(uint32_t barrier, uint32_t arrivals MC_AND_WHERE) {
#ifdef __CUDACC__
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
#else
  emu::mbarrier_init(barrier, arrivals, where);
#endif
}
MC_DEVICE void mbarrier_arrive(uint32_t barrier MC_AND_WHERE) {
#ifdef __CUDACC__
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
#else
  emu::mbarrier_arrive(barrier, where);
#endif
}
/// Announces `bytes` of copies and arrives, in this order.
MC_DEVICE void mbarrier_arrive_expect(uint32_t barrier, uint32_t bytes MC_AND_WHERE) {
#ifdef __CUDACC__
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
#else
  emu::mbarrier_arrive_expect(barrier, bytes, where);
#endif
}
/// Waits until the phase of this parity is over. The thread sleeps for up to 10 ms at a time: a warp that polls takes
/// issue slots from those that compute.
MC_DEVICE void mbarrier_wait(uint32_t barrier, uint32_t parity MC_AND_WHERE) {
#ifdef __CUDACC__
  asm volatile(
      "{.reg .pred done; again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1, %2; @done bra over; bra "
      "again; over: }" ::"r"(barrier),
      "r"(parity), "r"(10'000'000)
      : "memory");
#else
  emu::mbarrier_wait(barrier, parity, where);
#endif
}

#ifdef __CUDACC__
/// Makes the inits of the thread visible to bulk copies and to the cluster, once they are released.
MC_DEVICE void mbarrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
/// Makes the thread's own accesses to shared memory visible to the async proxy, once they are released.
MC_DEVICE void fence_async_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
#else
inline void mbarrier_init_fence(MC_WHERE) {
  emu::mbarrier_init_fence(where);
}
inline void fence_async_shared(MC_WHERE) {
  emu::fence_async(where);
}
#endif

// ---- copies of tensor boxes, 9.7.9.27.1.2: coordinates, the innermost first ----
MC_DEVICE void load_box(uint32_t to, const TensorMap& map, int c0, int c1, int c2, int c3,
                        uint32_t barrier MC_AND_WHERE) {
#ifdef __CUDACC__
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5}], "
      "[%6];" ::"r"(to),
      "l"(&map), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(barrier)
      : "memory");
#else
  emu::load_tensor(to, &map, {{c0, c1, c2, c3}}, 4, barrier, 0, where);
#endif
}

/// The way back: rows of the box that lie in the tensor are written (9.7.9.27.1.3). A bulk group tracks it.
MC_DEVICE void store_box(const TensorMap& map, int c0, int c1, int c2, int c3, uint32_t from MC_AND_WHERE) {
#ifdef __CUDACC__
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%1, %2, %3, %4}], [%5];" ::"l"(&map),
               "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(from)
               : "memory");
#else
  emu::store_tensor(from, &map, {{c0, c1, c2, c3}}, 4, false, where);
#endif
}
/// Adds the box to the tensor, element by element (9.7.9.27.1.4); the map's type is f32.
MC_DEVICE void reduce_box(const TensorMap& map, int c0, int c1, int c2, int c3, uint32_t from MC_AND_WHERE) {
#ifdef __CUDACC__
  asm volatile(
      "cp.reduce.async.bulk.tensor.4d.global.shared::cta.add.tile.bulk_group [%0, {%1, %2, %3, %4}], [%5];" ::"l"(&map),
      "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(from)
      : "memory");
#else
  emu::store_tensor(from, &map, {{c0, c1, c2, c3}}, 4, true, where);
#endif
}

// ---- bulk groups of the thread, 9.7.9.27.2 ----
#ifdef __CUDACC__
MC_DEVICE void bulk_commit() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
/// Waits until the sources of all but kLeft groups have been read.
template <int kLeft>
MC_DEVICE void bulk_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kLeft) : "memory");
}
/// Waits until they are written.
template <int kLeft>
MC_DEVICE void bulk_wait() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(kLeft) : "memory");
}
#else
inline void bulk_commit(MC_WHERE) {
  emu::bulk_commit(where);
}
template <int kLeft>
inline void bulk_wait_read(MC_WHERE) {
  emu::bulk_wait(kLeft, true, where);
}
template <int kLeft>
inline void bulk_wait(MC_WHERE) {
  emu::bulk_wait(kLeft, false, where);
}
#endif

}  // namespace mc::gpu::ptx
