// A GPU's forward pass (backend.h), on the runtime and kernels of lib/gpu. On the emulator it checks the whole GPU path
// on any machine. On a chip, this path has computed decode steps of mc-tiny only; no prompt of a model has run on a
// chip.
//
// Served: dense models and mixtures of up to 512 experts, of any weights (device_forms.h) in the compute type bf16,
// with heads of 64 or 128 and pages of a multiple of 64 tokens, whole or a pipeline stage. The caller's pages stay in
// host memory: a pass copies the pages below its rows to the device, layer by layer and a layer ahead of the kernels,
// and copies back each layer's extents that it wrote while the next layer computes (device_copies.h). Pages of a
// sequence that decodes stay on the device until Runner::forget(). The room for pages grows to the largest pass.
//
// With RunnerOptions::device_pages the caller numbers a fixed number of pages of the device instead, says for each row
// which ones it has, and copies blocks there (device_loads.h). The device then keeps them from pass to pass.
#pragma once

#include <memory>

#include "model/backend.h"
#include "model/model.h"
#include "ops/ops.h"

namespace mc::gpu {
class Device;
}

namespace mc::model {

/// Copies the weights to the device. The references must outlive the backend. MC7002 names what is not served; MC7005:
/// the weights or the workspace do not fit.
Result<std::unique_ptr<Backend>> open_device_backend(const Model& model, gpu::Device& device, Parallel& parallel,
                                                     const RunnerOptions& options, const ops::Kernels& kernels);

/// `layout`: of the KV pages; `plans`: of the rows; `device_bytes`: the device's whole memory.
DeviceScratch device_scratch(const ModelConfig& config, const ExtentLayout& layout, const RunnerOptions& options,
                             std::span<const attn::Plan> plans, size_t device_bytes);
/// Bytes of the activations on the device, a part of it.
size_t device_workspace_bytes(const ModelConfig& config, const RunnerOptions& options);

}  // namespace mc::model
