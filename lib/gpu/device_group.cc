#include "gpu/device_group.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/assert.h"
#include "base/errors.h"
#include "base/units.h"
#include "gpu/failure.h"
#include "gpu/optional_library.h"

namespace mc::gpu {
namespace {

/// "compute capability 9.0, 132 multiprocessors and 227 KiB of shared memory"
std::string text_of(const DeviceFacts& facts) {
  return "compute capability " + std::to_string(facts.major) + "." + std::to_string(facts.minor) + ", " +
         std::to_string(facts.processors) + " multiprocessors and " +
         human_bytes(static_cast<uint64_t>(facts.shared_max)) + " of shared memory";
}

}  // namespace

Result<std::unique_ptr<DeviceGroup>> DeviceGroup::open(std::string name, std::vector<std::unique_ptr<Device>> devices,
                                                       std::unique_ptr<Nccl> nccl) {
  MC_ASSERT(!devices.empty());
  auto group = std::unique_ptr<DeviceGroup>(new DeviceGroup(std::move(name), std::move(devices), std::move(nccl)));
  if (group->size() > 1) MC_CHECK(group->create());
  return group;
}

std::unique_ptr<DeviceGroup> DeviceGroup::of(std::unique_ptr<Device> device) {
  MC_ASSERT(device != nullptr);
  const std::string name(device->name());
  std::vector<std::unique_ptr<Device>> devices;
  devices.push_back(std::move(device));
  return std::unique_ptr<DeviceGroup>(new DeviceGroup(name, std::move(devices), nullptr));
}

// Sums that no device has come to end before the streams that hold them.
DeviceGroup::~DeviceGroup() {
  if (nccl_ == nullptr) return;
  for (const auto& device : devices_) {
    const Wait wait(*this, SystemClock::instance().now());
    if (!failure()) (void)device->finish();
  }
  if (failure()) abort();
  watch_ = {};
  if (!is_aborted_) nccl_->destroy();
}

Result<void> DeviceGroup::create() {
  MC_ASSERT(nccl_ != nullptr);
  MC_CHECK(check_alike());
  const std::string next =
      "install libnccl2 (NCCL " + library_version_text(kNcclVersionMin) + " or later), or name one device";
  if (const auto loaded = nccl_->load(); !loaded)
    return user_error(err::kDeviceUnusable, name_ + " needs NCCL: " + loaded.error().what, "--device", next);
  std::vector<int> indexes;
  for (const auto& device : devices_) indexes.push_back(device->index_);
  const NcclStatus status = nccl_->create(indexes);
  if (status == NcclStatus::ok) {
    if (nccl_->can_hang()) watch_ = std::jthread([this](const std::stop_token& stop) { watch(stop); });
    return {};
  }
  MC_CHECK(find_failed());
  return user_error(err::kDeviceUnusable,
                    name_ + ": " + std::string(name_of(status)) + " from ncclCommInitAll: " + nccl_->error_text(status),
                    "--device",
                    "NCCL_DEBUG=WARN shows what NCCL met; nvidia-smi topo -m shows how the GPUs are linked");
}

/// Devices choose kernels by these facts, and what every rank computes for itself must have equal bits on all of them
/// (model/tensor_part.h).
Result<void> DeviceGroup::check_alike() const {
  const DeviceFacts& first = devices_.front()->facts();
  for (const auto& device : devices_) {
    const DeviceFacts& own = device->facts();
    if (own.major == first.major && own.minor == first.minor && own.processors == first.processors &&
        own.shared_max == first.shared_max)
      continue;
    return user_error(err::kDeviceUnusable,
                      name_ + ": " + devices_.front()->name_ + " has " + text_of(first) + ", and " + device->name_ +
                          " has " + text_of(own) + "; GPUs that compute one model must be alike",
                      "--device", "name GPUs of one kind, or one GPU; nvidia-smi -L lists the kinds");
  }
  return {};
}

std::optional<Error> DeviceGroup::failure() const {
  for (const auto& device : devices_)
    if (device->failure()) return device->failure();
  const std::lock_guard lock(mutex_);
  return failure_;
}

std::string DeviceGroup::collective_text() const {
  return size() == 1 ? "" : "NCCL " + library_version_text(nccl_->version());
}

// A call of NCCL may wait for ever for a device that has failed, so the abort runs beside it on another thread, as
// NCCL's abort flags allow. A call that returns by itself is waited for: an abort frees the communicator.
void DeviceGroup::abort() {
  constexpr Duration kCallMost = 500ms;
  std::unique_lock lock(mutex_);
  if (nccl_ == nullptr || std::exchange(is_aborted_, true)) return;
  queued_.wait_for(lock, kCallMost, [this] { return !is_queueing_; });
  lock.unlock();
  nccl_->abort();
}

// ---- the watch ----

TimePoint DeviceGroup::set_wait(TimePoint since) {
  const std::lock_guard lock(mutex_);
  return std::exchange(wait_since_, since);
}

// The question for free memory waits for nothing, and a device that has failed answers it with its failure. The thread
// asks drivers, and touches nothing else of the devices.
void DeviceGroup::look(TimePoint now) {
  std::optional<Error> found;
  for (const auto& device : devices_) {
    size_t free = 0, total = 0;
    Status status = device->driver_->enter();
    if (status == Status::ok) status = device->driver_->memory(&free, &total);
    if (status == Status::ok || found) continue;
    found = user_error(err::kDeviceFailed,
                       device->name_ + ": " + device->driver_->error_text(status) + " (CUDA error " +
                           std::to_string(static_cast<int>(status)) + ")",
                       device->name_, step_after_failure(device->kind(), status));
  }
  {
    const std::lock_guard lock(mutex_);
    if (!found && wait_since_ != kNever && now - wait_since_ > kWaitMost)
      found = user_error(err::kDeviceFailed,
                         name_ + ": the devices have not answered for " +
                             std::to_string(std::chrono::duration_cast<std::chrono::seconds>(kWaitMost).count()) +
                             " s, in their sums or before them",
                         name_);
    if (!found || failure_) return;
    failure_ = found;  // before the sums end, whose results mean nothing
  }
  abort();
}

void DeviceGroup::watch(const std::stop_token& stop) {
  constexpr Duration kLookEach = 200ms;
  std::unique_lock lock(mutex_);
  while (!stop.stop_requested()) {
    stopped_.wait_for(lock, stop, kLookEach, [] { return false; });
    if (stop.stop_requested()) return;
    lock.unlock();
    look(SystemClock::instance().now());
    lock.lock();
  }
}

// ---- sums ----

/// The error of a device that has failed, which a status of NCCL does not name.
Result<void> DeviceGroup::find_failed() {
  for (const auto& device : devices_) {
    const auto answer = device->memory();
    if (!answer && device->failure()) return answer.error();
  }
  return {};
}

Result<void> DeviceGroup::check(NcclStatus status, std::string_view what) {
  if (status == NcclStatus::ok) return {};
  const std::string text = nccl_->error_text(status);
  const auto failed = find_failed();
  abort();
  if (!failed) return failed.error();
  const std::lock_guard lock(mutex_);
  if (failure_) return *failure_;  // the watch found it, and the status is that of its abort
  failure_ = status == NcclStatus::rule_broken ? Error{Code::corrupt, text}
                                               : user_error(err::kDeviceFailed,
                                                            name_ + ": sum of " + std::string(what) + ": " + text +
                                                                " (" + std::string(name_of(status)) + ")",
                                                            name_);
  return *failure_;
}

Result<void> DeviceGroup::all_reduce(std::span<const uint64_t> addresses, size_t count, std::string_view what) {
  MC_ASSERT_EQ(addresses.size(), size());
  MC_ASSERT(count > 0);
  if (size() == 1) return {};
  if (const auto failed = failure()) return *failed;
  const Wait wait(*this, SystemClock::instance().now());
  return check(queue_sum(addresses, count, what), what);
}

NcclStatus DeviceGroup::queue_sum(std::span<const uint64_t> addresses, size_t count, std::string_view what) {
  {
    const std::lock_guard lock(mutex_);
    if (is_aborted_) return NcclStatus::invalid_usage;
    is_queueing_ = true;
  }
  const NcclStatus status = queue_group(addresses, count, what);
  {
    const std::lock_guard lock(mutex_);
    is_queueing_ = false;
  }
  queued_.notify_all();
  return status;
}

NcclStatus DeviceGroup::queue_group(std::span<const uint64_t> addresses, size_t count, std::string_view what) {
  NcclStatus status = nccl_->group_start();
  if (status != NcclStatus::ok) return status;
  for (size_t rank = 0; rank < size() && status == NcclStatus::ok; ++rank) {
    MC_ASSERT(devices_[rank]->notes() == nullptr);  // kernels before the sum are queued, not noted
    status = nccl_->all_reduce({.rank = static_cast<int>(rank),
                                .from = addresses[rank],
                                .to = addresses[rank],
                                .count = count,
                                .stream = devices_[rank]->stream_,
                                .what = what});
  }
  const NcclStatus ended = nccl_->group_end();
  return status == NcclStatus::ok ? ended : status;
}

Result<void> DeviceGroup::warm_up() {
  constexpr size_t kFewBytes = 4096, kManyBytes = size_t{16} << 20;
  if (size() == 1) return {};
  const Wait wait(*this, SystemClock::instance().now());
  size_t bytes = kManyBytes;  // less on a device with little memory, which the plan of the memory refuses
  for (const auto& device : devices_) {
    MC_TRY(memory, device->memory());
    bytes = std::clamp(memory.free / 2, kFewBytes, bytes);
  }
  std::vector<DeviceBuffer> buffers;
  std::vector<uint64_t> addresses;
  for (const auto& device : devices_) {
    MC_TRY(buffer, DeviceBuffer::make(*device, bytes, "the first sums"));
    addresses.push_back(buffer.address());
    buffers.push_back(std::move(buffer));
    MC_CHECK(device->fill(addresses.back(), 0, bytes));
  }
  for (const size_t each : {kFewBytes, bytes}) MC_CHECK(all_reduce(addresses, each / sizeof(float), "the first sums"));
  for (const auto& device : devices_) MC_CHECK(device->finish());
  return {};
}

}  // namespace mc::gpu
