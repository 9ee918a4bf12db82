// Codec properties on random messages: decode inverts encode, equal messages give equal bytes, and
// damaged bytes either fail or give a message that encodes again (never a crash or a hang).
#include "test.h"
#include "unit/wire/fill.h"
#include "wire/codec.h"

using namespace mc;
using namespace mc::wire;

TEST_CASE("wire/codec: decode inverts encode on random messages of every type") {
  INFO("seed ", test::seed());
  Rng rng(test::seed());
  for (int round = 0; round < 4000; ++round) {
    const size_t index = rng.below(message_types().size());
    const Message message = test::filled_message(index, rng.next(), 1 + rng.below(6));
    const Bytes bytes = encode(message);
    const auto back = decode(message_types()[index], bytes);
    REQUIRE_OK(back);
    REQUIRE(*back == message);
    REQUIRE(encode(*back) == bytes);
  }
}

TEST_CASE("wire/codec: a damaged message fails or is another valid message") {
  INFO("seed ", test::seed());
  Rng rng(test::seed() + 1);
  for (int round = 0; round < 20000; ++round) {
    const size_t index = rng.below(message_types().size());
    Bytes bytes = encode(test::filled_message(index, rng.next(), 2));
    for (uint64_t flips = 1 + rng.below(3); flips > 0; --flips)
      bytes[rng.below(bytes.size())] = static_cast<uint8_t>(rng.next());
    const auto back = decode(message_types()[index], bytes);
    if (!back) {
      REQUIRE_FALSE(back.error().what.empty());
      continue;
    }
    const auto again = decode(message_types()[index], encode(*back));
    REQUIRE_OK(again);
    REQUIRE(encode(*again) == encode(*back));
  }
}
