// NCCL over emulated GPUs of one host. Every call is checked against the library's documentation (NCCL 2.28, "Group
// Calls" and "Collective Communication Functions"): a group has the calls of all ranks, in one order and of one size.
// A broken demand stops the run with the rule "nccl", also where the library would wait for ever or add what does not
// belong together. The numbers are added in the order of the ranks, whatever the devices do when.
//
// A rank's call is two operations of its stream: the rank's numbers are read when its turn has come, and the sums are
// written when all ranks' numbers are read. Where a device needs the numbers of another one, that one's stream runs up
// to them, as a chip would by itself.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "gpu/emulated.h"
#include "gpu/nccl.h"

namespace mc::gpu {

class EmulatedNccl final : public Nccl {
 public:
  /// The GPU of drivers[i] is device `i` of the host.
  explicit EmulatedNccl(std::vector<std::shared_ptr<EmulatedDriver>> drivers) : drivers_(std::move(drivers)) {}

  Result<void> load() override;
  size_t version() const override { return kVersion; }
  std::string file() const override { return "emu"; }
  bool can_hang() const override { return false; }
  NcclStatus create(std::span<const int> devices) override;
  void destroy() override { ranks_.clear(); }
  void abort() override { ranks_.clear(); }
  NcclStatus group_start() override;
  NcclStatus all_reduce(const NcclCall& call) override;
  NcclStatus group_end() override;
  std::string error_text(NcclStatus status) override;

  /// Changes the calls of every group before they are checked: a deliberate error of the caller. For tests.
  void set_edit(std::function<void(std::vector<NcclCall>&)> edit) { edit_ = std::move(edit); }
  /// Sums that were queued. For tests.
  uint64_t sums() const { return sums_; }

 private:
  static constexpr size_t kVersion = 22803;
  struct Rank {
    std::shared_ptr<EmulatedDriver> driver;
    std::vector<NcclCall> calls;  // of the group
    uint64_t ended = 0;           // calls of the groups before
    std::string last;             // what the last one of them was
  };
  /// Whether work may be queued on a stream. As NCCL does, the call makes the stream's device current.
  static Status check(EmulatedDriver& driver, Handle stream);
  /// The queue of a stream that check() accepts.
  static uint32_t queue_of(EmulatedDriver& driver, Handle stream);
  NcclStatus refuse(const std::string& text);
  std::string objection() const;
  std::string place(size_t rank, size_t index) const;
  NcclStatus queue_sum(size_t index);

  std::vector<std::shared_ptr<EmulatedDriver>> drivers_;
  std::vector<Rank> ranks_;
  std::vector<NcclCall> group_;
  std::function<void(std::vector<NcclCall>&)> edit_;
  std::string refused_;
  uint64_t sums_ = 0;
  bool is_open_ = false;  // a group
};

}  // namespace mc::gpu
