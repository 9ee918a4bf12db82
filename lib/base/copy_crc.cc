// The reference (a copy, then a sum by ISA-L), the portable variant (pieces that are summed while still in L1),
// and the choice among them, made once.
#include "base/copy_crc.h"

#include <isa-l/crc.h>

#include <algorithm>
#include <cstring>

#include "base/hash.h"

namespace mc {
namespace {

constexpr size_t kPieceBytes = size_t{16} << 10;  // copied and summed: half of a 32 KiB L1 each

bool always() {
  return true;
}

void plain_copy(std::byte* to, const std::byte* from, size_t size, bool) {
  if (size > 0) std::memcpy(to, from, size);
}

/// ISA-L's crc32_iscsi takes and returns the *uninverted* register and an int length.
uint32_t plain_sum(const std::byte* from, size_t size, uint32_t seed) {
  uint32_t crc = ~seed;
  auto* p = reinterpret_cast<unsigned char*>(const_cast<std::byte*>(from));
  while (size > 0) {
    const auto step = std::min(size, size_t{1} << 30);
    crc = crc32_iscsi(p, static_cast<int>(step), crc);
    p += step;
    size -= step;
  }
  return ~crc;
}

uint32_t reference(std::byte* to, const std::byte* from, size_t size, uint32_t seed, bool) {
  plain_copy(to, from, size, false);
  return plain_sum(to, size, seed);
}

uint32_t pieces(std::byte* to, const std::byte* from, size_t size, uint32_t seed, bool) {
  for (size_t at = 0; at < size; at += kPieceBytes)
    seed = reference(to + at, from + at, std::min(kPieceBytes, size - at), seed, false);
  return seed;
}

constexpr CopyVariant kReference = {"ref", always, reference, plain_copy, plain_sum};
constexpr CopyVariant kPieces = {"pieces", always, pieces, plain_copy, plain_sum};

constexpr const CopyVariant* kVariants[] = {
    &kReference,
    &kPieces,
#if defined(__x86_64__)
    &kCopyAvx512,
#endif
};

const CopyVariant& best() {
  static const CopyVariant& chosen = []() -> const CopyVariant& {
    const CopyVariant* found = kVariants[0];
    for (const CopyVariant* variant : kVariants)
      if (variant->usable()) found = variant;
    return *found;
  }();
  return chosen;
}

}  // namespace

std::span<const CopyVariant* const> copy_variants() {
  return kVariants;
}

uint32_t copy_crc32c(std::byte* to, const std::byte* from, size_t size, uint32_t seed, size_t whole) {
  return best().copy_crc(to, from, size, seed, std::max(size, whole) >= kCopyStreamBytes);
}

void copy_bytes(std::byte* to, const std::byte* from, size_t size, size_t whole) {
  best().copy(to, from, size, std::max(size, whole) >= kCopyStreamBytes);
}

uint32_t crc32c(std::span<const std::byte> bytes, uint32_t seed) {
  return best().sum(bytes.data(), bytes.size(), seed);
}

}  // namespace mc
