// Clusters, distributed shared memory, registers of a warpgroup and programmatic launch (PTX ISA 9.0). sm_90 and later;
// setmaxnreg is for sm_90a alone.
#pragma once

#include "gpu/ptx/base.cuh"

namespace mc::gpu::ptx {

/// The CTA's number in its cluster (10, %cluster_ctarank).
MC_DEVICE uint32_t cluster_rank() {
#ifdef __CUDACC__
  uint32_t d;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(d));
  return d;
#else
  return emu::place().rank;
#endif
}

// ---- addresses in another CTA of the cluster, 9.7.9.24 (mapa) ----
MC_DEVICE uint32_t map_to_rank(uint32_t address, uint32_t rank MC_AND_WHERE) {
#ifdef __CUDACC__
  uint32_t d;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(d) : "r"(address), "r"(rank));
  return d;
#else
  return emu::mapa(address, rank, where);
#endif
}
MC_DEVICE uint32_t load_cluster_u32(uint32_t from MC_AND_WHERE) {
#ifdef __CUDACC__
  uint32_t d;
  asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(d) : "r"(from) : "memory");
  return d;
#else
  return emu::load_cluster(from, where);
#endif
}
MC_DEVICE void store_cluster_u32(uint32_t to, uint32_t value MC_AND_WHERE) {
#ifdef __CUDACC__
  asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(to), "r"(value) : "memory");
#else
  emu::store_cluster(to, value, where);
#endif
}
/// Arrives at an mbarrier of another CTA (9.7.13.15.13).
MC_DEVICE void mbarrier_arrive_cluster(uint32_t barrier MC_AND_WHERE) {
#ifdef __CUDACC__
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
#else
  emu::mbarrier_arrive(barrier, where);
#endif
}
/// Copies a box to the same address in every CTA that has a bit in `ranks`, and completes on the barrier of each
/// (9.7.9.27.1.2, .multicast::cluster).
MC_DEVICE void load_box_multicast(uint32_t to, const TensorMap& map, int c0, int c1, int c2, int c3, uint32_t barrier,
                                  uint16_t ranks MC_AND_WHERE) {
#ifdef __CUDACC__
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, "
      "{%2, %3, %4, %5}], [%6], %7;" ::"r"(to),
      "l"(&map), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(barrier), "h"(ranks)
      : "memory");
#else
  emu::load_tensor(to, &map, {{c0, c1, c2, c3}}, 4, barrier, ranks, where);
#endif
}

#ifdef __CUDACC__

// ---- the cluster's barrier, 9.7.13.3 ----
// Both halves are .aligned: whole warps execute them. Lanes that took different ways meet in warp_sync() before.
MC_DEVICE void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
MC_DEVICE void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// ---- registers, 9.7.19.5 (setmaxnreg): the warpgroup's threads get or give up some ----
template <int kRegisters>
MC_DEVICE void increase_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
MC_DEVICE void decrease_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// ---- programmatic launch, 9.7.13.13 (griddepcontrol) ----
/// The grid behind this one may start.
MC_DEVICE void launch_dependents() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
/// Waits until the grids before this one have ended, and their writes are visible.
MC_DEVICE void wait_for_grids() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

#else

inline void cluster_arrive(MC_WHERE) {
  emu::cluster_arrive(where);
}
inline void cluster_wait(MC_WHERE) {
  emu::cluster_wait(where);
}
template <int kRegisters>
inline void increase_registers(MC_WHERE) {
  emu::set_max_registers(kRegisters, true, where);
}
template <int kRegisters>
inline void decrease_registers(MC_WHERE) {
  emu::set_max_registers(kRegisters, false, where);
}
inline void launch_dependents(MC_WHERE) {
  emu::grid_launch_dependents(where);
}
inline void wait_for_grids(MC_WHERE) {
  emu::grid_wait(where);
}

#endif

}  // namespace mc::gpu::ptx
