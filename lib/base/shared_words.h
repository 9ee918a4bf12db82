// Copies between this process's memory and memory that another thread, another process or a NIC reads and writes at the
// same time. Each 8-byte word is copied whole, and nothing holds between words, so whoever reads checks each copy, for
// example by a CRC32C in it. Both addresses are 8-byte aligned, and both ranges hold `bytes` rounded up to 8.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/assert.h"

namespace mc {

inline uint64_t load_word(const std::byte* from) {
  auto& word = *reinterpret_cast<uint64_t*>(const_cast<std::byte*>(from));
  return std::atomic_ref(word).load(std::memory_order_acquire);  // pairs with the release in store_words
}

inline void load_words(std::byte* to, const std::byte* from, size_t bytes) {
  MC_ASSERT_EQ((reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from)) % 8, 0u);
  for (size_t at = 0; at < bytes; at += 8) {
    auto& word = *reinterpret_cast<uint64_t*>(const_cast<std::byte*>(from + at));
    *reinterpret_cast<uint64_t*>(to + at) = std::atomic_ref(word).load(std::memory_order_relaxed);
  }
}

/// The first word becomes visible last.
inline void store_words(std::byte* to, const std::byte* from, size_t bytes) {
  MC_ASSERT_EQ((reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from)) % 8, 0u);
  const auto put = [&](size_t at, std::memory_order order) {
    std::atomic_ref(*reinterpret_cast<uint64_t*>(to + at)).store(*reinterpret_cast<const uint64_t*>(from + at), order);
  };
  for (size_t at = 8; at < bytes; at += 8) put(at, std::memory_order_relaxed);
  if (bytes > 0) put(0, std::memory_order_release);  // pairs with the acquire in load_word
}

}  // namespace mc
