// A model that several devices of one node compute together (tensor_part.h): one thread queues each step of a pass on
// all devices, and their sums between (gpu/device_group.h).
//
// The caller's pages hold all KV heads. Each device reads and writes its own heads of a page, and checksums() combines
// the CRC32C of the parts into that of the whole extent. The first device makes the logits, and the host draws from
// them. Every device has the pages of a sequence that decodes until Runner::forget(), and copies the pages of other
// passes. Nothing of this has run on GPUs yet.
#pragma once

#include <memory>

#include "model/backend.h"
#include "model/model.h"
#include "model/tensor_part.h"
#include "ops/ops.h"

namespace mc::gpu {
class DeviceGroup;
}

namespace mc::model {

/// `group` has at least two devices. The references must outlive the backend. Errors: those of open_device_backend(),
/// and MC7002 when the model cannot be split over so many devices.
Result<std::unique_ptr<Backend>> open_split_backend(const Model& model, gpu::DeviceGroup& group, Parallel& parallel,
                                                    const RunnerOptions& options, const ops::Kernels& kernels);

}  // namespace mc::model
