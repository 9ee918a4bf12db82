// A cache node's values with a simulated disk, for tests: the calls behind the door of the store (door/stored_values.h)
// with the disk of values (host/value_disk.h). A power cut is a start from a copy of the files at that time.
#pragma once

#include <cerrno>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "door/stored_values.h"
#include "host/value_disk.h"
#include "store/disk_memory.h"
#include "test.h"

namespace mc::test {

using node::Durability;
using node::ValueBytes;
using node::ValueLimits;
using node::ValueTerms;

inline constexpr uint64_t kCapacity = uint64_t{16} << 20;

/// Makes chosen operations fail. The files are those that flushes have made durable, and writes since then.
class Faults final : public store::DiskWatcher {
 public:
  std::function<int(const store::Io&, const std::string&)> fail;
  std::function<int(const std::string&)> fail_create;
  store::DiskImage written, durable;

  /// The files after a power cut now; any thread.
  store::DiskImage cut() {
    const std::lock_guard lock(mutex_);
    return durable;
  }
  int before(const store::Io& io, const std::string& name) override {
    const std::lock_guard lock(mutex_);
    if (const int error = fail ? fail(io, name) : 0; error != 0) return error;
    if (io.op == store::Io::Op::write) write(io, name);
    if (io.op == store::Io::Op::flush) {
      for (const auto& [at, bytes] : unflushed_[name])
        std::memcpy(durable.at(name).data() + at, written.at(name).data() + at, bytes);
      unflushed_.erase(name);
    }
    return 0;
  }
  int before_create(const std::string& name, uint64_t bytes) override {
    const std::lock_guard lock(mutex_);
    if (const int error = fail_create ? fail_create(name) : 0; error != 0) return error;
    written[name].resize(bytes);
    durable[name] = written[name];
    return 0;
  }
  void removed(const std::string& name) override {
    const std::lock_guard lock(mutex_);
    written.erase(name);
    durable.erase(name);
    unflushed_.erase(name);
  }

 private:
  void write(const store::Io& io, const std::string& name) {
    std::vector<std::byte>& file = written.at(name);
    uint64_t at = io.offset;
    for (const iovec& part : io.parts) {
      if (at + part.iov_len > file.size()) break;
      std::memcpy(file.data() + at, part.iov_base, part.iov_len);
      unflushed_[name].emplace_back(at, part.iov_len);
      at += part.iov_len;
    }
  }

  std::mutex mutex_;  // of all members but the two functions
  std::map<std::string, std::vector<std::pair<uint64_t, size_t>>> unflushed_;  // where `durable` differs from `written`
};

/// Starts the store of an image, without the values. What it writes is in `faults`.
inline std::unique_ptr<store::Store> open_store(const store::DiskImage& image, Faults& faults,
                                                store::Access access = store::Access::read_write) {
  faults.written = faults.durable = image;
  auto opened =
      store::Store::open(std::make_unique<store::MemoryDisk>(image, &faults),
                         {.capacity_bytes = kCapacity, .segment_bytes = 1 << 20, .keeps_all = true, .access = access});
  REQUIRE_OK(opened);
  return std::move(*opened);
}

/// A node's values with their disk.
class ValuesNode {
 public:
  explicit ValuesNode(store::DiskImage image = {}, uint64_t memory = 1 << 20, const Clock* clock = nullptr)
      : clock_(clock != nullptr ? *clock : own_clock_) {
    faults.written = faults.durable = image;
    auto opened = host::BlockValueDisk::open(std::make_unique<store::MemoryDisk>(std::move(image), &faults), kCapacity,
                                        clock_.unix_ms());
    REQUIRE_OK(opened);
    disk = opened->get();
    values = std::make_unique<door::StoredValues>(
        ValueLimits{.memory_bytes = memory, .value_bytes_max = 4 << 20, .lease_max = 5s}, std::move(*opened), clock_);
  }

  /// At d2.
  Result<door::StoredValues::PutResult> put(const std::string& key, const std::string& bytes, ValueTerms terms = {}) {
    if (terms.durability == Durability::d0) terms.durability = Durability::d2;
    return values->put({"t", key}, std::make_shared<const ValueBytes>(bytes), terms);
  }
  /// At d0, in place of what the key has.
  Result<door::StoredValues::PutResult> put_in_memory(const std::string& key, const std::string& bytes,
                                                      Duration ttl = Duration::max()) {
    return values->put({"t", key}, std::make_shared<const ValueBytes>(bytes), {.ttl = ttl, .replaces = true});
  }
  /// The bytes, or "MC" and the number of the error.
  std::string get(const std::string& key) {
    const auto found = values->get({"t", key}, {});
    return found ? std::string(found->value->view()) : "MC" + std::to_string(static_cast<int>(found.error().mc));
  }

 private:
  VirtualClock own_clock_;

 public:
  const Clock& clock_;
  Faults faults;
  host::BlockValueDisk* disk = nullptr;  // of the values
  std::unique_ptr<door::StoredValues> values;
};

inline std::string text(size_t size, char first = 'a') {
  std::string out(size, first);
  for (size_t i = 0; i < size; ++i) out[i] = static_cast<char>(first + i % 23 + i / 4096);
  return out;
}

}  // namespace mc::test
