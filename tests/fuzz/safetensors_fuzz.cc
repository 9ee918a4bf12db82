// links: model
// The safetensors header parser: whatever it accepts must satisfy what its users rely on.
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/assert.h"
#include "fuzz_target.h"
#include "model/safetensors.h"

namespace mc::safetensors_fuzz {

FUZZ_TARGET(safetensors) {
  const std::span<const uint8_t> bytes(data, size);
  // A file may be longer than what the fuzzer gives: then only the header is there.
  for (const uint64_t file_bytes : {uint64_t{size}, uint64_t{size} + 64}) {
    const auto parsed = model::parse_safetensors(std::as_bytes(bytes), file_bytes, "fuzz");
    if (!parsed) {
      MC_ASSERT(!parsed.error().what.empty());
      continue;
    }
    uint64_t covered = 0;
    for (const model::TensorEntry& entry : parsed->tensors) {
      MC_ASSERT_LE(entry.begin, entry.end);
      MC_ASSERT_LE(parsed->data_offset + entry.end, file_bytes);
      if (entry.dtype) MC_ASSERT_EQ(entry.elements() * dtype_bytes(*entry.dtype), entry.end - entry.begin);
      covered += entry.end - entry.begin;
    }
    MC_ASSERT_EQ(covered, file_bytes - parsed->data_offset);
  }
  return 0;
}

}  // namespace mc::safetensors_fuzz
