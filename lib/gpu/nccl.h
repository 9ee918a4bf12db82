// The calls of NCCL that this toolkit makes, with the numbers of nccl.h (NCCL 2.13 and later). Two libraries implement
// them: libnccl.so.2 of the host, which is loaded at run time and never required, and the emulator's
// (gpu/emulated_nccl.h). DeviceGroup (gpu/device_group.h) is written once on this interface.
//
// A communicator has a rank for each device. One thread queues the calls of all ranks, so they stand in groups: a call
// of one rank alone would wait for ranks whose calls come later.
//
//   MC_CHECK(nccl.load());
//   nccl.create(devices);
//   nccl.group_start();
//   for each rank:  nccl.all_reduce({.rank = rank, .from = x, .to = x, .count = n, .stream = stream});
//   nccl.group_end();
//
// Sums. NCCL's documentation promises no order of a sum. Its authors say that all ranks get equal bits
// (github.com/NVIDIA/nccl, issues 855 and 1497). A sum of two numbers has one order. With more ranks the order depends
// on the algorithm, the channels and the place of an element, which the number of elements decides: equal calls give
// equal bits, and a row's bits may change with the number of rows beside it. Sums inside the NVLink switch (NVLS) may
// differ from call to call (issue 1497), so the library of the host is told not to use them unless NCCL_NVLS_ENABLE
// says so.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"

namespace mc::gpu {

/// A ncclResult_t. The values are the library's, except rule_broken.
enum class NcclStatus : int {
  ok = 0,
  unhandled_cuda_error = 1,
  system_error = 2,
  internal_error = 3,
  invalid_argument = 4,
  invalid_usage = 5,
  remote_error = 6,
  in_progress = 7,
  rule_broken = 10000,  // the emulator's own, as Status::rule_broken
};
/// "ncclInvalidUsage"
std::string_view name_of(NcclStatus status);

/// One rank's part of a sum of f32 over all ranks. `from` and `to` are equal, or do not overlap.
struct NcclCall {
  int rank = 0;
  uint64_t from = 0, to = 0;  // addresses of the rank's device
  size_t count = 0;           // of f32, equal on all ranks
  void* stream = nullptr;     // of the rank's device
  std::string_view what;      // for reports of the emulator, which ends with the group: "layer 3, attention"
};

class Nccl {
 public:
  virtual ~Nccl() = default;

  /// Code::unsupported: there is no library, it lacks a function, or it is older than kNcclVersionMin. The message says
  /// which.
  virtual Result<void> load() = 0;
  /// 10000 times the major version, 100 times the minor one, and the patch. After load().
  virtual size_t version() const = 0;
  /// The file that was loaded.
  virtual std::string file() const = 0;

  /// Whether a sum can hang: that of a chip waits for ever for a device that has failed.
  virtual bool can_hang() const { return true; }

  /// A communicator of these devices of the host; rank r is devices[r].
  virtual NcclStatus create(std::span<const int> devices) = 0;
  /// The calls of all ranks have ended.
  virtual void destroy() = 0;
  /// The communicator ends at once, and so do calls that wait for a rank. Another thread may be in such a call; all
  /// other calls have returned.
  virtual void abort() = 0;
  virtual NcclStatus group_start() = 0;
  virtual NcclStatus all_reduce(const NcclCall& call) = 0;
  /// Queues the calls of the group.
  virtual NcclStatus group_end() = 0;
  /// The text of a status that the library gave last.
  virtual std::string error_text(NcclStatus status) = 0;
};

/// The oldest library that is used: the first with ncclGetLastError, 2.13.
constexpr size_t kNcclVersionMin = 21300;

}  // namespace mc::gpu
