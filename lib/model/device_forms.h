// The types that the matrices of a model have on a GPU, and the memory that they take there: planned from the headers
// of its files, before anything is loaded.
#pragma once

#include <cstddef>
#include <string>

#include "model/model.h"

namespace mc::model {

struct DeviceForms {
  size_t matrices = 0, widened = 0;              // the second in another type on the host
  size_t widened_bytes = 0, widened_stored = 0;  // of the widened ones, on the device and on the host
  size_t bytes = 0;                              // of all weights on the device, but for the alignment of its parts

  /// "weights widened to bf16: 168 of 169 matrices, 7.2 GiB from 4.1 GiB"; empty: none is widened.
  std::string text() const;
};
DeviceForms device_forms(const ModelPlan& plan);

}  // namespace mc::model
