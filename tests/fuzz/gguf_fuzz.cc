// links: gguf
// The GGUF header parser: whatever it accepts must satisfy what its users rely on, and every accepted value and tensor
// can be read.
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/assert.h"
#include "fuzz_target.h"
#include "gguf/gguf.h"

namespace mc::gguf_fuzz {
namespace {

void read_value(const mc::gguf::Value& value) {
  MC_ASSERT(!value.shown().empty());
  MC_ASSERT(!value.whole() || value.number());
  if (const auto texts = value.texts()) MC_ASSERT_EQ(texts->size(), value.count());
  if (const auto numbers = value.numbers()) MC_ASSERT_EQ(numbers->size(), value.count());
}

}  // namespace

FUZZ_TARGET(gguf) {
  const std::span<const std::byte> file = std::as_bytes(std::span(data, size));
  const auto header = gguf::parse(file, "fuzz");
  if (!header) {
    MC_ASSERT(!header.error().what.empty() && header.error().mc != 0);
    return 0;
  }
  for (const gguf::Pair& pair : header->pairs) {
    MC_ASSERT(header->find(pair.key) == &pair.value);
    read_value(pair.value);
  }
  uint64_t covered = 0;
  for (const gguf::TensorInfo& tensor : header->tensors) {
    if (tensor.bytes == 0) continue;
    const uint64_t begin = header->data_offset + tensor.offset;
    MC_ASSERT_LE(begin + tensor.bytes, size);
    covered += tensor.bytes;
    const uint64_t columns = tensor.shape.empty() ? 1 : tensor.shape.back();
    std::vector<float> row(columns);
    gguf::widen_row(tensor.type, file.data() + begin, columns, row.data());
    MC_ASSERT_EQ(gguf::row_bytes(tensor.type, columns) * (tensor.elements() / columns), tensor.bytes);
  }
  MC_ASSERT_LE(covered, size);
  return 0;
}

}  // namespace mc::gguf_fuzz
