// links: ctl wire
// The envelope of control messages, and the key file. An envelope that decodes must encode to bytes
// that decode to the same envelope; a key set that parses must print as itself.
#include <cstdlib>

#include "ctl/ctl.h"
#include "fuzz_target.h"
#include "wire/envelope.h"

namespace mc::ctl_fuzz {

FUZZ_TARGET(ctl) {
  const std::span<const uint8_t> bytes(data, size);
  if (const auto envelope = mc::wire::decode_envelope(bytes)) {
    const auto again = mc::wire::decode_envelope(mc::wire::encode(*envelope));
    if (!again || !(*again == *envelope)) std::abort();
  }
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (const auto keys = mc::ctl::parse_key_set(text)) {
    const auto again = mc::ctl::parse_key_set(mc::ctl::format_key_set(*keys));
    if (!again || !(*again == *keys)) std::abort();
  }
  return 0;
}

}  // namespace mc::ctl_fuzz
