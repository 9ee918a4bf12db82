// Linux overcommits: an mmap of more than there is succeeds, and the process is killed when it touches
// the pages. So sizes are compared with MemAvailable and the cgroup's room first, and prefaulting goes
// through MADV_POPULATE_WRITE, which reports exhaustion as an error.
#include "mem/pages.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <limits>

#include "base/parallel.h"
#include "mem/mem.h"

namespace mc::mem {
namespace {

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14; defined since glibc 2.36
#endif

constexpr size_t kUnlimited = std::numeric_limits<size_t>::max();

/// One number alone in a file; `max` and an absent file are kUnlimited.
size_t number_in(const char* path) {
  std::ifstream file(path);
  size_t value = 0;
  return file >> value ? value : kUnlimited;
}

size_t cgroup_room(const char* limit_path, const char* used_path) {
  const size_t limit = number_in(limit_path);
  const size_t used = number_in(used_path);
  if (limit == kUnlimited || used == kUnlimited) return kUnlimited;
  return limit > used ? limit - used : 0;
}

}  // namespace

size_t available_bytes() {
  size_t free = kUnlimited;
  std::ifstream meminfo("/proc/meminfo");
  for (std::string key, unit; meminfo >> key;) {
    size_t kib = 0;
    if (key == "MemAvailable:" && meminfo >> kib) free = kib * 1024;
    meminfo.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  free = std::min(free, cgroup_room("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"));
  return std::min(
      free, cgroup_room("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"));
}

std::string size_text(size_t bytes) {
  const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  for (; value >= 1024 && unit < 4; ++unit) value /= 1024;
  char text[64];
  if (unit == 0)
    std::snprintf(text, sizeof(text), "%zu bytes", bytes);
  else
    std::snprintf(text, sizeof(text), "%zu bytes (%.1f %s)", bytes, value, units[unit]);
  return text;
}

Result<void> check_room(const char* name, size_t bytes) {
  const size_t free = available_bytes();
  if (bytes <= free) return {};
  return {Code::no_space, std::string("mem: ") + name + " needs " + size_text(bytes) + ", but " + size_text(free) +
                              " are free; ask for less or stop another process"};
}

Result<void> prefault(const char* name, std::byte* data, size_t bytes, Parallel& parallel) {
  constexpr int64_t kTaskBytes = int64_t{16} << 20;
  std::atomic<int> failure{0};
  parallel.for_ranges(static_cast<int64_t>(bytes), kTaskBytes, [&](int64_t begin, int64_t end, int) {
    const size_t length = static_cast<size_t>(end - begin);
    if (madvise(data + begin, length, MADV_POPULATE_WRITE) == 0) return;
    if (errno != EINVAL) {
      failure.store(errno, std::memory_order_relaxed);
      return;
    }
    // A kernel before 5.14: touch by hand.
    for (int64_t at = begin; at < end; at += kPageBytes)
      *reinterpret_cast<volatile std::byte*>(data + at) = std::byte{};
  });
  if (const int error = failure.load(std::memory_order_relaxed); error != 0)
    return {Code::no_space, std::string("mem: ") + name + " could not get all of its " + size_text(bytes) + ": " +
                                std::strerror(error) + " (" + size_text(available_bytes()) + " free)"};
  return {};
}

}  // namespace mc::mem
