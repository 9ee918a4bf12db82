// Every instruction of this folder that no kernel uses yet, once: the build compiles this file with nvcc and ptxas, so
// that a form which the assembler refuses is found before a kernel needs it. Nothing launches it.
#include "gpu/ptx/bulk.cuh"
#include "gpu/ptx/cluster.cuh"
#include "gpu/ptx/memory.cuh"
#include "gpu/ptx/warp.cuh"

namespace mc::gpu {

MC_KERNEL(instruction_forms, (128, 1))(uint32_t* out, MC_PARAM(TensorMap) map) {
  const uint32_t base = ptx::dynamic_shared<1024>(), barrier = base + 8192;
  uint32_t sum = ptx::atomic_add(out, 1) + ptx::atomic_add_ordered(out, 1) + ptx::load_acquire(out);
  ptx::reduce_add(reinterpret_cast<float*>(out + 1), 1);
  ptx::fence_gpu();
  ptx::store_release(out, 1);
  ptx::pause();
  sum += ptx::atomic_add_shared(base, 1);
  ptx::cp_async_16(base, out, 16);
  ptx::cp_async_arrive(barrier);
  ptx::cp_async_arrive_inc(barrier);
  uint32_t d[4];
  ptx::ldmatrix_x4(d, base);
  ptx::stmatrix_x4(base, d);
  ptx::stmatrix_x4_trans(base, d);
  sum += d[0] + ptx::ballot(sum > 3);
  ptx::store_box(map, 0, 0, 0, 0, base);
  ptx::reduce_box(map, 0, 0, 0, 0, base);
  ptx::bulk_commit();
  ptx::bulk_wait_read<0>();
  ptx::bulk_wait<0>();
  ptx::barrier_arrive<1, 128>();
  ptx::cluster_arrive();
  ptx::cluster_wait();
  const uint32_t peer = ptx::map_to_rank(base, ptx::cluster_rank() ^ 1);
  ptx::store_cluster_u32(peer, sum);
  sum += ptx::load_cluster_u32(peer);
  ptx::mbarrier_arrive_cluster(ptx::map_to_rank(barrier, 0));
  ptx::load_box_multicast(base, map, 0, 0, 0, 0, barrier, 3);
  ptx::launch_dependents();
  ptx::wait_for_grids();
  ptx::decrease_registers<24>();
  ptx::increase_registers<240>();
  ptx::store(out, sum);
}

}  // namespace mc::gpu
