// Whether a worker's memory suffices, asked before anything is loaded, and what to say when it does not:
// what is needed, what is free, and the largest --kv-mem that fits.
#pragma once

#include <cstdint>
#include <string>

#include "attn/plan.h"
#include "base/extent.h"
#include "base/result.h"
#include "base/units.h"
#include "gpu/devices.h"

namespace mc::host {

struct MemoryPlan {
  uint64_t weight_bytes = 0;   // as packed
  uint64_t scratch_bytes = 0;  // activations and logits
  uint64_t kv_bytes = 0;       // as asked for; 0: a share of what is left
  uint64_t page_bytes = 0;     // of one KV block
  uint64_t free_bytes = 0;
  uint64_t beside_page_bytes = 0;  // what is kept for each page outside of the pool: centroid_bytes()
};

/// The copy of a page's MoBA centroids that a decode node keeps (attn::CentroidIndex), rounded up; 0 for a plan that
/// gates nothing. Each row of the batch has its own: counting one for each page of the pool is short by a copy for
/// every further row that shares a page, as rows with a long common prefix do. `strip_bytes`: what the copy of one
/// sequence takes beyond it, as it grows by strips of blocks.
struct CentroidBytes {
  uint64_t page_bytes = 0, strip_bytes = 0;
};
CentroidBytes centroid_bytes(const attn::Plan& plan, const ExtentLayout& layout);

/// The memory of a device: weights, activations, and the KV pages of a pass. All KV pages of a node are in the host's
/// memory, from which a pass copies those that it reads.
struct DevicePlan {
  std::string device;  // "cuda:0"; empty: the CPU computes, and the rest is 0
  uint64_t weight_bytes = 0, scratch_bytes = 0;
  uint64_t page_bytes = 0;                   // of one KV block
  uint64_t free_bytes = 0, total_bytes = 0;  // of the device's memory, before anything is loaded
  uint64_t beside_page_bytes = 0;            // what attention takes for each page

  /// Number of KV pages that fit beside weights and activations.
  uint64_t pages() const;
};
/// Pages of `page_bytes` that --device-mem asks for, on a device with room for `fit` of them. A share of an emulated
/// GPU is at most 64 MiB, or kPagesMin pages: the emulator takes up to nine bytes of the host for each byte of its GPU.
uint64_t device_pages_asked(const ByteSize& asked, uint64_t fit, uint64_t page_bytes, gpu::DeviceKind kind);
/// MC7005 when the device has no room for a pool that serves anybody.
Result<void> check_device_memory(const DevicePlan& plan);

/// A pool smaller than this serves nobody.
inline constexpr uint64_t kPagesMin = 4;

/// MC5003 when it does not fit.
Result<void> check_memory(const MemoryPlan& plan);

}  // namespace mc::host
