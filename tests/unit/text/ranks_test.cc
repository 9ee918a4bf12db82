// tiktoken's rank files and tekken.json: ids follow from the ranks alone, and a malformed file is refused by line or
// field. Released files are compared by scripts/compare-tokenizers.
#include <filesystem>
#include <fstream>

#include "test.h"
#include "text/base64.h"
#include "text/text.h"

namespace ranks_test {

using namespace mc;
using namespace mc::text;

namespace {

std::string base64(std::string_view bytes) {
  constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t bits = 0;
    for (size_t j = 0; j < 3; ++j) bits = bits << 8 | (i + j < bytes.size() ? static_cast<uint8_t>(bytes[i + j]) : 0);
    for (size_t j = 0; j < 4; ++j) out += i + j > bytes.size() ? '=' : kDigits[bits >> (18 - 6 * j) & 63];
  }
  return out;
}

/// The 256 bytes with their values as ranks, then `more` from 256 on.
std::string ranks(const std::vector<std::string>& more) {
  std::string out;
  for (int byte = 0; byte < 256; ++byte)
    out += base64(std::string(1, static_cast<char>(byte))) + " " + std::to_string(byte) + "\n";
  for (size_t i = 0; i < more.size(); ++i) out += base64(more[i]) + " " + std::to_string(256 + i) + "\n";
  return out;
}

constexpr const char* kWords = R"({"pat_str": "[a-z]+|[^a-z]", "special_tokens": {"<|end|>": 900}})";

Result<Tokenizer> open(std::string rank_lines, std::string side = kWords, std::string name = "small.tiktoken") {
  return Tokenizer::parse(
      {.ranks = std::move(rank_lines), .ranks_name = std::move(name), .ranks_side = std::move(side)});
}

std::vector<uint32_t> ids_of(const Tokenizer& tokenizer, std::string_view text) {
  const auto ids = tokenizer.encode(text, {.add_special = false});
  REQUIRE_OK(ids);
  CHECK(tokenizer.decode(*ids, false) == text);
  return *ids;
}

std::string refusal(const Result<Tokenizer>& opened) {
  return opened ? "accepted" : "MC" + std::to_string(opened.error().mc) + " " + opened.error().what;
}

void check_refused(const Result<Tokenizer>& opened, std::string_view wanted) {
  const std::string text = refusal(opened);
  INFO("got: " << text << "; wanted: " << wanted);
  CHECK(text.find(wanted) != std::string::npos);
}

std::string tekken(const std::string& vocab, const std::string& rest = "", int size = 259) {
  return R"({"config":{"pattern":"[a-z]+|[^a-z]","default_vocab_size":)" + std::to_string(size) +
         R"(,"default_num_special_tokens":3},"vocab":[)" + vocab + "]" + rest + "}";
}

std::string tekken_bytes() {
  std::string out;
  for (int byte = 0; byte < 256; ++byte)
    out += (byte ? "," : "") + (R"({"rank":)" + std::to_string(byte) + R"(,"token_bytes":")") +
           base64(std::string(1, static_cast<char>(byte))) + "\"}";
  return out;
}

}  // namespace

TEST_CASE("text/base64: every length makes the round, and what is no base64 is refused") {
  std::string bytes;
  for (int i = 0; i < 70; ++i) {
    CHECK(decode_base64(base64(bytes)) == bytes);
    bytes += static_cast<char>(i * 37);
  }
  for (const char* bad : {"A", "AA", "AAA", "A===", "AB==", "AAB=", "AA A", "AA-A", "====", "AA==AA=="})
    CHECK_FALSE(decode_base64(bad).has_value());
}

TEST_CASE("text/ranks: a word is the token of its bytes, or merges by the lowest rank from the left") {
  const auto tokenizer = open(ranks({"ab", "bc", "abc", "aa", "aaa"}));
  REQUIRE_OK(tokenizer);
  CHECK(ids_of(*tokenizer, "abc") == std::vector<uint32_t>{258});
  CHECK(ids_of(*tokenizer, "abcd") == std::vector<uint32_t>{258, 'd'});
  CHECK(ids_of(*tokenizer, "dbc") == std::vector<uint32_t>{'d', 257});
  CHECK(ids_of(*tokenizer, "aaaa") == std::vector<uint32_t>{259, 259});
  CHECK(ids_of(*tokenizer, "a<|end|>") == std::vector<uint32_t>{'a', 900});
  CHECK(tokenizer->encode("a<|end|>", {.add_special = false, .parse_special = false})->size() == 8);
}

TEST_CASE("text/ranks: two ways to make one token have one rank, so that the left one is taken") {
  // "xyyx": x yy x gives xyy x; if the cut of xyy into xy and y, or of yyx, had a rank of its own, it could win.
  const auto tokenizer = open(ranks({"yy", "yyy", "xy"}));
  REQUIRE_OK(tokenizer);
  // yyyyy: yy yy y, then yy y makes yyy only on the right; the left pair yy yy makes nothing.
  CHECK(ids_of(*tokenizer, "yyyyyz") == std::vector<uint32_t>{256, 257, 'z'});
  CHECK(ids_of(*tokenizer, "yyyz") == std::vector<uint32_t>{257, 'z'});
  CHECK(ids_of(*tokenizer, "xyyz") == std::vector<uint32_t>{'x', 256, 'z'});
}

TEST_CASE("text/ranks: the name of the file, or tiktoken.json, gives pattern and special tokens") {
  const auto llama = open(ranks({}), "", "llama3.tiktoken");
  REQUIRE_OK(llama);
  CHECK(llama->bos_id() == 128000);
  CHECK(llama->encode("a").value() == std::vector<uint32_t>{128000, 'a'});
  CHECK(ids_of(*llama, "<|eot_id|><|reserved_special_token_2|><|reserved_special_token_250|>") ==
        std::vector<uint32_t>{128009, 128004, 128255});
  const auto harmony = open(ranks({}), R"({"encoding":"o200k_harmony"})");
  REQUIRE_OK(harmony);
  CHECK(ids_of(*harmony, "<|call|><|reserved_200004|><|reserved_201087|>") ==
        std::vector<uint32_t>{200012, 200004, 201087});
  const auto chatty = open(ranks({"  "}), "", "cl100k_base.tiktoken");
  REQUIRE_OK(chatty);
  CHECK(ids_of(*chatty, "a  \n") == std::vector<uint32_t>{'a', 256, '\n'});
  CHECK_FALSE(chatty->bos_id().has_value());
  check_refused(open(ranks({}), ""),
                "MC3007 small.tiktoken: no encoding is known by the name 'small'; supported: cl100k");
  check_refused(open(ranks({}), R"({"encoding":"odd"})"), "by the name 'odd'");
  check_refused(open(ranks({}), R"({"pattern":"a"})"), "tiktoken.json: pattern is not known; supported: encoding");
  check_refused(open(ranks({}), R"({"pat_str":"a","special_tokens":{"<x>":4194304}})"), "special_tokens.<x> must be");
  check_refused(open(ranks({}), R"({"pat_str":"a","special_tokens":{"<x>":97}})"), "<x> has the id 97, which another");
  check_refused(open(ranks({}), R"({"pat_str":"a","special_tokens":{"<x>":999,"<y>":999}})"), "the id of another one");
  check_refused(open(ranks({}), R"({"pat_str":"a","special_tokens":{},"normalizer":"NFD"})"), "normalizer is \"NFD\"");
  check_refused(open(ranks({}), R"({"pat_str":"(a","special_tokens":{}})"), "missing closing parenthesis");
  check_refused(open(ranks({}), "["), "tiktoken.json: ");
}

TEST_CASE("text/ranks: a line that is no rank is refused with its number") {
  check_refused(open(ranks({}) + "YWI=\n"), "MC3002 small.tiktoken:257: a line must be a token in base64");
  check_refused(open(ranks({}) + "YWI= x\n"), "small.tiktoken:257: a line must be");
  check_refused(open(ranks({}) + "YWI= 256 \n"), "small.tiktoken:257: a line must be");
  check_refused(open(ranks({}) + "YWI 256\n"), "small.tiktoken:257: a line must be");
  check_refused(open(ranks({}) + "YWI= -1\n"), "small.tiktoken:257: a line must be");
  check_refused(open(ranks({}) + "YWI= 4194304\n"), "small.tiktoken:257: the id is 4194304; ids go from 0 to 4194303");
  check_refused(open(ranks({}) + "YWI= 99\n"), "small.tiktoken:257: the id 99 is given to two tokens");
  check_refused(open(ranks({"ab"}) + "YWI= 999\n"), "small.tiktoken:258: the token has the ids 256 and 999");
  check_refused(open(ranks({}) + " 256\n"), "small.tiktoken:257: the token has 0 bytes");
  check_refused(open(ranks({std::string(5000, 'a')})), "small.tiktoken:257: the token has 5000 bytes");
  check_refused(open("YQ== 0\n"), "small.tiktoken: no token is the byte 0 alone");
  CHECK(refusal(open(ranks({}) + "\r\n\n")) == "accepted");
}

TEST_CASE("text/ranks: long tokens are bounded together") {
  std::vector<std::string> tokens;
  for (int i = 0; i < 257; ++i) tokens.push_back(std::to_string(1000 + i) + std::string(4092, 'x'));
  check_refused(open(ranks(tokens)), "small.tiktoken: there are too many long tokens");
}

TEST_CASE("text/ranks: $ is the text's end, as in Rust's regex") {
  const auto tokenizer = open(ranks({"\n\n"}), R"({"pat_str":"\\s+$|\\s|[a-z]+","special_tokens":{}})");
  REQUIRE_OK(tokenizer);
  CHECK(ids_of(*tokenizer, "a\n\nb") == std::vector<uint32_t>{'a', '\n', '\n', 'b'});
  CHECK(ids_of(*tokenizer, "a\n\n") == std::vector<uint32_t>{'a', 256});
}

TEST_CASE("text/tekken: special tokens come first, and the ranks beyond the model's size are left out") {
  const std::string more = R"(,{"rank":256,"token_bytes":"YWI="})";
  const auto tokenizer = Tokenizer::parse({.tekken = tekken(tekken_bytes() + more)});
  REQUIRE_OK(tokenizer);
  CHECK(tokenizer->vocab_size() == 259);
  CHECK(tokenizer->bos_id() == 1);
  CHECK(tokenizer->encode("ab").value() == std::vector<uint32_t>{1, 'a' + 3, 'b' + 3});
  const auto whole = Tokenizer::parse({.tekken = tekken(tekken_bytes() + more, "", 260)});
  REQUIRE_OK(whole);
  CHECK(whole->encode("ab</s>").value() == std::vector<uint32_t>{1, 259, 2});
  const auto named = Tokenizer::parse(
      {.tekken =
           tekken(tekken_bytes(), R"(,"special_tokens":[{"rank":1,"token_str":"<s>"},{"rank":0,"token_str":"X"}])")});
  REQUIRE_OK(named);
  CHECK(ids_of(*named, "X<SPECIAL_2>") == std::vector<uint32_t>{0, 2});
}

TEST_CASE("text/tekken: a file with a field that is missing or impossible is refused by field") {
  const auto refused = [](std::string text) { return Tokenizer::parse({.tekken = std::move(text)}); };
  check_refused(refused("{}"), "MC3002 tekken.json: config.pattern must be a string");
  check_refused(refused("[]"), "tekken.json: ");
  check_refused(refused(tekken("")), "tekken.json: vocab has 0 tokens; config.default_vocab_size is 259, of which 3");
  check_refused(refused(tekken(tekken_bytes(), "", 2)), "config.default_vocab_size is 2, of which 3 are special");
  check_refused(refused(tekken(tekken_bytes(), "", 4194305)), "config.default_vocab_size 4194305 must be a number");
  check_refused(refused(tekken(tekken_bytes() + R"(,{"rank":256})", "", 260)), "vocab[256]: needs token_bytes");
  check_refused(refused(tekken(tekken_bytes() + R"(,{"rank":257,"token_bytes":"YWI="})", "", 260)),
                "vocab[256]: needs token_bytes in base64, and a rank below 257");
  check_refused(refused(tekken(tekken_bytes(), R"(,"special_tokens":[{"rank":3,"token_str":"<s>"}])")),
                "special_tokens[0] needs a token_str, and a rank below 3");
  check_refused(refused(tekken(tekken_bytes(),
                               R"(,"special_tokens":[{"rank":0,"token_str":"</s>"},{"rank":1,"token_str":"</s>"}])")),
                "the special token </s> occurs twice");
}

TEST_CASE("text/ranks: a folder's tokenizer.json counts before tekken.json, and that before the only rank file") {
  const std::string folder = std::filesystem::temp_directory_path() / ("mc-ranks-" + std::to_string(::getpid()));
  std::filesystem::create_directories(folder);
  const auto put = [&](const std::string& name, const std::string& text) {
    std::ofstream(folder + "/" + name, std::ios::binary) << text;
  };
  check_refused(Tokenizer::open(folder), "MC3001 text: there is no tokenizer.json, tekken.json or *.tiktoken in ");
  put("small.tiktoken", ranks({"ab"}));
  put("tiktoken.json", kWords);
  CHECK(ids_of(*Tokenizer::open(folder), "ab") == std::vector<uint32_t>{256});
  put("other.tiktoken", ranks({}));
  check_refused(Tokenizer::open(folder), "has several rank files, other.tiktoken and small.tiktoken");
  put("tekken.json", tekken(tekken_bytes()));
  CHECK(ids_of(*Tokenizer::open(folder), "a") == std::vector<uint32_t>{'a' + 3});
  put("tokenizer.json", "");
  check_refused(Tokenizer::open(folder), "tokenizer.json: ");
  std::filesystem::remove_all(folder);
}

}  // namespace ranks_test
