// Devices of one node that compute one model together, and the sums over all of them. One thread queues the work of all
// devices. A group of one device has nothing to sum.
//
//   MC_TRY(group, open_devices(*parse_devices("cuda:0,cuda:1")));              // gpu/devices.h
//   ... each device queues its part of y, on its own stream ...
//   MC_CHECK(group->all_reduce(addresses, count, "layer 3, attention"));       // each y = the sum of all
//
// all_reduce() queues a sum on all devices in one call. Before that call, the host must not wait for work queued after
// the sum. A failure of a device shows in calls on that device alone, and the other devices would wait in their sums
// for ever. So a thread looks at all devices of a chip. It aborts the sums when a device has failed or when the host
// has waited too long.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "gpu/gpu.h"
#include "gpu/nccl.h"

namespace mc::gpu {

class DeviceGroup {
 public:
  /// `name`: "cuda:0-1". `nccl` may be null for one device. MC7002: the devices are not of one kind, or the library
  /// cannot be used, with the reason.
  static Result<std::unique_ptr<DeviceGroup>> open(std::string name, std::vector<std::unique_ptr<Device>> devices,
                                                   std::unique_ptr<Nccl> nccl);
  /// A group of one device, with the device's name.
  static std::unique_ptr<DeviceGroup> of(std::unique_ptr<Device> device);
  ~DeviceGroup();
  DeviceGroup(const DeviceGroup&) = delete;
  DeviceGroup& operator=(const DeviceGroup&) = delete;

  const std::string& name() const { return name_; }
  size_t size() const { return devices_.size(); }
  Device& device(size_t rank) { return *devices_[rank]; }
  const Device& device(size_t rank) const { return *devices_[rank]; }
  /// The failure of the first device that does not work on, or of their sums. Empty while all work.
  std::optional<Error> failure() const;
  /// The library that sums: "NCCL 2.28.3"; empty for one device.
  std::string collective_text() const;

  /// Queues sums of f32 in place, on the devices' own streams: addresses[r] is that of rank r's numbers. `what` names
  /// the sum in reports. After an error no later sum is queued, and sums that wait for a device are given up.
  /// kWaitMost holds for the call as well.
  Result<void> all_reduce(std::span<const uint64_t> addresses, size_t count, std::string_view what);
  /// Runs a small and a large sum of zeros. NCCL takes its device memory at the first sum of each algorithm, which it
  /// chooses by the size. So free memory is asked for after this call. MC7005, and the errors of all_reduce().
  Result<void> warm_up();
  /// One of the devices failed, so the others would wait for it for ever: gives up sums that are queued.
  void abort();

  /// The host may wait for the devices as long as this object lives. A wait inside another one begins anew.
  class Wait {
   public:
    Wait(DeviceGroup& group, TimePoint now) : group_(group), outer_(group_.set_wait(now)) {}
    ~Wait() { (void)group_.set_wait(outer_); }
    Wait(const Wait&) = delete;
    Wait& operator=(const Wait&) = delete;

   private:
    DeviceGroup& group_;
    TimePoint outer_;
  };
  /// Longer than any step of a pass takes.
  static constexpr Duration kWaitMost = 120s;
  /// Gives up the sums when a device has failed, or a wait has lasted longer than kWaitMost. The group's own thread
  /// calls it where sums can hang, beside the thread that uses the devices.
  void look(TimePoint now);

 private:
  DeviceGroup(std::string name, std::vector<std::unique_ptr<Device>> devices, std::unique_ptr<Nccl> nccl)
      : name_(std::move(name)), devices_(std::move(devices)), nccl_(std::move(nccl)) {}
  Result<void> create();
  Result<void> check_alike() const;
  NcclStatus queue_sum(std::span<const uint64_t> addresses, size_t count, std::string_view what);
  NcclStatus queue_group(std::span<const uint64_t> addresses, size_t count, std::string_view what);
  Result<void> check(NcclStatus status, std::string_view what);
  Result<void> find_failed();
  /// Returns the begin of the wait before.
  TimePoint set_wait(TimePoint since);
  void watch(const std::stop_token& stop);

  std::string name_;
  std::vector<std::unique_ptr<Device>> devices_;
  std::unique_ptr<Nccl> nccl_;
  mutable std::mutex mutex_;  // guards the next four members; no call of NCCL runs under it
  bool is_aborted_ = false;
  bool is_queueing_ = false;      // a thread is in calls of NCCL
  std::optional<Error> failure_;  // of the sums
  TimePoint wait_since_ = kNever;
  std::condition_variable_any queued_, stopped_;
  std::jthread watch_;  // the last member, because the thread uses the others
};

}  // namespace mc::gpu
