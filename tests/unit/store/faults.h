// A store on a disk in memory that refuses chosen operations, for tests: numbered blocks with known values.
#pragma once

#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "store/disk_memory.h"
#include "store/store.h"
#include "test.h"

namespace store_faults {

using namespace mc;
using namespace mc::store;

inline constexpr uint64_t kSegment = 64 << 10;  // 16 pages

inline Id128 id_of(uint64_t n) {
  Id128 id;
  id.bytes[0] = static_cast<uint8_t>(n);
  id.bytes[1] = static_cast<uint8_t>(n >> 8);
  id.bytes[15] = 1;
  return id;
}

inline std::vector<std::byte> value_of(uint64_t n, size_t bytes = 5000) {
  std::vector<std::byte> out(bytes);
  for (size_t i = 0; i < bytes; ++i) out[i] = static_cast<std::byte>(n * 7 + i % 251);
  return out;
}

/// Makes chosen operations fail, and keeps a mirror of the files for the next opening.
class Faults final : public DiskWatcher {
 public:
  std::function<int(const Io&, const std::string&)> fail;
  std::function<int(const std::string&)> fail_create;
  DiskImage image;

  int before(const Io& io, const std::string& name) override {
    if (const int error = fail ? fail(io, name) : 0; error != 0) return error;
    uint64_t at = io.offset;
    for (const iovec& part : io.parts) {
      if (io.op == Io::Op::write && at + part.iov_len <= image[name].size())
        std::memcpy(image[name].data() + at, part.iov_base, part.iov_len);
      at += part.iov_len;
    }
    return 0;
  }
  int before_create(const std::string& name, uint64_t bytes) override {
    if (const int error = fail_create ? fail_create(name) : 0; error != 0) return error;
    image[name].resize(bytes);
    return 0;
  }
  void removed(const std::string& name) override { image.erase(name); }
};

inline Result<std::unique_ptr<Store>> open_image(DiskImage image, Faults* faults = nullptr,
                                          uint64_t capacity = 16 * kSegment) {
  if (faults != nullptr) faults->image = image;
  return Store::open(std::make_unique<MemoryDisk>(std::move(image), faults), {capacity, kSegment});
}

inline Result<void> put_one(Store& store, uint64_t n, Level level = Level::durable, size_t bytes = 5000) {
  const auto value = value_of(n, bytes);
  const Put put{.id = id_of(n), .bytes = value};
  return store.put({&put, 1}, level);
}

inline Code get_one(Store& store, uint64_t n, size_t bytes = 5000) {
  std::vector<std::byte> room(bytes);
  Get get{.id = id_of(n), .room = room};
  store.get({&get, 1});
  if (get.code == Code::ok) CHECK(room == value_of(n, bytes));
  return get.code;
}

}  // namespace store_faults
