// Loads, stores, atomics and cp.async (PTX ISA 9.0, sections 9.7.9 and 9.7.13). A shared address is the 32-bit offset
// that cvta gives. `volatile` and the memory clobber keep the order that the instruction promises.
#pragma once

#include <type_traits>

#include "gpu/ptx/banks.h"
#include "gpu/ptx/base.cuh"

namespace mc::gpu::ptx {

// ---- global memory, 9.7.9.8 (ld) and 9.7.9.12 (st) ----
template <class T>
MC_DEVICE std::remove_const_t<T> load(T* from MC_AND_WHERE) {
#ifdef __CUDACC__
  return *from;
#else
  std::remove_const_t<T> out;
  emu::load_global(reinterpret_cast<uint64_t>(from), &out, sizeof(T), alignof(T), where);
  return out;
#endif
}
template <class T>
MC_DEVICE void store(T* to, T value MC_AND_WHERE) {
#ifdef __CUDACC__
  *to = value;
#else
  emu::store_global(reinterpret_cast<uint64_t>(to), &value, sizeof(T), where);
#endif
}

// ---- shared memory ----
/// The CTA's dynamic shared memory, which begins at a multiple of `kAlign`.
template <uint32_t kAlign>
MC_DEVICE uint32_t dynamic_shared() {
#ifdef __CUDACC__
  extern __shared__ __align__(1024) unsigned char shared[];
  static_assert(kAlign <= 1024);
  return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
#else
  return emu::dynamic_shared(kAlign);
#endif
}
#ifdef __CUDACC__
MC_DEVICE uint32_t load_shared_u32(uint32_t from, Banks = {}) {
  uint32_t d;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(d) : "r"(from) : "memory");
  return d;
}
MC_DEVICE void store_shared_u32(uint32_t to, uint32_t value, Banks = {}) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(value) : "memory");
}
MC_DEVICE float load_shared_f32(uint32_t from, Banks = {}) {
  float d;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(d) : "r"(from) : "memory");
  return d;
}
MC_DEVICE void store_shared_f32(uint32_t to, float value, Banks = {}) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(value) : "memory");
}
#else
inline uint32_t load_shared_u32(uint32_t from, Banks banks = {} MC_AND_WHERE) {
  uint32_t d;
  emu::load_shared(from, &d, 4, banks, where);
  return d;
}
inline void store_shared_u32(uint32_t to, uint32_t value, Banks banks = {} MC_AND_WHERE) {
  emu::store_shared(to, &value, 4, banks, where);
}
inline float load_shared_f32(uint32_t from, Banks banks = {} MC_AND_WHERE) {
  return std::bit_cast<float>(load_shared_u32(from, banks, where));
}
inline void store_shared_f32(uint32_t to, float value, Banks banks = {} MC_AND_WHERE) {
  store_shared_u32(to, std::bit_cast<uint32_t>(value), banks, where);
}
#endif
/// Zeroes 16 bytes.
MC_DEVICE void zero_16(uint32_t at MC_AND_WHERE) {
#ifdef __CUDACC__
  asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(at), "r"(0) : "memory");
#else
  const uint32_t zero[4] = {};
  emu::store_shared(at, zero, 16, {}, where);
#endif
}

// ---- atomics on shared memory, 9.7.13.6; the value before ----
MC_DEVICE uint32_t atomic_or_shared(uint32_t at, uint32_t bits MC_AND_WHERE) {
#ifdef __CUDACC__
  uint32_t d;
  asm volatile("atom.shared.or.b32 %0, [%1], %2;" : "=r"(d) : "r"(at), "r"(bits) : "memory");
  return d;
#else
  return emu::atomic_shared(emu::AtomicOp::bit_or, at, bits, where);
#endif
}
MC_DEVICE uint32_t atomic_add_shared(uint32_t at, uint32_t value MC_AND_WHERE) {
#ifdef __CUDACC__
  uint32_t d;
  asm volatile("atom.shared.add.u32 %0, [%1], %2;" : "=r"(d) : "r"(at), "r"(value) : "memory");
  return d;
#else
  return emu::atomic_shared(emu::AtomicOp::add, at, value, where);
#endif
}

// ---- atomics on global memory, 9.7.13.6; the value before ----
/// Sums 32-bit numbers; a fence_gpu before it publishes, one behind it acquires.
MC_DEVICE uint32_t atomic_add(uint32_t* at, uint32_t value MC_AND_WHERE) {
#ifdef __CUDACC__
  uint32_t d;
  asm volatile("atom.relaxed.gpu.global.add.u32 %0, [%1], %2;"
               : "=r"(d)
               : "l"(__cvta_generic_to_global(at)), "r"(value)
               : "memory");
  return d;
#else
  return emu::atomic_global(emu::AtomicOp::add, reinterpret_cast<uint64_t>(at), value, emu::Semantics::relaxed, where);
#endif
}
/// The same with order: it acquires what others released here, and releases.
MC_DEVICE uint32_t atomic_add_ordered(uint32_t* at, uint32_t value MC_AND_WHERE) {
#ifdef __CUDACC__
  uint32_t d;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;"
               : "=r"(d)
               : "l"(__cvta_generic_to_global(at)), "r"(value)
               : "memory");
  return d;
#else
  return emu::atomic_global(emu::AtomicOp::add, reinterpret_cast<uint64_t>(at), value, emu::Semantics::acq_rel, where);
#endif
}
/// Adds to a float; the order of several sums is open.
MC_DEVICE void reduce_add(float* at, float value MC_AND_WHERE) {
#ifdef __CUDACC__
  asm volatile("red.relaxed.gpu.global.add.f32 [%0], %1;" ::"l"(__cvta_generic_to_global(at)), "f"(value) : "memory");
#else
  emu::atomic_global(emu::AtomicOp::add_f32, reinterpret_cast<uint64_t>(at), std::bit_cast<uint32_t>(value),
                     emu::Semantics::relaxed, where);
#endif
}

// ---- order between CTAs, 8.9, 9.7.9.8 (ld.acquire), 9.7.9.12 (st.release), 9.7.13.4 (fence) ----
MC_DEVICE uint32_t load_acquire(const uint32_t* from MC_AND_WHERE) {
#ifdef __CUDACC__
  uint32_t d;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(d) : "l"(__cvta_generic_to_global(from)) : "memory");
  return d;
#else
  return emu::load_acquire(reinterpret_cast<uint64_t>(from), where);
#endif
}
MC_DEVICE void store_release(uint32_t* to, uint32_t value MC_AND_WHERE) {
#ifdef __CUDACC__
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(__cvta_generic_to_global(to)), "r"(value) : "memory");
#else
  emu::store_release(reinterpret_cast<uint64_t>(to), value, where);
#endif
}
#ifdef __CUDACC__
MC_DEVICE void fence_gpu() {
  asm volatile("fence.acq_rel.gpu;" ::: "memory");
}
/// Gives way while the thread waits for another CTA.
MC_DEVICE void pause() {
  asm volatile("nanosleep.u32 100;" ::: "memory");
}
#else
inline void fence_gpu(MC_WHERE) {
  emu::fence_gpu(where);
}
inline void pause(MC_WHERE) {
  emu::pause(where);
}
#endif

// ---- copies from global to shared memory, 9.7.9.25.3 (cp.async) ----
/// Copies `bytes` of 16 and zeroes the rest. `from` must be a valid address even when `bytes` is 0.
MC_DEVICE void cp_async_16(uint32_t to, const void* from, uint32_t bytes MC_AND_WHERE) {
#ifdef __CUDACC__
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(__cvta_generic_to_global(from)),
               "r"(bytes)
               : "memory");
#else
  emu::cp_async(to, reinterpret_cast<uint64_t>(from), 16, bytes, where);
#endif
}
#ifdef __CUDACC__
MC_DEVICE void cp_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
/// Waits until at most kLeft of the thread's own groups are unfinished.
template <int kLeft>
MC_DEVICE void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
}
#else
inline void cp_async_commit(MC_WHERE) {
  emu::cp_async_commit(where);
}
template <int kLeft>
inline void cp_async_wait(MC_WHERE) {
  emu::cp_async_wait(kLeft, where);
}
#endif

// ---- copies that an mbarrier tracks, 9.7.13.15.17 (cp.async.mbarrier.arrive) ----
// The mbarrier gets one arrival when the thread's copies so far have ended. The thread itself waits for them at the
// mbarrier too, or by cp_async_wait.
/// The count of the mbarrier includes the arrival.
MC_DEVICE void cp_async_arrive(uint32_t barrier MC_AND_WHERE) {
#ifdef __CUDACC__
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
#else
  emu::cp_async_arrive(barrier, false, where);
#endif
}
/// The count does not include the arrival: the phase waits for one more.
MC_DEVICE void cp_async_arrive_inc(uint32_t barrier MC_AND_WHERE) {
#ifdef __CUDACC__
  asm volatile("cp.async.mbarrier.arrive.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
#else
  emu::cp_async_arrive(barrier, true, where);
#endif
}

}  // namespace mc::gpu::ptx
