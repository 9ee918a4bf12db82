// Registration of memory. Pinning costs about 0.1 s for each GiB and thread. So large buffers are cut into chunks of 1
// GiB (or the device's limit), which are registered in parallel, on all devices at once.
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <iterator>
#include <system_error>
#include <thread>
#include <utility>

#include "base/assert.h"
#include "base/fd.h"
#include "xfer/access.h"
#include "xfer_rdma/verbs.h"

namespace mc::xfer {
namespace {

constexpr uint64_t kChunkBytes = uint64_t{1} << 30;

int access_flags(AccessClass access) {
  // Peers poll no memory (notifies report what has landed), so bulk bytes may arrive in any order.
  constexpr int kBulk = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_RELAXED_ORDERING;
  switch (access) {
    case AccessClass::private_memory: return kBulk;
    case AccessClass::blocks: return kBulk | IBV_ACCESS_REMOTE_READ;
    case AccessClass::landing: return IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
  }
  return IBV_ACCESS_LOCAL_WRITE;
}

Error explain(const std::string& device, uint64_t bytes, int error) {
  std::string text = errno_error("rdma: register " + std::to_string(bytes) + " bytes on " + device, error).what;
  rlimit limit{};
  (void)::getrlimit(RLIMIT_MEMLOCK, &limit);
  if ((error == ENOMEM || error == EPERM) && limit.rlim_cur != RLIM_INFINITY)
    text += ": this process may lock " + std::to_string(limit.rlim_cur / 1024) +
            " KiB; raise it (ulimit -l unlimited, or LimitMEMLOCK=infinity in its unit)";
  else if (error == ENOMEM)
    text += ": not enough memory to pin, or too many mappings (vm.max_map_count)";
  else if (error == EFAULT)
    text += ": the address is not mapped, or is GPU memory and nvidia-peermem is not loaded";
  else if (error == EAGAIN)
    text += ": the device is out of memory keys, e.g. after many killed processes; restart its driver";
  return Error{error == ENOMEM || error == EAGAIN ? Code::no_space : Code::io, std::move(text)};
}

ibv_mr* register_region(const RdmaDevice& device, std::span<std::byte> part, int flags, GpuPath gpu) {
  if (gpu != GpuPath::dmabuf) return ::ibv_reg_mr(device.domain(), part.data(), part.size(), flags);
  auto exported = export_gpu_memory(part);
  if (!exported) {
    errno = EOPNOTSUPP;
    return nullptr;
  }
  // Keys name the device address, as for host memory. The descriptor is not needed afterwards.
  return ::ibv_reg_dmabuf_mr(device.domain(), exported->offset, part.size(), reinterpret_cast<uint64_t>(part.data()),
                             exported->fd.get(), flags & ~IBV_ACCESS_RELAXED_ORDERING);
}

}  // namespace

/// Registers the entry's memory on the devices that are not null, all in parallel.
Result<void> RdmaMemory::enroll(const Entry& entry, const Devices& devices, std::vector<Registration>& out) {
  const size_t chunks = entry.chunks();
  const size_t count = chunks * devices.size();
  out.resize(devices.size());
  for (size_t i = 0; i < devices.size(); ++i) {
    out[i].device = devices[i];
    if (devices[i]) out[i].regions.resize(chunks);
  }
  std::vector<int> errors(count, 0);
  std::atomic<size_t> next{0};
  const auto work = [&] {
    // relaxed, because the counter only distributes work and join() publishes the results
    for (size_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < count;) {
      if (!devices[i / chunks]) continue;
      const uint64_t at = i % chunks * entry.chunk_bytes;
      const auto part = entry.memory.subspan(at, std::min<uint64_t>(entry.chunk_bytes, entry.memory.size() - at));
      Verbs<ibv_mr>& region = out[i / chunks].regions[i % chunks];
      region.reset(register_region(*devices[i / chunks], part, access_flags(entry.access), entry.gpu));
      if (!region) errors[i] = errno;
    }
  };
  std::vector<std::thread> threads;
  const size_t helpers =
      std::min<size_t>({std::max<size_t>(count, 1) - 1, 15, std::max(1u, std::thread::hardware_concurrency()) - 1});
  try {
    for (size_t i = 0; i < helpers; ++i) threads.emplace_back(work);
  } catch (const std::system_error&) {  // the threads that exist do all the work
  }
  work();
  for (auto& thread : threads) thread.join();
  for (size_t i = 0; i < count; ++i)
    if (errors[i] != 0) return explain(devices[i / chunks]->name(), entry.memory.size(), errors[i]);
  for (Registration& registration : out) {
    for (const auto& region : registration.regions) registration.lkeys.push_back(region->lkey);
    MC_ASSERT(!registration.device || registration.lkeys.size() == chunks);
  }
  return {};
}

Result<void> RdmaMemory::add(uint32_t buffer, std::span<std::byte> memory, AccessClass access) {
  auto entry = std::make_shared<Entry>();
  entry->buffer = buffer;
  entry->memory = memory;
  entry->access = access;
  entry->chunk_bytes = kChunkBytes;
  Devices devices;
  {
    std::lock_guard lock(mutex_);
    devices = devices_;
  }
  for (const auto& device : devices)
    if (device)
      entry->chunk_bytes = std::min<uint64_t>(entry->chunk_bytes, device->limits().max_mr_size & ~uint64_t{4095});
  if (entry->chunk_bytes == 0) return Error{Code::unsupported, "rdma: a device allows no registration at all"};
  if (entry->chunks() > wire::kRdmaChunksMax)
    return Error{Code::unsupported, "rdma: buffer " + std::to_string(buffer) + " needs " +
                                        std::to_string(entry->chunks()) + " registrations of " +
                                        std::to_string(entry->chunk_bytes) + " bytes, at most " +
                                        std::to_string(wire::kRdmaChunksMax) + " can be sent to peers: split it"};
  entry->gpu = is_gpu_memory(memory.data()) ? gpu_path_ : GpuPath::none;
  entry->place = place_of_memory(memory.data());
  if (entry->gpu == GpuPath::staged)
    return Error{Code::unsupported, "rdma: buffer " + std::to_string(buffer) +
                                        " is GPU memory and no NIC here can reach it: copy through host memory"};
  std::vector<Registration> stale;  // declared before the locks, so freed after them
  for (;;) {
    std::vector<Registration> fresh;
    if (auto enrolled = enroll(*entry, devices, fresh); !enrolled) {
      std::lock_guard lock(mutex_);
      if (devices == devices_) return enrolled;
      devices = devices_;  // a device failed in the meantime
      continue;
    }
    std::lock_guard lock(mutex_);
    if (devices == devices_) {
      version_.fetch_add(1, std::memory_order_release);  // pairs with local()
      entry->on = std::move(fresh);
      entries_.emplace(reinterpret_cast<uint64_t>(memory.data()), std::move(entry));
      return {};
    }
    devices = devices_;
    std::move(fresh.begin(), fresh.end(), std::back_inserter(stale));
  }
}

void RdmaMemory::remove(uint32_t buffer) {
  // Declared before the lock, so freed after it, because freeing takes as long as registering.
  std::shared_ptr<Entry> gone;
  std::unique_lock lock(mutex_);
  for (auto at = entries_.begin(); at != entries_.end(); ++at) {
    if (at->second->buffer != buffer) continue;
    version_.fetch_add(1, std::memory_order_release);  // pairs with local()
    gone = std::move(at->second);
    entries_.erase(at);
    break;
  }
  if (gone) restored_.wait(lock, [&] { return !gone->restoring; });
}

void RdmaMemory::lose(size_t device) {
  std::vector<Registration> gone;  // freed after the lock
  std::lock_guard lock(mutex_);
  version_.fetch_add(1, std::memory_order_release);  // pairs with local()
  devices_[device].reset();
  for (auto& [address, entry] : entries_) gone.push_back(std::exchange(entry->on[device], {}));
}

/// The next entry that the device lacks. When none is left, returns null and puts the device into use.
std::shared_ptr<RdmaMemory::Entry> RdmaMemory::next_to_restore(size_t device,
                                                               const std::shared_ptr<RdmaDevice>& again) {
  std::lock_guard lock(mutex_);
  for (auto& [address, entry] : entries_) {
    if (entry->on[device].device == again) continue;
    entry->restoring = true;
    return entry;
  }
  devices_[device] = again;
  return nullptr;
}

Result<void> RdmaMemory::restore(size_t device, const std::shared_ptr<RdmaDevice>& again) {
  while (auto entry = next_to_restore(device, again)) {
    std::vector<Registration> fresh;
    auto enrolled = enroll(*entry, {again}, fresh);
    if (enrolled) {
      std::lock_guard lock(mutex_);
      version_.fetch_add(1, std::memory_order_release);  // pairs with local()
      std::swap(entry->on[device], fresh[0]);
    }
    fresh.clear();  // no registration may be left here, because remove() gives the memory back at once
    {
      std::lock_guard lock(mutex_);
      entry->restoring = false;
      entry.reset();  // the map or remove() has another reference
    }
    restored_.notify_all();
    if (!enrolled) {
      lose(device);
      return enrolled;
    }
  }
  return {};
}

Code RdmaMemory::local(size_t device, std::span<const std::byte> memory, KeyRange& out) {
  std::lock_guard lock(mutex_);
  return local_locked(device, memory, out);
}

Code RdmaMemory::find(size_t device, std::span<const std::byte> memory, Known& known) {
  std::lock_guard lock(mutex_);
  known = {.version = version_.load(std::memory_order_relaxed), .device = device};  // the mutex orders it
  const Code code = local_locked(device, memory, known.keys);
  if (code != Code::ok) known = {};
  return code;
}

Code RdmaMemory::local_locked(size_t device, std::span<const std::byte> memory, KeyRange& out) const {
  const auto address = reinterpret_cast<uint64_t>(memory.data());
  auto at = entries_.upper_bound(address);
  if (at == entries_.begin()) return Code::invalid;
  const Entry& entry = *(--at)->second;
  if (!inside(address - at->first, memory.size(), entry.memory.size())) return Code::invalid;
  // The keys outlive this call. A batch pins its buffers, and unregistering waits for that. Keys of a lost device are
  // removed when all its paths have failed.
  // go when all its paths have failed
  const auto& lkeys = entry.on.at(device).lkeys;
  if (lkeys.empty()) return Code::invalid;
  out = {at->first, entry.memory.size(), entry.chunk_bytes, lkeys};
  return Code::ok;
}

MemoryPlace RdmaMemory::place(std::span<const std::byte> memory) {
  const auto address = reinterpret_cast<uint64_t>(memory.data());
  std::lock_guard lock(mutex_);
  const auto after = entries_.upper_bound(address);
  return after == entries_.begin() ? MemoryPlace{} : std::prev(after)->second->place;
}

bool RdmaMemory::keys(uint32_t buffer, std::span<const size_t> devices, wire::RdmaKeys& out) {
  std::lock_guard lock(mutex_);
  for (const auto& [address, entry] : entries_) {
    if (entry->buffer != buffer) continue;
    out.buffer = buffer;
    out.base = address;
    out.length = entry->memory.size();
    out.chunk_bytes = entry->chunk_bytes;
    out.nics = static_cast<uint16_t>(devices.size());
    out.rkeys.clear();
    for (const size_t device : devices) {
      const auto& regions = entry->on[device].regions;
      for (uint64_t chunk = 0; chunk < out.chunks(); ++chunk)
        out.rkeys.push_back(regions.empty() ? 0 : regions[chunk]->rkey);
    }
    MC_ASSERT_EQ(out.rkeys.size(), devices.size() * out.chunks());
    return true;
  }
  return false;
}

}  // namespace mc::xfer
