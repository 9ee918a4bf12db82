// links: wire kv
// .mckv streams. Checksums would stop nearly every mutation at the door, so each input is tried as it
// is and once more as a prologue body behind a head whose length and checksum are right.
#include <cstring>

#include "base/hash.h"
#include "fuzz_target.h"
#include "kv/inspect.h"

namespace mc::mckv_fuzz {
namespace {

mc::wire::ReadBytes reader_of(const std::vector<std::byte>& bytes) {
  return [&bytes, at = size_t{0}](std::span<std::byte> out) mutable -> mc::Result<void> {
    if (bytes.size() - at < out.size()) return mc::Error{mc::Code::peer_lost, "end of file"};
    if (!out.empty()) std::memcpy(out.data(), bytes.data() + at, out.size());
    at += out.size();
    return {};
  };
}

void try_stream(const std::vector<std::byte>& bytes) {
  if (const auto seen = mc::kv::inspect(reader_of(bytes))) {
    seen->text();
    seen->json().dump();
  }
  if (const auto found = mc::kv::diff({"a", reader_of(bytes)}, {"b", reader_of(bytes)}); found && !found->equal())
    __builtin_trap();
}

}  // namespace

FUZZ_TARGET(mckv) {
  std::vector<std::byte> bytes(size);
  if (size > 0) std::memcpy(bytes.data(), data, size);
  try_stream(bytes);
  std::vector<std::byte> sealed(16);
  const uint32_t head[4] = {mc::wire::kMckvMagic, mc::wire::kMckvVersion, static_cast<uint32_t>(size),
                            mc::crc32c(bytes)};
  std::memcpy(sealed.data(), head, sizeof head);
  sealed.insert(sealed.end(), bytes.begin(), bytes.end());
  try_stream(sealed);
  return 0;
}

}  // namespace mc::mckv_fuzz
