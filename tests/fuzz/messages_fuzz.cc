// links: wire
// Control messages: the first byte picks the type, the rest is the body. What decodes must encode to
// bytes that decode to the same bytes again.
#include <cstdlib>

#include "fuzz_target.h"
#include "wire/codec.h"

namespace mc::messages_fuzz {

FUZZ_TARGET(messages) {
  using namespace mc::wire;
  if (size == 0) return 0;
  const std::string_view type = message_types()[data[0] % message_types().size()];
  const auto message = decode(type, std::span(data + 1, size - 1));
  if (!message) return 0;
  const Bytes bytes = encode(*message);
  const auto again = decode(type, bytes);
  if (!again || encode(*again) != bytes) std::abort();
  describe(*message).dump();
  return 0;
}

}  // namespace mc::messages_fuzz
