#include "text/tokenizer.h"

#include <thread>

#include "unit/text/small_tokenizer.h"

using namespace mc;
using namespace mc::text;
using test::small_tokenizer;

namespace {

using Ids = std::vector<uint32_t>;

const AddedToken kEos = {.content = "<|eos|>", .special = true};

}  // namespace

TEST_CASE("text/tokenizer: the pair with the lowest rank merges first, the leftmost among equals") {
  const auto tokenizer = small_tokenizer({{"b", "c"}, {"a", "b"}, {"a", "a"}, {"aa", "a"}});
  CHECK(*tokenizer.encode("abc") == Ids{'a', 256});
  CHECK(*tokenizer.encode("ab") == Ids{257});
  CHECK(*tokenizer.encode("aaaaa") == Ids{258, 259});
}

TEST_CASE("text/tokenizer: invalid UTF-8 is refused with the byte offset and the number users look up") {
  const auto tokenizer = small_tokenizer();
  const auto result = tokenizer.encode("seventeen bytes..\xE4\xB8");
  REQUIRE_FALSE(result);
  CHECK(result.error().code == Code::invalid);
  CHECK(result.error().mc == 1004);
  CHECK(result.error().what == "text: input is not valid UTF-8 at byte 17");
  const Part halves[] = {{"ab\xE4", false}, {"\xB8\xAD", true}};  // a character over the border of two parts
  CHECK(tokenizer.encode(halves).error().what == "text: input is not valid UTF-8 at byte 2");
  const std::string long_text(Tokenizer::kTextBytesMax + 1, 'a');
  CHECK(tokenizer.encode(long_text).error().what.find("16777217 bytes; the most is 16777216") != std::string::npos);
}

TEST_CASE("text/tokenizer: a user's text never becomes a control token, the template's does") {
  const auto tokenizer = small_tokenizer({}, {kEos});
  const uint32_t eos = 256;
  CHECK(*tokenizer.encode("a<|eos|>") == Ids{'a', eos});
  CHECK(*tokenizer.encode("<|eos|>", {.parse_special = false}) == Ids{'<', '|', 'e', 'o', 's', '|', '>'});
  const Part mixed[] = {{"<|eos|>", false}, {"<|eos|>", true}, {"<|eos|>", false}};
  CHECK(*tokenizer.encode(mixed) == Ids{eos, '<', '|', 'e', 'o', 's', '|', '>', eos});
}

TEST_CASE("text/tokenizer: a control token is not put together over the border of a user's text") {
  const auto tokenizer = small_tokenizer({}, {kEos, {.content = "x<|eos|>", .special = true}});
  for (size_t cut = 1; cut < kEos.content.size(); ++cut) {
    const Part head_is_user[] = {{kEos.content.substr(0, cut), true}, {kEos.content.substr(cut), false}};
    const Part tail_is_user[] = {{kEos.content.substr(0, cut), false}, {kEos.content.substr(cut), true}};
    CHECK(tokenizer.encode(head_is_user)->size() == kEos.content.size());
    CHECK(tokenizer.encode(tail_is_user)->size() == kEos.content.size());
  }
  // Nor does a user's last byte take part in a longer one, or hide the template's own.
  const Part hidden[] = {{"x", true}, {"<|eos|>", false}};
  CHECK(*tokenizer.encode(hidden) == Ids{'x', 256});
}

TEST_CASE("text/tokenizer: merges and whole words do not lead a user to a special token either") {
  const std::vector<std::pair<std::string, std::string>> merges = {{"<", "e"}, {"<e", ">"}, {"<e>", "x"}};
  Json spec = test::small_tokenizer_json(merges, {{.content = "<e>", .special = true}});
  spec.set("pre_tokenizer", test::byte_level_step(false));
  for (bool ignore_merges : {false, true}) {
    Json model = spec["model"];
    model.set("ignore_merges", ignore_merges);
    spec.set("model", model);
    const auto tokenizer = Tokenizer::parse({.tokenizer = spec.dump()});
    REQUIRE_OK(tokenizer);
    CHECK(*tokenizer->encode("<e>") == Ids{257});
    CHECK(*tokenizer->encode("<e>", {.parse_special = false}) == Ids{256, '>'});
    CHECK(*tokenizer->encode("<e>x", {.parse_special = false}) == Ids{258});
    CHECK(tokenizer->encode("<e><e>" + std::string(64, '-'), {.parse_special = false})->at(1) == '>');
  }
}

TEST_CASE("text/tokenizer: parts get the ids of their plain concatenation when nobody plays tricks") {
  const auto tokenizer = small_tokenizer({{"h", "i"}, {"\n", "\n"}, {"e", "r"}}, {kEos});
  const Part parts[] = {{"<|eos|>us", false}, {"er\n", true}, {"", true}, {"\nhi", false}, {"hi", true}};
  CHECK(*tokenizer.encode(parts) == *tokenizer.encode("<|eos|>user\n\nhihi"));
}

TEST_CASE("text/tokenizer: BOS is put in front once, and not again when the template wrote it") {
  const Json spec = test::small_tokenizer_json({}, {{.content = "<s>", .special = true}, kEos});
  const auto tokenizer =
      Tokenizer::parse({.tokenizer = spec.dump(), .config = R"({"bos_token":"<s>","eos_token":{"content":"<|eos|>"},
                                                         "add_bos_token":true,"add_eos_token":true})"});
  REQUIRE_OK(tokenizer);
  CHECK(tokenizer->bos_id() == 256);
  CHECK(tokenizer->eos_id() == 257);
  CHECK(*tokenizer->encode("a") == Ids{256, 'a', 257});
  CHECK(*tokenizer->encode("a", {.add_special = false}) == Ids{'a'});
  const Part with_bos[] = {{"<s>", false}, {"a", true}}, without[] = {{"a", true}};
  CHECK(*tokenizer->encode(with_bos) == Ids{256, 'a'});
  CHECK(*tokenizer->encode(with_bos, true) == Ids{256, 'a', 257});
  CHECK(*tokenizer->encode(without, true) == Ids{256, 'a', 257});
}

TEST_CASE("text/tokenizer: tokens are found by their bytes and shown as bytes") {
  const auto tokenizer = small_tokenizer({{" ", "t"}}, {kEos});
  CHECK(tokenizer.vocab_size() == 258);
  CHECK(tokenizer.token_bytes(256) == " t");
  CHECK(tokenizer.token_spelling(256) == "\u0120t");
  CHECK(tokenizer.token_to_id(" t") == 256);
  CHECK(tokenizer.token_to_id("<|eos|>") == 257);
  CHECK_FALSE(tokenizer.token_to_id("none").has_value());
  CHECK(tokenizer.token_bytes(0xE4) == "\xE4");
  CHECK(tokenizer.token_bytes(258).empty());
  CHECK(tokenizer.is_special(257));
  CHECK_FALSE(tokenizer.is_special(258));
  CHECK(tokenizer.decode(Ids{256, 257, 9999}) == " t");
  CHECK(tokenizer.decode(Ids{256, 257, 9999}, false) == " t<|eos|>");
}

TEST_CASE("text/tokenizer: added tokens take white space with them and stand alone as declared") {
  const auto tokenizer = small_tokenizer({}, {{.content = "[M]", .lstrip = true, .rstrip = true},
                                              {.content = "cat", .single_word = true},
                                              {.content = "[M]s"}});
  CHECK(*tokenizer.encode("a \n[M]\u3000 b") == Ids{'a', 256, 'b'});
  CHECK(*tokenizer.encode("[M] [M]") == Ids{256, 256});
  CHECK(*tokenizer.encode("[M]s") == Ids{258});  // the longest
  CHECK(*tokenizer.encode("cat,cat") == Ids{257, ',', 257});
  CHECK(*tokenizer.encode("cats") == Ids{'c', 'a', 't', 's'});
  CHECK(tokenizer.encode("\u00e9cat")->size() == 5);
}

TEST_CASE("text/tokenizer: eight threads encode at once with equal results") {
  const auto tokenizer = Tokenizer::open(test::source_dir() + "/tests/golden/text/qwen2");
  REQUIRE_OK(tokenizer);
  std::string text;
  for (int i = 0; i < 200; ++i) text += "The caf\u00e9 e\u0301 costs " + std::to_string(i) + "!\r\n";
  const Ids expected = *tokenizer->encode(text);
  std::vector<Ids> results(8);
  std::vector<std::thread> threads;
  for (Ids& result : results) threads.emplace_back([&] { result = *tokenizer->encode(text); });
  for (std::thread& thread : threads) thread.join();
  for (const Ids& result : results) CHECK(result == expected);
}
