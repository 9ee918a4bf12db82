// Matrix products y = x w^T of a device, and what computes them. It is decided once, when the device is opened:
//
//   own              the kernels of kernels/gemm_sm80.cu; on every device
//   cublaslt         cuBLASLt, with an algorithm for each power of two of rows whose bits agree
//   cublaslt-tuned   cuBLASLt, with an algorithm for each power of two of rows, which may sum in parts
//   auto             cublaslt on a GPU whose host has it; else own, and on the emulator own
//
// Bits. Own kernels give a row the same bits whatever rows lie beside it: prompts that share a pass, and chunks of any
// size, get what they would get alone. cuBLASLt documents that a call gives the same bits in every run on one kind of
// GPU and one version. It promises nothing about rows of products of different size: its heuristic takes another
// algorithm for another number of rows. Algorithms that sum the inner dimension in one piece often have equal bits all
// the same. So `cublaslt` takes only these, and compares them on the device when a matrix of a shape is first
// multiplied:
//
//   1. The algorithm for a chunk must give the first row the same bits alone and among 512 rows, and the last row of
//      257 the same as among 512, or the next proposal is tried. Where no proposal does, the own kernels multiply.
//   2. For fewer rows, the first proposal is taken that gives the first and the last row of random data the bits which
//      the algorithm for a chunk gives them. The comparison runs at both ends of the power of two.
//   3. Where no proposal agrees, or rows cannot be compared, the algorithm for a chunk serves all rows. It is taken
//      uncompared where the device has no memory, and where the library refuses so many rows. It also serves rows that
//      the library refuses for their own algorithm; what it refuses too, the own kernels multiply.
//
// Products of fp8 (gpu/fp8_product.h) are not compared. All numbers of rows share the algorithm for a chunk, which sums
// in one piece.
//
// A comparison costs some products and waits for the device. `cublaslt-tuned` compares nothing: it may add parts of the
// inner dimension, which keeps more multiprocessors busy, and a row's bits change with the number of rows.
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

  /// Loads the library and takes a workspace and memory to compare algorithms, or none where the device has no memory
  /// for them. Code::unsupported: the reason that cuBLASLt cannot be used. The device must outlive it.
  static Result<Matmul> open(Device& device, bool is_tuned);
  Matmul(Matmul&& other) noexcept;
  Matmul& operator=(Matmul&&) = delete;
  ~Matmul();

  /// Queues a product; false: cuBLASLt does not take it, and nothing is queued.
  Result<bool> queue(const Product& product);
  /// Likewise a call without algorithm and workspace, which is a part of a product of so many rows.
  Result<bool> queue(LtCall call, size_t rows);
  /// Whether queue() takes it. Nothing is queued.
  Result<bool> takes(const LtCall& call, size_t rows);

  struct Report {
    std::string name;            // "cuBLASLt 13.1.0"
    size_t workspace_bytes = 0;  // 0: the device had no memory for one
    uint64_t asked = 0;          // times that the heuristic was asked
    uint64_t queued = 0;         // products
    uint64_t refused = 0;        // products that were left to the own kernels
    uint64_t agreed = 0;         // numbers of rows of a matrix that have an algorithm of their own
    uint64_t shared = 0;         // those that share the algorithm for a chunk
    LtProposal last;             // of the last product
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
  using Proposals = std::vector<LtProposal>;
  Matmul(Device& device, bool is_tuned) : device_(&device), is_tuned_(is_tuned) {}
  /// With the device current on this thread.
  CublasLt& library();
  size_t bucket(const LtProblem& problem, size_t rows) const;
  Result<Plan*> plan_of(const LtCall& call, size_t rows);
  Result<Plan*> usable_plan(const LtCall& call, size_t rows);
  Result<Plan> chunk_plan(const LtCall& call, const Proposals& proposals);
  Result<Plan> few_plan(const LtCall& call, size_t rows, const Proposals& proposals);
  Result<bool> allows(const LtProblem& problem, const LtProposal& proposal);
  Result<bool> takes(Plan& plan, const LtProblem& problem);

  /// The most rows of a matrix that can be compared.
  size_t rows_compared(const LtProblem& problem) const;
  using Bits = std::vector<uint32_t>;
  Result<Bits> bits(LtCall call, const LtProposal& proposal, size_t rows, size_t last);
  Result<bool> agree(const LtCall& call, const LtProposal& one, size_t rows, const LtProposal& other, size_t fewer);

  Device* device_;
  bool is_open_ = true;
  bool is_tuned_;
  DeviceBuffer workspace_;
  DeviceBuffer rows_, sums_;  // operands and results of products that are compared
  bool has_rows_ = false;
  std::map<Key, Plan> plans_;
  Report report_;
};

}  // namespace mc::gpu
