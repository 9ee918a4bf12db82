// The CPU's forward pass (backend.h), on the kernels of lib/ops and lib/attn. Activations are f32 rows in one workspace
// that is allocated once; a pass allocates nothing but what a mixture of experts or scored rows need.
#pragma once

#include <cstddef>
#include <memory>

#include "model/backend.h"
#include "model/model.h"
#include "ops/ops.h"

namespace mc {
class Parallel;
}

namespace mc::model {

constexpr size_t kBatchRowsMax = 8 * ops::kTileRows;  // of a decode step

/// The references must outlive the backend. Code::no_space when the workspace does not fit.
Result<std::unique_ptr<Backend>> open_cpu_backend(const Model& model, Parallel& parallel, const RunnerOptions& options,
                                                  const ops::Kernels& kernels);
/// Bytes of the workspace.
size_t cpu_workspace_bytes(const ModelConfig& config, const RunnerOptions& options);

}  // namespace mc::model
