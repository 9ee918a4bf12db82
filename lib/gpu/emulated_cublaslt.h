// cuBLASLt of the emulated host. Every call is checked against the library's documentation (cuBLAS 13.0, sections
// 3.1.4 on narrow types and 3.4.17 on cublasLtMatmul): descriptors, leading dimensions, alignment, scales, epilogue,
// workspace and memory. A broken demand stops the run with the rule "cublasLt", also where the library would compute
// something else in silence. A product is queued on its stream as a kernel is, and the host computes it with f32 sums.
//
// An algorithm is a tile: the number of inner elements that are summed before they are added to the result. Another
// tile gives other bits, so that a caller who takes another algorithm for another number of rows is seen. For few rows
// the heuristic proposes smaller tiles first, and behind them one that has the bits of the algorithm for many rows.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "gpu/cublaslt.h"
#include "gpu/driver.h"
#include "gpu/emu/streams.h"

namespace mc::gpu {

class EmulatedDriver;

/// The demand of the documentation that a problem does not meet; empty: none. `capability`: as Device::capability().
std::string lt_objection(const LtProblem& problem, int capability);

class EmulatedCublasLt final : public CublasLt {
 public:
  /// The driver owns it.
  explicit EmulatedCublasLt(EmulatedDriver& driver) : driver_(driver) {}

  Result<void> load() override;
  size_t version() const override;
  std::string file() const override { return "emu"; }
  bool is_default() const override { return false; }
  LtStatus create() override;
  void destroy() override { is_created_ = false; }
  LtStatus propose(std::vector<LtProposal>* out, const LtProblem& problem, const LtPreference& preference) override;
  LtStatus check(uint64_t* workspace_bytes, const LtProblem& problem, const LtAlgorithm& algorithm) override;
  LtStatus multiply(const LtCall& call, Handle stream) override;

  /// Changes every product before it is checked: a deliberate error of the caller. For tests.
  void set_edit(std::function<void(LtCall&)> edit) { edit_ = std::move(edit); }
  /// Calls of propose() so far. For tests.
  uint64_t proposals() const { return proposals_; }

 private:
  LtStatus refuse(const std::string& text);
  std::string objection(const LtCall& call) const;

  EmulatedDriver& driver_;
  std::function<void(LtCall&)> edit_;
  uint64_t proposals_ = 0;
  bool is_created_ = false;
};

}  // namespace mc::gpu
