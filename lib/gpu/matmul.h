// Matrix products y = x w^T of a device, and what computes them. It is decided once, when the device is opened:
//
//   own              the kernels of kernels/gemm_sm80.cu; on every device
//   cublaslt         cuBLASLt, with one algorithm for each matrix, which sums the inner dimension in one piece
//   cublaslt-tuned   cuBLASLt, with an algorithm for each power of two of rows, which may sum in parts
//   auto             cublaslt on a GPU whose host has it; else own, and on the emulator own
//
// Bits. Own kernels give a row the same bits whatever rows lie beside it: prompts that share a pass, and chunks of any
// size, get what they would get alone. cuBLASLt documents that a call gives the same bits in every run on one kind of
// GPU and one version. It promises nothing about rows of products of different size: its heuristic may take another
// algorithm for another number of rows. So `cublaslt` asks the heuristic about one size, and uses that algorithm for
// all others. The price is speed where an algorithm of their own is faster: a step of few rows, above all, has the
// large tiles of a chunk, and no parts that would keep more multiprocessors busy. `cublaslt-tuned` has the speed, and a
// row's bits change with the number of rows.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "base/result.h"
#include "gpu/cublaslt.h"
#include "gpu/gpu.h"

namespace mc::gpu {

enum class MatmulChoice : uint8_t { automatic, own, cublaslt, tuned };
struct MatmulRow {
  std::string_view name;
  MatmulChoice choice = MatmulChoice::automatic;
};
std::span<const MatmulRow> matmul_rows();
/// Values of --kernels.
std::vector<std::string_view> matmul_names();
/// The choice of a name; automatic for any other text, which names kernels of the CPU.
MatmulChoice matmul_choice(std::string_view name);
/// "cuBLASLt 13.1.0, workspace 32 MiB", or "own: no cuBLASLt was found: ..."
std::string matmul_text(const Device& device);

/// y = x w^T + bias, or y += the same. Addresses are the device's.
struct Product {
  uint64_t x = 0;     // bf16 [rows, inner]; inner a multiple of 8
  uint64_t w = 0;     // bf16 [columns, inner]
  uint64_t y = 0;     // f32 [rows, columns]
  uint64_t bias = 0;  // f32 [columns]; 0: none
  size_t rows = 0, columns = 0, inner = 0;
  bool adds = false;
};

/// Products by cuBLASLt on a device's own stream.
class Matmul {
 public:
  /// Workspace at most: what cuBLAS recommends for compute capability 9.0, and for others.
  static size_t workspace_most(int capability);

  /// Loads the library and takes a workspace, or none where the device has no memory for it. Code::unsupported: the
  /// reason that cuBLASLt cannot be used. The device must outlive it.
  static Result<Matmul> open(Device& device, bool is_tuned);
  Matmul(Matmul&& other) noexcept;
  Matmul& operator=(Matmul&&) = delete;
  ~Matmul();

  /// Queues a product; false: cuBLASLt does not take it, and nothing is queued.
  Result<bool> queue(const Product& product);
  /// Likewise a call without algorithm and workspace, which is a part of a product of so many rows.
  Result<bool> queue(LtCall call, size_t rows);

  struct Report {
    std::string name;            // "cuBLASLt 13.1.0"
    size_t workspace_bytes = 0;  // 0: the device had no memory for one
    uint64_t asked = 0;          // times that the heuristic was asked
    uint64_t queued = 0;         // products
    uint64_t refused = 0;        // products that were left to the own kernels
  };
  const Report& report() const { return report_; }

 private:
  /// Type, columns, inner, rows that are asked about, addition, epilogue, scale modes.
  using Key = std::tuple<LtType, uint64_t, uint64_t, size_t, bool, LtEpilogue, LtScale, LtScale>;
  struct Plan {
    bool is_usable = false;
    LtProposal proposal;
    std::vector<uint8_t> checked;  // by rows: kUnknown, kTaken, kRefused
  };
  Matmul(Device& device, bool is_tuned) : device_(&device), is_tuned_(is_tuned) {}
  /// With the device current on this thread.
  CublasLt& library();
  size_t bucket(size_t rows) const;
  Result<Plan*> plan_of(const LtCall& call, size_t rows);
  Result<bool> takes(Plan& plan, const LtProblem& problem);

  Device* device_;
  bool is_open_ = true;
  bool is_tuned_;
  DeviceBuffer workspace_;
  std::map<Key, Plan> plans_;
  Report report_;
};

}  // namespace mc::gpu
