#include "text/detokenizer.h"

#include "unit/text/small_tokenizer.h"

using namespace mc;
using namespace mc::text;

TEST_CASE("text/detokenizer: a character comes out when its last byte does, never as a half") {
  const auto tokenizer = test::small_tokenizer();
  Detokenizer out(tokenizer);
  const std::string smile = "\U0001F642";
  for (int i = 0; i < 3; ++i) {
    CHECK(out.push(static_cast<uint8_t>(smile[i])) == "");
    CHECK(out.pending_bytes() == size_t(i + 1));
  }
  CHECK(out.push(static_cast<uint8_t>(smile[3])) == smile);
  CHECK(out.flush() == "");
}

TEST_CASE("text/detokenizer: bytes that nothing can complete become U+FFFD at once, an unfinished end at flush") {
  const auto tokenizer = test::small_tokenizer();
  Detokenizer out(tokenizer);
  CHECK(out.push(0x80) == "\uFFFD");
  CHECK(out.push(0xE4) == "");
  CHECK(out.push('a') == "\uFFFDa");
  CHECK(out.push(0xE4) == "");
  CHECK(out.push(0xB8) == "");
  CHECK(out.flush() == "\uFFFD");
  CHECK(out.push('b') == "b");
}

TEST_CASE("text/detokenizer: special tokens are left out unless asked for, unknown ids are nothing") {
  const auto tokenizer = test::small_tokenizer({}, {{.content = "<|eos|>", .special = true}});
  Detokenizer skipping(tokenizer), showing(tokenizer, false);
  const std::vector<uint32_t> ids = {'a', 256, 70'000, 'b'};
  CHECK(skipping.push(ids) == "ab");
  CHECK(showing.push(ids) == "a<|eos|>b");
}
