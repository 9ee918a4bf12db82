// The operators a transformer needs besides attention, as tables of row kernels: `ref` is the
// definition (scalar, double accumulation), `avx2`, `avx512` and `avx512bf16` hold speed. One table
// is chosen at start (cpuid, or by name with --kernels); a process never mixes two.
//
// Activations are f32 between operators. A kernel's result for one row depends on that row alone:
// neither on how many rows are passed nor on which thread runs it.
//
// Weights of a matrix product lie in panels of 64 output columns, k-major inside (matmul.h):
//   f32   panel[k][64]            K rounded up to 16 with zero rows
//   bf16  panel[k / 2][64][2]     K rounded up to 32 with zero rows
// which are oneDNN's BA16a64b and BA16a64b2a, so that prefill (oneDNN tiles) and decode (our kernel)
// read the same bytes.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "base/dtype.h"
#include "base/result.h"

namespace mc::ops {

inline constexpr size_t kPanelColumns = 64;
inline constexpr size_t kTileRows = 64;

constexpr size_t padded_k(Dtype dtype, size_t k) {
  const size_t step = dtype == Dtype::bf16 ? 32 : 16;
  return (k + step - 1) / step * step;
}

/// How prefill multiplies 64-row tiles.
enum class TileGemm : uint8_t {
  panels,         // our panel kernel (ref, avx2)
  onednn,         // oneDNN in the weights' dtype
  onednn_widened  // oneDNN in f32; bf16 panels are widened first, for CPUs whose vdpbf16ps is slower than f32 FMA
};

struct Kernels {
  const char* name;
  bool (*supported)();
  TileGemm tile_gemm;

  /// out[i] = x[i] / sqrt(mean(x^2) + epsilon) * weight[i]; out may be x.
  void (*rms_norm)(const float* x, const float* weight, float epsilon, size_t n, float* out);
  /// out[i] = gate[i] / (1 + exp(-gate[i])) * up[i]; out may be either input.
  void (*silu_mul)(const float* gate, const float* up, size_t n, float* out);
  /// y[i] += x[i]
  void (*add)(const float* x, size_t n, float* y);
  /// Half-split rotation in place: (x[i], x[i + half]) by the angle with cosine[i], sine[i].
  void (*rope)(float* x, const float* cosine, const float* sine, size_t half);
  /// Round to nearest even.
  void (*to_bf16)(const float* x, size_t n, bf16_t* out);
  void (*from_bf16)(const bf16_t* x, size_t n, float* out);
  /// Panels in bf16 to panels in f32: `pairs` groups (x[2i], x[2i+1]) of 64 lanes become two rows.
  /// pairs counts (k pair, lane), a multiple of 64.
  void (*widen_pairs)(const bf16_t* panel, size_t pairs, float* out);
  /// Largest element; n >= 1. NaN elements are ignored unless all are NaN.
  float (*max)(const float* x, size_t n);
  /// sum of exp(x[i] - shift); elements with x - shift < -87 count as zero.
  double (*sum_exp)(const float* x, float shift, size_t n);
  /// y[row, 0..columns) = x[row, 0..k) . panel, f32; columns <= 64. Strides in elements.
  void (*panel_f32)(const float* x, size_t x_stride, size_t rows, const float* panel, size_t k, float* y,
                    size_t y_stride, size_t columns);
  /// The same with a bf16 panel, f32 accumulation; k is padded_k(bf16, K) and x rows are zero beyond K. A
  /// variant has one of the two: x in bf16, or x in f32 but rounded to bf16 values.
  void (*panel_bf16)(const bf16_t* x, size_t x_stride, size_t rows, const bf16_t* panel, size_t k, float* y,
                     size_t y_stride, size_t columns);
  void (*panel_widened)(const float* x, size_t x_stride, size_t rows, const bf16_t* panel, size_t k, float* y,
                        size_t y_stride, size_t columns);
};

/// Every variant of this build, ref first. Some may not be supported by this CPU.
std::span<const Kernels* const> variants();
/// "auto" (or empty): the fastest that this CPU supports. Otherwise the named one, or an error that
/// lists what this CPU can run.
Result<const Kernels*> kernels_named(std::string_view name);
const Kernels& best_kernels();

}  // namespace mc::ops
