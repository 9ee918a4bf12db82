#include "text/string_table.h"

#include <bit>
#include <cstring>

namespace mc::text {
namespace {

// Half-full linear probing over random hashes stays below ~100 probes for millions of keys.
constexpr size_t kProbesMax = 4096;

/// Eight bytes a step with a multiply and a fold, in the manner of wyhash.
uint64_t hash_of(std::string_view key) {
  constexpr uint64_t kA = 0x9E3779B97F4A7C15u, kB = 0xD6E8FEB86659FD93u;
  const auto fold = [](uint64_t a, uint64_t b) {
    const auto wide = static_cast<unsigned __int128>(a) * b;
    return static_cast<uint64_t>(wide) ^ static_cast<uint64_t>(wide >> 64);
  };
  uint64_t hash = kB ^ key.size();
  const char* at = key.data();
  size_t left = key.size();
  for (; left >= 8; at += 8, left -= 8) {
    uint64_t word;
    std::memcpy(&word, at, 8);
    hash = fold(hash ^ word, kA);
  }
  uint64_t tail = 0;
  for (size_t i = 0; i < left; ++i) tail |= static_cast<uint64_t>(static_cast<uint8_t>(at[i])) << (8 * i);
  return fold(hash ^ tail, kA ^ kB);
}

}  // namespace

void StringTable::reserve(size_t count) {
  entries_.reserve(count);
  grow(std::bit_ceil(count * 2 + 16));
}

void StringTable::grow(size_t slot_count) {
  slots_.assign(slot_count, kEmpty);
  for (uint32_t i = 0; i < entries_.size(); ++i) {
    size_t slot = entries_[i].hash & (slots_.size() - 1);
    while (slots_[slot] != kEmpty) slot = (slot + 1) & (slots_.size() - 1);
    slots_[slot] = i;
  }
}

StringTable::Insert StringTable::insert(std::string_view key, uint32_t value) {
  if ((entries_.size() + 1) * 2 > slots_.size()) grow(std::max<size_t>(16, slots_.size() * 2));
  const uint64_t hash = hash_of(key);
  size_t slot = hash & (slots_.size() - 1);
  for (size_t probe = 0; slots_[slot] != kEmpty; ++probe) {
    const Entry& entry = entries_[slots_[slot]];
    if (entry.hash == hash && key_of(entry) == key) return Insert::duplicate;
    if (probe == kProbesMax) return Insert::crowded;
    slot = (slot + 1) & (slots_.size() - 1);
  }
  slots_[slot] = static_cast<uint32_t>(entries_.size());
  entries_.push_back({hash, static_cast<uint32_t>(keys_.size()), static_cast<uint32_t>(key.size()), value});
  keys_ += key;
  return Insert::done;
}

std::optional<uint32_t> StringTable::find(std::string_view key) const {
  if (slots_.empty()) return std::nullopt;
  const uint64_t hash = hash_of(key);
  for (size_t slot = hash & (slots_.size() - 1); slots_[slot] != kEmpty; slot = (slot + 1) & (slots_.size() - 1)) {
    const Entry& entry = entries_[slots_[slot]];
    if (entry.hash == hash && key_of(entry) == key) return entry.value;
  }
  return std::nullopt;
}

}  // namespace mc::text
