// Registration: pinning costs about 0.1 s per GiB and thread, so large buffers are cut into chunks of
// 1 GiB (or what the device allows) that are registered in parallel, on all devices at once.
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <thread>

#include "base/assert.h"
#include "base/fd.h"
#include "xfer/access.h"
#include "xfer/rdma_verbs.h"

namespace mc::xfer {
namespace {

constexpr uint64_t kChunkBytes = uint64_t{1} << 30;

int access_flags(AccessClass access) {
  // peers poll nothing in memory (notifies say what has landed), so bulk bytes may arrive in any order
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
  // keys name the device address, as for host memory; the descriptor is not needed after this
  return ::ibv_reg_dmabuf_mr(device.domain(), exported->offset, part.size(), reinterpret_cast<uint64_t>(part.data()),
                             exported->fd.get(), flags & ~IBV_ACCESS_RELAXED_ORDERING);
}

}  // namespace

Result<void> RdmaMemory::add(std::span<const std::unique_ptr<RdmaDevice>> devices, uint32_t buffer,
                             std::span<std::byte> memory, AccessClass access) {
  auto entry = std::make_shared<Entry>();
  entry->buffer = buffer;
  entry->memory = memory;
  entry->chunk_bytes = kChunkBytes;
  for (const auto& device : devices)
    entry->chunk_bytes = std::min<uint64_t>(entry->chunk_bytes, device->limits().max_mr_size & ~uint64_t{4095});
  if (entry->chunk_bytes == 0) return Error{Code::unsupported, "rdma: a device allows no registration at all"};
  const size_t chunks = (memory.size() + entry->chunk_bytes - 1) / entry->chunk_bytes;
  if (chunks > wire::kRdmaChunksMax)
    return Error{Code::unsupported, "rdma: buffer " + std::to_string(buffer) + " needs " + std::to_string(chunks) +
                                        " registrations of " + std::to_string(entry->chunk_bytes) + " bytes, at most " +
                                        std::to_string(wire::kRdmaChunksMax) + " can be told to peers: split it"};
  const GpuPath gpu = is_gpu_memory(memory.data()) ? gpu_path_ : GpuPath::none;
  if (gpu == GpuPath::staged)
    return Error{Code::unsupported, "rdma: buffer " + std::to_string(buffer) +
                                        " is GPU memory and no NIC here can reach it: copy through host memory"};
  const size_t count = chunks * devices.size();
  entry->regions.resize(count);
  std::vector<int> errors(count, 0);
  std::atomic<size_t> next{0};
  const auto work = [&] {
    // relaxed: a ticket, the results are published by join()
    for (size_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < count;) {
      const uint64_t at = i % chunks * entry->chunk_bytes;
      const auto part = memory.subspan(at, std::min<uint64_t>(entry->chunk_bytes, memory.size() - at));
      entry->regions[i].reset(register_region(*devices[i / chunks], part, access_flags(access), gpu));
      if (!entry->regions[i]) errors[i] = errno;
    }
  };
  std::vector<std::thread> threads;
  const size_t helpers = std::min<size_t>({count - 1, 15, std::max(1u, std::thread::hardware_concurrency()) - 1});
  for (size_t i = 0; i < helpers; ++i) threads.emplace_back(work);
  work();
  for (auto& thread : threads) thread.join();
  for (size_t i = 0; i < count; ++i)
    if (errors[i] != 0) return explain(devices[i / chunks]->name(), memory.size(), errors[i]);
  entry->lkeys.resize(devices.size());
  for (size_t i = 0; i < count; ++i) entry->lkeys[i / chunks].push_back(entry->regions[i]->lkey);
  std::lock_guard lock(mutex_);
  entries_.emplace(reinterpret_cast<uint64_t>(memory.data()), std::move(entry));
  return {};
}

void RdmaMemory::remove(uint32_t buffer) {
  std::shared_ptr<Entry> gone;  // declared before the lock, so freed after it: that takes as long as registering
  std::lock_guard lock(mutex_);
  for (auto at = entries_.begin(); at != entries_.end(); ++at) {
    if (at->second->buffer != buffer) continue;
    gone = std::move(at->second);
    entries_.erase(at);
    return;
  }
}

Code RdmaMemory::local(size_t device, std::span<const std::byte> memory, KeyRange& out) {
  const auto address = reinterpret_cast<uint64_t>(memory.data());
  std::lock_guard lock(mutex_);
  auto at = entries_.upper_bound(address);
  if (at == entries_.begin()) return Code::invalid;
  const Entry& entry = *(--at)->second;
  if (!inside(address - at->first, memory.size(), entry.memory.size())) return Code::invalid;
  // the keys outlive this call: a batch pins its buffers, and unregistering waits for that
  out = {at->first, entry.memory.size(), entry.chunk_bytes, entry.lkeys.at(device)};
  return Code::ok;
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
    for (const size_t device : devices)
      for (uint64_t chunk = 0; chunk < out.chunks(); ++chunk)
        out.rkeys.push_back(entry->regions[device * out.chunks() + chunk]->rkey);
    return true;
  }
  return false;
}

}  // namespace mc::xfer
