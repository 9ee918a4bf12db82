// A hash table from byte strings to 32-bit numbers, for vocabularies: built once, then read by any thread. Keys come
// from untrusted files, so insertion bounds the length of a probe and reports a crafted set of keys, which would make
// it quadratic. The order of the keys is never visible.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace mc::text {

class StringTable {
 public:
  enum class Insert : uint8_t { done, duplicate, crowded };

  void reserve(size_t count);
  Insert insert(std::string_view key, uint32_t value);
  std::optional<uint32_t> find(std::string_view key) const;
  size_t size() const { return entries_.size(); }

 private:
  struct Entry {
    uint64_t hash;
    uint32_t offset;
    uint32_t length;
    uint32_t value;
  };
  static constexpr uint32_t kEmpty = UINT32_MAX;
  std::string_view key_of(const Entry& entry) const {
    return std::string_view(keys_).substr(entry.offset, entry.length);
  }
  void grow(size_t slot_count);

  std::string keys_;
  std::vector<Entry> entries_;
  std::vector<uint32_t> slots_;  // a power of two, at most half full
};

}  // namespace mc::text
