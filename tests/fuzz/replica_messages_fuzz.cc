// links: wire
// Calls between cache nodes about values: the first byte picks call or answer, the rest is the body. What parses is
// within its bounds, and must encode to bytes that parse to the same.
#include <cstdlib>

#include "fuzz_target.h"
#include "wire/replica_messages.h"

namespace mc::replica_messages_fuzz {
namespace {

using namespace mc::wire;

template <class Parse>
void try_bytes(std::span<const uint8_t> bytes, const Parse& parse) {
  const auto message = parse(bytes);
  if (!message) return;
  if (!is_plausible(message->value.set)) std::abort();
  const auto again = parse(encode(*message));
  if (!again || *again != *message) std::abort();
}

}  // namespace

FUZZ_TARGET(replica_messages) {
  if (size == 0) return 0;
  const std::span body(data + 1, size - 1);
  if (data[0] % 2 == 0)
    try_bytes(body, parse_replica_call);
  else
    try_bytes(body, parse_replica_answer);
  return 0;
}

}  // namespace mc::replica_messages_fuzz
