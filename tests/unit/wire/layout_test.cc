#include "wire/layout.h"

#include "base/errors.h"
#include "test.h"

using namespace mc;
using wire::NameValue;

TEST_CASE("wire/layout: equal layouts compare equal in any order") {
  const std::vector<NameValue> a{{"dtype", "bf16"}, {"block_tokens", "64"}},
      b{{"block_tokens", "64"}, {"dtype", "bf16"}};
  CHECK_FALSE(wire::compare_layout(a, b));
  CHECK_FALSE(wire::compare_layout({}, {}));
}

TEST_CASE("wire/layout: a mismatch prints the three lines of the users' page, both values and what was equal") {
  const std::vector<NameValue> ours{{"model_id", "m"}, {"block_tokens", "128"}, {"dtype", "bf16"}},
      theirs{{"model_id", "m"}, {"block_tokens", "64"}, {"dtype", "bf16"}};
  const auto difference = wire::compare_layout(ours, theirs);
  REQUIRE(difference);
  const Error e = wire::layout_error(*difference, "decode", {"prefill", "p0", "127.0.0.1:41233"});
  CHECK(format_error("mc-decode", e) ==
        "mc-decode: error MC2104 kv-layout-mismatch: prefill p0 uses --block-tokens 64, this decode uses 128\n"
        "  where: handshake with p0 (127.0.0.1:41233), field block_tokens; also compared and equal: model_id dtype\n"
        "  next:  restart one side with the same --block-tokens; details: mc-decode help MC2104\n");
}

TEST_CASE("wire/layout: a field only one side has is a difference in both directions") {
  const std::vector<NameValue> with{{"rope", "llama3"}}, without;
  CHECK(wire::compare_layout(with, without)->theirs == "(absent)");
  CHECK(wire::compare_layout(without, with)->ours == "(absent)");
  CHECK(wire::layout_error(*wire::compare_layout(with, without), "decode", {"prefill", "", ""}).what ==
        "prefill uses rope (absent), this decode uses llama3");
}
