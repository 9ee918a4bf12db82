// links: wire
// Block headers and data-plane notices: whatever parses must encode to the bytes it came from.
#include <cstdlib>
#include <cstring>

#include "wire/block.h"
#include "wire/notify.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace mc::wire;
  const auto bytes = std::as_bytes(std::span(data, size));
  if (const auto block = parse_block_header(bytes)) {
    const auto again = encode_block_header(block->header, block->extent_crcs);
    if (std::memcmp(again.data(), data, again.size()) != 0) std::abort();
    if (describe(block->header).empty()) std::abort();
  }
  if (const auto ready = parse_extents_ready(bytes)) {
    const auto again = encode_extents_ready(*ready);
    if (!again || again->size() != 1 || again->front().size() != size) std::abort();
    if (std::memcmp(again->front().data(), data, size) != 0) std::abort();
  }
  return 0;
}
