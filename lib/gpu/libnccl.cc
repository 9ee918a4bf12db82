// Types and operations are numbered as in nccl.h of NCCL 2.32; all versions since 2.13 have the same functions and
// numbers. The part without a GPU has run: loading and versions. create() and what comes behind it has not.
#include "gpu/libnccl.h"

#include <atomic>
#include <cstdlib>
#include <utility>

#include "base/assert.h"
#include "gpu/optional_library.h"

namespace mc::gpu {
namespace {

using NcclComm = void*;
constexpr int kNcclFloat32 = 7, kNcclSum = 0;

struct NcclFunctions {
  int (*version)(int*);
  const char* (*error_text)(int);
  const char* (*last_error)(NcclComm);
  int (*create)(NcclComm*, int, const int*);
  int (*destroy)(NcclComm);
  int (*abort)(NcclComm);
  int (*group_start)();
  int (*group_end)();
  int (*all_reduce)(const void*, void*, size_t, int, int, NcclComm, void*);
};

void resolve_nccl(FunctionFinder& find, NcclFunctions& f) {
  find(f.version, "ncclGetVersion");
  find(f.error_text, "ncclGetErrorString");
  find(f.last_error, "ncclGetLastError");
  find(f.create, "ncclCommInitAll");
  find(f.destroy, "ncclCommDestroy");
  find(f.abort, "ncclCommAbort");
  find(f.group_start, "ncclGroupStart");
  find(f.group_end, "ncclGroupEnd");
  find(f.all_reduce, "ncclAllReduce");
}

size_t version_of(const NcclFunctions& f) {
  int version = 0;
  return f.version(&version) == 0 && version > 0 ? static_cast<size_t>(version) : 0;
}

class LibNccl final : public Nccl {
 public:
  explicit LibNccl(std::vector<std::string> files) : files_(std::move(files)) {}
  ~LibNccl() override { destroy(); }

  Result<void> load() override;
  size_t version() const override { return version_of(f_); }
  std::string file() const override { return file_; }
  NcclStatus create(std::span<const int> devices) override;
  void destroy() override { end(f_.destroy); }
  void abort() override { end(f_.abort); }
  NcclStatus group_start() override { return static_cast<NcclStatus>(f_.group_start()); }
  NcclStatus all_reduce(const NcclCall& call) override;
  NcclStatus group_end() override { return static_cast<NcclStatus>(f_.group_end()); }
  std::string error_text(NcclStatus status) override;

 private:
  void end(int (*how)(NcclComm)) {
    if (is_closed_.exchange(true)) return;
    for (NcclComm comm : comms_) how(comm);
  }

  std::vector<std::string> files_;
  std::string file_;  // that is loaded; empty: none
  NcclFunctions f_{};
  std::vector<NcclComm> comms_;         // by rank; stays as it is, because abort() runs beside other calls
  std::atomic<bool> is_closed_ = true;  // comms_ are not to be used
};

Result<void> LibNccl::load() {
  if (!file_.empty()) return {};
  MC_TRY(file, load_library("NCCL", files_, kNcclVersionMin, resolve_nccl, version_of, f_));
  file_ = file;
  return {};
}

// The sums of NVLS may differ from call to call (gpu/nccl.h). A user's own setting stays.
NcclStatus LibNccl::create(std::span<const int> devices) {
  MC_ASSERT(is_closed_);
  ::setenv("NCCL_NVLS_ENABLE", "0", 0);
  std::vector<NcclComm> made(devices.size());
  const int status = f_.create(made.data(), static_cast<int>(devices.size()), devices.data());
  if (status != 0) return static_cast<NcclStatus>(status);
  comms_ = std::move(made);
  is_closed_ = false;
  return NcclStatus::ok;
}

// NCCL makes the communicator's device current by itself.
NcclStatus LibNccl::all_reduce(const NcclCall& call) {
  if (is_closed_ || static_cast<size_t>(call.rank) >= comms_.size()) return NcclStatus::invalid_usage;
  return static_cast<NcclStatus>(f_.all_reduce(reinterpret_cast<const void*>(call.from),
                                               reinterpret_cast<void*>(call.to), call.count, kNcclFloat32, kNcclSum,
                                               comms_[static_cast<size_t>(call.rank)], call.stream));
}

std::string LibNccl::error_text(NcclStatus status) {
  std::string text = f_.error_text(static_cast<int>(status));
  const char* last = f_.last_error(nullptr);
  if (last != nullptr && *last != '\0') text += std::string(": ") + last;
  return text;
}

}  // namespace

std::string_view name_of(NcclStatus status) {
  switch (status) {
    case NcclStatus::ok: return "ncclSuccess";
    case NcclStatus::unhandled_cuda_error: return "ncclUnhandledCudaError";
    case NcclStatus::system_error: return "ncclSystemError";
    case NcclStatus::internal_error: return "ncclInternalError";
    case NcclStatus::invalid_argument: return "ncclInvalidArgument";
    case NcclStatus::invalid_usage: return "ncclInvalidUsage";
    case NcclStatus::remote_error: return "ncclRemoteError";
    case NcclStatus::in_progress: return "ncclInProgress";
    case NcclStatus::rule_broken: return "a broken rule";
  }
  return "an unknown status of NCCL";
}

std::unique_ptr<Nccl> host_nccl(std::vector<std::string> files) {
  if (files.empty()) files = {"libnccl.so.2", "/usr/local/cuda/lib64/libnccl.so.2", "/usr/local/nccl/lib/libnccl.so.2"};
  return std::make_unique<LibNccl>(std::move(files));
}

}  // namespace mc::gpu
