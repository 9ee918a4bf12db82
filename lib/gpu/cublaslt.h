// The calls of cuBLASLt that this toolkit makes, with the numbers of cublasLt.h (cuBLAS 13.1). Two libraries implement
// them: libcublasLt.so of the host, which is loaded at run time and never required, and the emulator's
// (gpu/emulated_cublaslt.h). Descriptors are values here: the host's library makes its own of them for each call.
//
//   D = alpha op(A) op(B) + beta C, with matrices in column-major order. A product y = x w^T of row-major matrices is
//   A = w as [inner, columns] transposed, B = x as [inner, rows], and D = y as [columns, rows].
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace mc::gpu {

/// A cublasStatus_t. The values are the library's, except rule_broken.
enum class LtStatus : int {
  ok = 0,
  not_initialized = 1,
  alloc_failed = 3,
  invalid_value = 7,
  arch_mismatch = 8,
  mapping_error = 11,
  execution_failed = 13,
  internal_error = 14,
  not_supported = 15,
  license_error = 16,
  rule_broken = 10000,  // the emulator's own, as Status::rule_broken
};
/// "CUBLAS_STATUS_INVALID_VALUE"
std::string_view name_of(LtStatus status);

/// A cudaDataType of a matrix or vector.
enum class LtType : int32_t { f32 = 0, bf16 = 14, e4m3 = 28 };
constexpr size_t bytes_of_type(LtType type) {
  return type == LtType::f32 ? 4 : type == LtType::bf16 ? 2 : 1;
}

/// A cublasLtEpilogue_t. The library has no SiLU, and none that multiplies two halves of the result.
enum class LtEpilogue : uint32_t { none = 1, relu = 2, bias = 4, relu_bias = 6, gelu = 32, gelu_bias = 36 };

/// A cublasLtMatmulMatrixScale_t: what a scale of an fp8 matrix covers.
enum class LtScale : int32_t {
  scalar = 0,        // the matrix; null: 1
  outer_vector = 3,  // a row of op(A), a column of op(B)
  vector_128 = 4,    // 128 inner elements of such a row or column
  block_128 = 5,     // 128 inner elements of 128 of them
};

constexpr int32_t kLtCompute32F = 68, kLtTransposed = 1, kLtColumnMajor = 0;

/// Rows of a column-major matrix are contiguous.
struct LtLayout {
  LtType type = LtType::bf16;
  int32_t order = kLtColumnMajor;
  uint64_t rows = 0, columns = 0;
  int64_t leading = 0;  // elements from a column to the next
};

/// Addresses are the device's; 0: null.
struct LtOperation {
  int32_t compute = kLtCompute32F;
  LtType scale_type = LtType::f32;  // of alpha and beta
  int32_t transpose_a = 0, transpose_b = 0;
  LtEpilogue epilogue = LtEpilogue::none;
  LtType bias_type = LtType::f32;
  uint64_t bias = 0;  // a value for each row of D
  LtScale a_scale_mode = LtScale::scalar, b_scale_mode = LtScale::scalar;
  uint64_t a_scale = 0, b_scale = 0;
};

struct LtProblem {
  LtOperation operation;
  LtLayout a, b, c, d;
};

/// Bounds of the algorithms that the heuristic may propose.
struct LtPreference {
  uint64_t workspace_bytes = 0;
  bool splits_inner = false;  // the inner dimension may be summed in parts, which are added in the order of the parts
  uint32_t alignment = 16;    // of all matrices, bytes
};

/// A cublasLtMatmulAlgo_t.
struct LtAlgorithm {
  uint64_t data[8] = {};
};

struct LtProposal {
  LtAlgorithm algorithm;
  uint64_t workspace_bytes = 0;
  int32_t id = 0, tile = 0, splits = 1;  // as far as the library tells
};

/// A product, as it is queued. The bytes between members are zero.
struct LtCall {
  LtProblem problem;
  LtAlgorithm algorithm;
  uint64_t a = 0, b = 0, c = 0, d = 0;
  uint64_t workspace = 0, workspace_bytes = 0;
  float alpha = 1, beta = 0;
};

constexpr int kLtProposals = 8;

class CublasLt {
 public:
  virtual ~CublasLt() = default;

  /// Code::unsupported: there is no library, it lacks a function, or it is older than kCublasLtVersionMin. The message
  /// says which.
  virtual Result<void> load() = 0;
  /// 10000 times the major version, 100 times the minor one, and the patch. After load().
  virtual size_t version() const = 0;
  /// The file that was loaded.
  virtual std::string file() const = 0;
  /// Whether `auto` takes it where it can be used.
  virtual bool is_default() const { return true; }

  /// For the device that is current on the thread, as all calls from here on.
  virtual LtStatus create() = 0;
  virtual void destroy() = 0;
  /// Up to kLtProposals algorithms for a problem, the fastest first by the library's estimate.
  /// LtStatus::not_supported: there is none.
  virtual LtStatus propose(std::vector<LtProposal>* out, const LtProblem& problem, const LtPreference& preference) = 0;
  /// Whether an algorithm solves a problem, and the workspace that it needs.
  virtual LtStatus check(uint64_t* workspace_bytes, const LtProblem& problem, const LtAlgorithm& algorithm) = 0;
  /// Queues a product on a stream of the device; in a capture it becomes a part of the graph.
  virtual LtStatus multiply(const LtCall& call, void* stream) = 0;
};

/// The oldest library that is used: the first with scales of 128 elements, 12.9.
constexpr size_t kCublasLtVersionMin = 120900;

}  // namespace mc::gpu
