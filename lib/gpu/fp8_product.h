// Matrix products of fp8 by cuBLASLt: weights that stay the E4M3 codes of a checkpoint, and activations that a kernel
// turns into E4M3. The own kernels have no products of fp8.
//
//   scales of w     scales of x              compute capability   scale modes of cuBLASLt
//   of the matrix   one value of the caller  8.9 and later        scalar, scalar
//   of each row     one for each row         9.0                  outer vector, outer vector
//   of 128 x 128    one for each row and     9.0                  128 x 128, vector of 128
//                   128 inner elements
//
// A scale of x is that of a row, or the caller's, so a row's result depends on no other row, as far as the algorithm
// does not (gpu/matmul.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "gpu/arena.h"
#include "gpu/gpu.h"
#include "gpu/matmul.h"

namespace mc::gpu {

/// Rows and inner elements of w that share a scale with Fp8Scales::blocks.
inline constexpr size_t kFp8Block = 128;

enum class Fp8Scales : uint8_t { matrix, rows, blocks };

/// y = x w^T, or y += the same. Addresses are the device's.
struct Fp8Product {
  uint64_t x = 0;         // bf16 [rows, inner]; inner a multiple of 16
  uint64_t w = 0;         // E4M3 [columns, inner]; columns a multiple of 4
  uint64_t w_scales = 0;  // f32: [1], [columns], or [columns / 128][fp8_scale_stride(inner)], rounded up
  uint64_t x_scale = 0;   // f32 [1], with Fp8Scales::matrix alone
  uint64_t y = 0;         // f32 [rows, columns]
  size_t rows = 0, columns = 0, inner = 0;
  Fp8Scales scales = Fp8Scales::blocks;
  bool adds = false;
};

/// Scales of 128 rows of w, with those that fill up to a multiple of 4.
constexpr size_t fp8_scale_stride(size_t inner) {
  return (inner + 511) / 512 * 4;
}

/// Whether cuBLASLt multiplies fp8 with such scales on a device of this compute capability.
constexpr bool multiplies_fp8(int capability, Fp8Scales scales) {
  return scales == Fp8Scales::matrix ? capability >= 89 : capability == 90;
}

/// Whether cuBLASLt multiplies fp8 weights of this many columns and inner elements: the library is asked about up to
/// 512 rows. False as well for what Fp8Matmul::queue() refuses. The question takes no memory, so the plan of a device's
/// memory and the load of its weights get one answer.
Result<bool> takes_fp8(Device& device, Fp8Scales scales, size_t columns, size_t inner, bool adds);

class Fp8Matmul {
 public:
  /// Memory for products of at most so many rows, columns and inner elements. Code::unsupported when the device has not
  /// chosen cuBLASLt; MC7005. The device must outlive it.
  static Result<Fp8Matmul> open(Device& device, size_t rows, size_t columns, size_t inner);
  static size_t bytes(size_t rows, size_t columns, size_t inner);
  /// Queues a product. A number of rows that cuBLASLt refuses is computed in pieces of rows that takes_fp8() has asked
  /// about. Code::unsupported names what cuBLASLt or the device does not multiply; y is undefined then.
  Result<void> queue(const Fp8Product& product);

 private:
  explicit Fp8Matmul(Device& device) : device_(&device) {}
  Result<void> quantise(const Fp8Product& product, size_t padded);
  LtCall call_of(const Fp8Product& product, size_t padded, uint64_t y, bool adds) const;
  Result<size_t> rows_at_once(const Fp8Product& product, size_t left);
  Result<void> multiply(const Fp8Product& product, size_t padded, uint64_t y, bool adds);

  Device* device_;
  Arena arena_;
  uint64_t codes_ = 0, scales_ = 0, last_ = 0;  // last_: results of the rows that do not fill four
  size_t rows_most_ = 0, columns_most_ = 0, inner_most_ = 0;
};

}  // namespace mc::gpu
