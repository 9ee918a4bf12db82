// lib/gpu/ptx: one small function an instruction, with two bodies of one meaning. nvcc compiles the inline PTX for the
// chip; the host compiler compiles the plain C++, which calls the emulator (gpu/emu/lane.h) where the instruction
// touches memory or other threads. Kernels use instructions, shared memory and global memory through these functions
// alone. Sections are those of the PTX ISA 9.0.
//
// On the host such a function has a last parameter that names the line that called it, so that a report of the
// emulator names the line of the kernel.
#pragma once

#include <cstdint>

#include "gpu/ptx/fault.h"

#ifdef __CUDACC__

#define MC_DEVICE __device__ __forceinline__
#define MC_WHERE
#define MC_AND_WHERE
/// `MC_KERNEL(name, (threads, ctas))(MC_PARAM(Args) args) { ... }`: a kernel, by the bounds of its launch.
#define MC_KERNEL(name, bounds) extern "C" __global__ void __launch_bounds__ bounds name
/// Likewise, of a kernel whose CTAs run in clusters of `ctas` along x.
#define MC_CLUSTER_KERNEL(name, bounds, ctas) \
  extern "C" __global__ void __cluster_dims__(ctas, 1, 1) __launch_bounds__ bounds name
#define MC_PARAM(type) __grid_constant__ const type

#else

#include <algorithm>
#include <bit>
#include <cmath>

#include "gpu/emu/lane.h"

#define MC_DEVICE inline
#define MC_WHERE ::mc::gpu::emu::Where where = ::mc::gpu::emu::Where::current()
#define MC_AND_WHERE , MC_WHERE
#define MC_KERNEL(name, bounds) void name
#define MC_CLUSTER_KERNEL(name, bounds, ctas) void name
#define MC_PARAM(type) const type&

namespace mc::gpu {
using std::max;
using std::min;
}  // namespace mc::gpu

#endif

namespace mc::gpu {

constexpr float kMinusInf = -__builtin_inff();

/// An element of a wgmma accumulator. On the host it stops the run when it is touched before its wait.
#ifdef __CUDACC__
using Acc = float;
#else
using Acc = emu::Acc;
#endif

/// A CUtensorMap, or the emulator's.
struct alignas(64) TensorMap {
  unsigned char bytes[128];
};

namespace ptx {

#ifdef __CUDACC__
MC_DEVICE constexpr bool has_fault(Fault) {
  return false;
}
#else
inline bool has_fault(Fault fault) {
  return emu::place().fault == static_cast<uint8_t>(fault);
}
#endif

// ---- special registers, 10 ----
#ifdef __CUDACC__
MC_DEVICE uint32_t tid_x() {
  return threadIdx.x;
}
MC_DEVICE uint32_t ctaid_x() {
  return blockIdx.x;
}
MC_DEVICE uint32_t ctaid_y() {
  return blockIdx.y;
}
MC_DEVICE uint32_t ctaid_z() {
  return blockIdx.z;
}
#else
inline uint32_t tid_x() {
  return emu::place().thread;
}
inline uint32_t ctaid_x() {
  return emu::place().cta[0];
}
inline uint32_t ctaid_y() {
  return emu::place().cta[1];
}
inline uint32_t ctaid_z() {
  return emu::place().cta[2];
}
#endif

}  // namespace ptx
}  // namespace mc::gpu
