#include "model/device_forms.h"

#include "base/units.h"

namespace mc::model {

std::string DeviceForms::text() const {
  if (widened == 0) return {};
  return "weights widened to bf16: " + std::to_string(widened) + " of " + std::to_string(matrices) + " matrices, " +
         human_bytes(widened_bytes) + " from " + human_bytes(widened_stored);
}

DeviceForms device_forms(const ModelPlan& plan) {
  DeviceForms out{.matrices = plan.matrices.size(), .bytes = plan.weight_bytes};
  for (const PlannedMatrix& matrix : plan.matrices) {
    const size_t bytes = matrix.rows * matrix.columns * dtype_bytes(Dtype::bf16);
    out.bytes = out.bytes - matrix.bytes + bytes;
    if (matrix.is_full) continue;
    ++out.widened;
    out.widened_bytes += bytes;
    out.widened_stored += matrix.bytes;
  }
  return out;
}

}  // namespace mc::model
