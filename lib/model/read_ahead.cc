#include "model/read_ahead.h"

#include <algorithm>
#include <system_error>
#include <vector>

#include "model/safetensors.h"

namespace mc::model {
namespace {

constexpr size_t kPieceBytes = size_t{1} << 20;  // between two looks at the request to stop

}  // namespace

ReadAhead::ReadAhead(std::span<const std::span<const std::byte>> ranges) {
  const auto read = [ranges = std::vector(ranges.begin(), ranges.end())](const std::stop_token& stop) {
    for (const std::span<const std::byte> range : ranges)
      for (size_t at = 0; at < range.size() && !stop.stop_requested(); at += kPieceBytes)
        read_soon(range.data() + at, range.data() + std::min(range.size(), at + kPieceBytes));
  };
  try {
    thread_ = std::jthread(read);
  } catch (const std::system_error&) {
    // Without a thread, pages are read when the first pass needs them.
  }
}

}  // namespace mc::model
