// Attributes are numbered as in cublasLt.h of CUDA 13.0; versions 12 and 13 of the library have the same functions and
// numbers.
#include "gpu/libcublaslt.h"

#include <algorithm>
#include <utility>

#include "gpu/optional_library.h"

namespace mc::gpu {
namespace {

using LtHandle = void*;

// Attributes of an operation, a preference and an algorithm.
enum : int {
  kLtTransposeA = 3,
  kLtTransposeB = 4,
  kLtEpilogueOf = 7,
  kLtBias = 8,
  kLtScaleA = 17,
  kLtScaleB = 18,
  kLtBiasType = 26,
  kLtScaleModeA = 31,
  kLtScaleModeB = 32,
  kLtWorkspaceMost = 1,
  kLtReductionMask = 3,
  kLtAlignmentA = 5,
  kLtAlgorithmId = 0,
  kLtAlgorithmTile = 1,
  kLtAlgorithmSplits = 2,
  kLtAlgorithmReduction = 3,
  kLtOrder = 1,
};
constexpr int32_t kLtReduceNone = 0, kLtReduceComputeType = 2;  // sums of parts in f32, in a step of their own

/// cublasLtMatmulHeuristicResult_t.
struct LtResult {
  LtAlgorithm algorithm;
  size_t workspace_bytes = 0;
  int state = 0;
  float waves = 0;
  int reserved[4] = {};
};
static_assert(sizeof(LtResult) == 96);

struct LtFunctions {
  size_t (*version)();
  int (*create)(LtHandle*);
  int (*destroy)(LtHandle);
  int (*operation_create)(LtHandle*, int, int);
  int (*operation_set)(LtHandle, int, const void*, size_t);
  int (*operation_destroy)(LtHandle);
  int (*layout_create)(LtHandle*, int, uint64_t, uint64_t, int64_t);
  int (*layout_set)(LtHandle, int, const void*, size_t);
  int (*layout_destroy)(LtHandle);
  int (*preference_create)(LtHandle*);
  int (*preference_set)(LtHandle, int, const void*, size_t);
  int (*preference_destroy)(LtHandle);
  int (*heuristic)(LtHandle, LtHandle, LtHandle, LtHandle, LtHandle, LtHandle, LtHandle, int, LtResult*, int*);
  int (*check)(LtHandle, LtHandle, LtHandle, LtHandle, LtHandle, LtHandle, const LtAlgorithm*, LtResult*);
  int (*config)(const LtAlgorithm*, int, void*, size_t, size_t*);
  int (*multiply)(LtHandle, LtHandle, const void*, const void*, LtHandle, const void*, LtHandle, const void*,
                  const void*, LtHandle, void*, LtHandle, const LtAlgorithm*, void*, size_t, void*);
};

void resolve_cublaslt(FunctionFinder& find, LtFunctions& f) {
  find(f.version, "cublasLtGetVersion");
  find(f.create, "cublasLtCreate");
  find(f.destroy, "cublasLtDestroy");
  find(f.operation_create, "cublasLtMatmulDescCreate");
  find(f.operation_set, "cublasLtMatmulDescSetAttribute");
  find(f.operation_destroy, "cublasLtMatmulDescDestroy");
  find(f.layout_create, "cublasLtMatrixLayoutCreate");
  find(f.layout_set, "cublasLtMatrixLayoutSetAttribute");
  find(f.layout_destroy, "cublasLtMatrixLayoutDestroy");
  find(f.preference_create, "cublasLtMatmulPreferenceCreate");
  find(f.preference_set, "cublasLtMatmulPreferenceSetAttribute");
  find(f.preference_destroy, "cublasLtMatmulPreferenceDestroy");
  find(f.heuristic, "cublasLtMatmulAlgoGetHeuristic");
  find(f.check, "cublasLtMatmulAlgoCheck");
  find(f.config, "cublasLtMatmulAlgoConfigGetAttribute");
  find(f.multiply, "cublasLtMatmul");
}

size_t version_of(const LtFunctions& f) {
  return f.version();
}

/// A descriptor of the library, and the first status that was not ok.
class LtDescriptor {
 public:
  LtDescriptor(int status, LtHandle handle, int (*set)(LtHandle, int, const void*, size_t), int (*destroy)(LtHandle))
      : status_(status), handle_(status == 0 ? handle : nullptr), set_(set), destroy_(destroy) {}
  ~LtDescriptor() {
    if (handle_ != nullptr) destroy_(handle_);
  }
  LtDescriptor(LtDescriptor&& other) noexcept
      : status_(other.status_),
        handle_(std::exchange(other.handle_, nullptr)),
        set_(other.set_),
        destroy_(other.destroy_) {}
  LtDescriptor& operator=(const LtDescriptor&) = delete;
  template <class T>
  void set(int attribute, const T& value) {
    if (status_ == 0) status_ = set_(handle_, attribute, &value, sizeof value);
  }
  int status() const { return status_; }
  LtHandle get() const { return handle_; }

 private:
  int status_;
  LtHandle handle_;
  int (*set_)(LtHandle, int, const void*, size_t);
  int (*destroy_)(LtHandle);
};

LtDescriptor operation_of(const LtFunctions& f, const LtOperation& o) {
  LtHandle made = nullptr;
  const int status = f.operation_create(&made, o.compute, static_cast<int>(o.scale_type));
  LtDescriptor out(status, made, f.operation_set, f.operation_destroy);
  out.set(kLtTransposeA, o.transpose_a);
  out.set(kLtTransposeB, o.transpose_b);
  out.set(kLtEpilogueOf, o.epilogue);
  if (o.bias != 0) {
    out.set(kLtBias, o.bias);
    out.set(kLtBiasType, o.bias_type);
  }
  if (o.a_scale_mode != LtScale::scalar) out.set(kLtScaleModeA, o.a_scale_mode);
  if (o.b_scale_mode != LtScale::scalar) out.set(kLtScaleModeB, o.b_scale_mode);
  if (o.a_scale != 0) out.set(kLtScaleA, o.a_scale);
  if (o.b_scale != 0) out.set(kLtScaleB, o.b_scale);
  return out;
}

LtDescriptor layout_of(const LtFunctions& f, const LtLayout& l) {
  LtHandle made = nullptr;
  const int status = f.layout_create(&made, static_cast<int>(l.type), l.rows, l.columns, l.leading);
  LtDescriptor out(status, made, f.layout_set, f.layout_destroy);
  out.set(kLtOrder, l.order);
  return out;
}

LtDescriptor preference_of(const LtFunctions& f, const LtPreference& p) {
  LtHandle made = nullptr;
  const int status = f.preference_create(&made);
  LtDescriptor out(status, made, f.preference_set, f.preference_destroy);
  out.set(kLtWorkspaceMost, p.workspace_bytes);
  out.set(kLtReductionMask, p.splits_inner ? kLtReduceComputeType : kLtReduceNone);
  for (int matrix = 0; matrix < 4; ++matrix) out.set(kLtAlignmentA + matrix, p.alignment);
  return out;
}

/// The descriptors of a problem.
struct LtDescriptors {
  LtDescriptor operation, a, b, c, d;
  LtDescriptors(const LtFunctions& f, const LtProblem& p)
      : operation(operation_of(f, p.operation)),
        a(layout_of(f, p.a)),
        b(layout_of(f, p.b)),
        c(layout_of(f, p.c)),
        d(layout_of(f, p.d)) {}
  int status() const {
    for (const LtDescriptor* one : {&operation, &a, &b, &c, &d})
      if (one->status() != 0) return one->status();
    return 0;
  }
};

int32_t config_of(const LtFunctions& f, const LtAlgorithm& algorithm, int attribute, int32_t otherwise) {
  int32_t value = otherwise;
  size_t written = 0;
  return f.config(&algorithm, attribute, &value, sizeof value, &written) == 0 ? value : otherwise;
}

class LibCublasLt final : public CublasLt {
 public:
  explicit LibCublasLt(std::vector<std::string> files) : files_(std::move(files)) {}
  ~LibCublasLt() override { destroy(); }

  Result<void> load() override;
  size_t version() const override { return f_.version(); }
  std::string file() const override { return file_; }
  LtStatus create() override { return static_cast<LtStatus>(f_.create(&handle_)); }
  void destroy() override {
    if (handle_ != nullptr) f_.destroy(std::exchange(handle_, nullptr));
  }
  LtStatus propose(std::vector<LtProposal>* out, const LtProblem& problem, const LtPreference& preference) override;
  LtStatus check(uint64_t* workspace_bytes, const LtProblem& problem, const LtAlgorithm& algorithm) override;
  LtStatus multiply(const LtCall& call, void* stream) override;

 private:
  std::vector<std::string> files_;
  std::string file_;  // that is loaded; empty: none
  LtFunctions f_{};
  LtHandle handle_ = nullptr;
};

Result<void> LibCublasLt::load() {
  if (!file_.empty()) return {};
  MC_TRY(file, load_library("cuBLASLt", files_, kCublasLtVersionMin, resolve_cublaslt, version_of, f_));
  file_ = file;
  return {};
}

// The proposals come in the order of their estimated times.
LtStatus LibCublasLt::propose(std::vector<LtProposal>* out, const LtProblem& problem,
                              const LtPreference& preference) {
  out->clear();
  const LtDescriptors made(f_, problem);
  const LtDescriptor bounds = preference_of(f_, preference);
  if (const int status = made.status() != 0 ? made.status() : bounds.status(); status != 0)
    return static_cast<LtStatus>(status);
  LtResult results[kLtProposals];
  int count = 0;
  const int status = f_.heuristic(handle_, made.operation.get(), made.a.get(), made.b.get(), made.c.get(), made.d.get(),
                                  bounds.get(), kLtProposals, results, &count);
  if (status != 0) return static_cast<LtStatus>(status);
  for (int i = 0; i < std::min(count, kLtProposals); ++i) {
    const LtResult& result = results[i];
    const int32_t splits = config_of(f_, result.algorithm, kLtAlgorithmSplits, 1);
    if (result.state != 0 || result.workspace_bytes > preference.workspace_bytes) continue;
    const bool reduces = config_of(f_, result.algorithm, kLtAlgorithmReduction, kLtReduceNone) != kLtReduceNone;
    if ((splits > 1 || reduces) && !preference.splits_inner) continue;
    out->push_back({result.algorithm, result.workspace_bytes, config_of(f_, result.algorithm, kLtAlgorithmId, -1),
                    config_of(f_, result.algorithm, kLtAlgorithmTile, -1), splits});
  }
  return out->empty() ? LtStatus::not_supported : LtStatus::ok;
}

LtStatus LibCublasLt::check(uint64_t* workspace_bytes, const LtProblem& problem, const LtAlgorithm& algorithm) {
  const LtDescriptors made(f_, problem);
  if (made.status() != 0) return static_cast<LtStatus>(made.status());
  LtResult result;
  const int status = f_.check(handle_, made.operation.get(), made.a.get(), made.b.get(), made.c.get(), made.d.get(),
                              &algorithm, &result);
  *workspace_bytes = result.workspace_bytes;
  return static_cast<LtStatus>(status);
}

LtStatus LibCublasLt::multiply(const LtCall& call, void* stream) {
  const LtDescriptors made(f_, call.problem);
  if (made.status() != 0) return static_cast<LtStatus>(made.status());
  const auto at = [](uint64_t address) { return reinterpret_cast<void*>(address); };
  return static_cast<LtStatus>(f_.multiply(handle_, made.operation.get(), &call.alpha, at(call.a), made.a.get(),
                                           at(call.b), made.b.get(), &call.beta, at(call.c), made.c.get(), at(call.d),
                                           made.d.get(), &call.algorithm, at(call.workspace), call.workspace_bytes,
                                           stream));
}

}  // namespace

std::string_view name_of(LtStatus status) {
  switch (status) {
    case LtStatus::ok: return "CUBLAS_STATUS_SUCCESS";
    case LtStatus::not_initialized: return "CUBLAS_STATUS_NOT_INITIALIZED";
    case LtStatus::alloc_failed: return "CUBLAS_STATUS_ALLOC_FAILED";
    case LtStatus::invalid_value: return "CUBLAS_STATUS_INVALID_VALUE";
    case LtStatus::arch_mismatch: return "CUBLAS_STATUS_ARCH_MISMATCH";
    case LtStatus::mapping_error: return "CUBLAS_STATUS_MAPPING_ERROR";
    case LtStatus::execution_failed: return "CUBLAS_STATUS_EXECUTION_FAILED";
    case LtStatus::internal_error: return "CUBLAS_STATUS_INTERNAL_ERROR";
    case LtStatus::not_supported: return "CUBLAS_STATUS_NOT_SUPPORTED";
    case LtStatus::license_error: return "CUBLAS_STATUS_LICENSE_ERROR";
    case LtStatus::rule_broken: return "a broken rule";
  }
  return "an unknown status of cuBLAS";
}

std::unique_ptr<CublasLt> host_cublaslt(std::vector<std::string> files) {
  if (files.empty())
    files = {"libcublasLt.so.13", "/usr/local/cuda/lib64/libcublasLt.so.13", "libcublasLt.so.12",
             "/usr/local/cuda/lib64/libcublasLt.so.12"};
  return std::make_unique<LibCublasLt>(std::move(files));
}

}  // namespace mc::gpu
