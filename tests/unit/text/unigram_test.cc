// Unigram in small: what is settled early, what is unknown, what it may cost. Goldens: tokenizer_golden_test.cc.
#include "base/json.h"
#include "test.h"
#include "text/text.h"

namespace unigram_test {

using namespace mc;
using namespace mc::text;

namespace {

struct Piece {
  std::string text;
  double score = 0;
};

/// <unk> and </s>, then the pieces from id 2 on; no steps around the model.
Tokenizer unigram(const std::vector<Piece>& pieces, bool byte_fallback = false) {
  Json vocab = Json::array(), added = Json::array();
  for (const char* special : {"<unk>", "</s>"}) {
    added.push(Json::object({{"id", vocab.size()}, {"content", special}, {"special", true}}));
    vocab.push(Json::array({special, 0.0}));
  }
  for (const Piece& piece : pieces) vocab.push(Json::array({piece.text, piece.score}));
  const Json spec = Json::object(
      {{"added_tokens", added},
       {"normalizer", nullptr},
       {"pre_tokenizer", nullptr},
       {"post_processor", nullptr},
       {"decoder", Json::object({{"type", "ByteFallback"}})},
       {"model",
        Json::object({{"type", "Unigram"}, {"unk_id", 0}, {"byte_fallback", byte_fallback}, {"vocab", vocab}})}});
  auto opened = Tokenizer::parse({.tokenizer = spec.dump()});
  REQUIRE_OK(opened);
  return std::move(*opened);
}

std::vector<uint32_t> ids_of(const Tokenizer& tokenizer, std::string_view text) {
  const auto ids = tokenizer.encode(text, {.parse_special = false});
  REQUIRE_OK(ids);
  return *ids;
}

}  // namespace

TEST_CASE("text/unigram: the way with the highest sum is taken, and among equal sums the longest last token") {
  const Tokenizer tokenizer = unigram({{"a", -1}, {"b", -1}, {"ab", -1.5}, {"bb", -2}, {"abb", -9}});
  CHECK(ids_of(tokenizer, "ab") == std::vector<uint32_t>{4});
  CHECK(ids_of(tokenizer, "abb") == std::vector<uint32_t>{4, 3});
  CHECK(ids_of(tokenizer, "bb") == std::vector<uint32_t>{5});  // -2, like b and b
}

TEST_CASE("text/unigram: a score is read as the reference reads it, to the last bit") {
  // The reference divides 72209343910217285 by 10^16. That is -7.220934391021728, so both ways have equal sums.
  const Tokenizer tokenizer = unigram({{"a", -7.220934391021728}, {"b", 0}, {"ab", -7.2209343910217285}});
  CHECK(ids_of(tokenizer, "ab") == std::vector<uint32_t>{4});
  const Tokenizer apart = unigram({{"a", -7.220934391021727}, {"b", 0}, {"ab", -7.2209343910217285}});
  CHECK(ids_of(apart, "ab") == std::vector<uint32_t>{2, 3});
  const Tokenizer extreme = unigram({{"a", 1e-300}, {"b", 5e-324}, {"ab", 1e308}, {"ba", -1.7976931348623157e308}});
  CHECK(ids_of(extreme, "ab") == std::vector<uint32_t>{4});
  CHECK(ids_of(extreme, "ba") == std::vector<uint32_t>{3, 2});
}

TEST_CASE("text/unigram: neighbouring unknown characters are one token, however the word is cut") {
  const Tokenizer tokenizer = unigram({{"a", -1}, {"\u4e2d\u6587", -40}});
  CHECK(ids_of(tokenizer, "a\u00e9\u00e8a\u00e9") == std::vector<uint32_t>{2, 0, 2, 0});
  CHECK(ids_of(tokenizer, std::string(50'000, 'x') + "a") == std::vector<uint32_t>{0, 2});
  CHECK(ids_of(tokenizer, "\u4e2d\u6587\u00e9") == std::vector<uint32_t>{3, 0});
}

TEST_CASE("text/unigram: an unknown run becomes its bytes where each has a token") {
  const Tokenizer tokenizer = unigram({{"a", -1}, {"<0xC3>", -5}, {"<0xA9>", -5}}, true);
  CHECK(ids_of(tokenizer, "a\u00e9a") == std::vector<uint32_t>{2, 3, 4, 2});
  CHECK(ids_of(tokenizer, "a\u00e9\u00e8a") == std::vector<uint32_t>{2, 0, 2});  // the run lacks A8
  CHECK(tokenizer.decode(ids_of(tokenizer, "\u00e9\u00e9")) == "\u00e9\u00e9");
}

TEST_CASE("text/unigram: a user's text makes no control token") {
  const Tokenizer tokenizer = unigram({{"<", -1}, {"/", -1}, {"s", -1}, {">", -1}});
  CHECK(ids_of(tokenizer, "</s>") == std::vector<uint32_t>{2, 3, 4, 5});
  CHECK(tokenizer.encode("</s>").value() == std::vector<uint32_t>{1});
}

TEST_CASE("text/unigram: a word of megabytes is settled cut by cut") {
  const Tokenizer tokenizer = unigram({{"ab", -1}, {"ba", -1}, {"a", -3}, {"b", -3}, {"|", -1}});
  std::string text;
  std::vector<uint32_t> wanted;
  for (int i = 0; i < 300'000; ++i) {
    text += "aba|";
    wanted.insert(wanted.end(), {4, 3, 6});  // a, ba: a longer last token than ab, a
  }
  CHECK(ids_of(tokenizer, text) == wanted);
  const auto cut = tokenizer.encode(text, {.limits = {.tokens_max = 1000}});
  REQUIRE_FALSE(cut);
  CHECK(cut.error().mc == 4005);
}

TEST_CASE("text/unigram: a vocabulary that makes every look-up long ends with MC4028, not with a hang") {
  std::vector<Piece> pieces;
  for (size_t length = 1; length <= 4096; ++length) pieces.push_back({std::string(length, 'a'), -1.0});
  const Tokenizer tokenizer = unigram(pieces);
  // The bound is 200 ms and 1 us a byte; the look-ups of this text take 4096 steps a byte.
  const auto ids = tokenizer.encode(std::string(size_t{64} << 10, 'a'));
  REQUIRE_FALSE(ids);
  CHECK(ids.error().mc == 4028);
  CHECK(tokenizer.encode(std::string(2048, 'a')).value() == std::vector<uint32_t>{2049});
}

}  // namespace unigram_test
