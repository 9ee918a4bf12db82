// Arguments of the kernels that turn activations into E4M3 for products of fp8, and their results into f32 rows
// (quantise_sm80.cu). Addresses are the device's.
#pragma once

#include <cstdint>

namespace mc::gpu {

/// Inner elements that share a scale of weights and of activations.
constexpr int32_t kScaleGroup = 128;

/// codes[row] = E4M3(x[row] / scale), rounded to nearest even and cut to the largest finite value, 448. The scale of a
/// group of a row is the largest absolute value of the group / 448, or 1 for zeros; with `fixed` it is that of all
/// rows. Rows from `rows` to `padded` are zeros. A row's result depends on that row alone.
/// Grid: (padded / kRowsPerCta, rounded up).
struct QuantiseArgs {
  const uint16_t* x = nullptr;     // bf16 [rows, inner]; inner a multiple of 16
  unsigned char* codes = nullptr;  // [padded, inner]
  float* scales = nullptr;         // [groups, padded]; not written with `fixed`
  const float* fixed = nullptr;    // one value, or null
  int32_t rows = 0, padded = 0, inner = 0;
  int32_t group = 0;  // inner elements of a scale, a multiple of 128; inner: a scale for each row
};

/// y[row] = x[row], or y[row] += x[row]. Grid: (rows).
struct TakeRowsArgs {
  const float* x = nullptr;  // [rows, columns]
  float* y = nullptr;        // [rows, columns]
  int32_t columns = 0;
  bool adds = false;
};

}  // namespace mc::gpu
