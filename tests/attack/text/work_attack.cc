// Texts and tokenizer files that are made to cost: each ends soon, as ids or as an error that names the cost.
#include <cstdlib>
#include <ctime>
#include <string>

#include "base/errors.h"
#include "base/rng.h"
#include "count.h"
#include "test.h"
#include "text/text.h"
#include "unicode/unicode.h"
#include "unicode/utf8.h"

using namespace mc;
using namespace mc::text;

namespace {

constexpr const char* kGoldens[] = {"gpt2", "llama2", "llama3", "mistral3", "qwen2"};

double thread_seconds() {
  timespec at{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &at);
  return static_cast<double>(at.tv_sec) + static_cast<double>(at.tv_nsec) * 1e-9;
}

Tokenizer golden(const std::string& name) {
  auto opened = Tokenizer::open(test::source_dir() + "/tests/golden/text/" + name);
  REQUIRE_OK(opened);
  return std::move(*opened);
}

std::string repeated(std::string_view unit, size_t bytes) {
  std::string out;
  while (out.size() < bytes) out += unit;
  return out;
}

/// A byte-level tokenizer whose pre-tokenizer is one pattern.
Result<Tokenizer> with_pattern(const std::string& pattern) {
  Json vocab = Json::object();
  for (int byte = 0, next = 0x100; byte < 256; ++byte) {
    // The byte alphabet of GPT-2: printable bytes are themselves, the others follow from U+0100 on.
    const bool own = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    std::string letter;
    unicode::append_utf8(letter, static_cast<char32_t>(own ? byte : next++));
    vocab.set(letter, byte);
  }
  Json split = Json::object({{"type", "Split"},
                             {"pattern", Json::object({{"Regex", pattern}})},
                             {"behavior", "Isolated"},
                             {"invert", false}});
  Json bytes =
      Json::object({{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}});
  Json file = Json::object({{"version", "1.0"},
                            {"added_tokens", Json::array()},
                            {"normalizer", nullptr},
                            {"post_processor", nullptr},
                            {"decoder", Json::object({{"type", "ByteLevel"}})}});
  file.set("pre_tokenizer", Json::object({{"type", "Sequence"}, {"pretokenizers", Json::array({split, bytes})}}));
  file.set("model", Json::object({{"type", "BPE"}, {"vocab", std::move(vocab)}, {"merges", Json::array()}}));
  return Tokenizer::parse({.tokenizer = file.dump()});
}

std::string random_text(Rng& rng, size_t bytes) {
  std::string out;
  while (out.size() < bytes) {
    const uint64_t kind = rng.below(8);
    char32_t c = static_cast<char32_t>(kind < 2   ? rng.below(0x80)
                                       : kind < 4 ? rng.below(0x800)
                                       : kind < 7 ? rng.below(0x10000)
                                                  : rng.below(0x110000));
    if (c >= 0xD800 && c < 0xE000) c = U' ';
    const uint64_t times = rng.below(16) == 0 ? 1 + rng.below(300) : 1;
    for (uint64_t i = 0; i < times; ++i) unicode::append_utf8(out, c);
  }
  return out;
}

}  // namespace

TEST_CASE("attack/text: patterns whose matches each look at the rest of the text end as MC4028") {
  struct Row {
    const char* pattern;
    const char* unit;
  };
  constexpr Row kRows[] = {
      {"a*b|[\\s\\S]", "a"},          // one look at the rest for each character
      {"(?:a*b|a)*c|[\\s\\S]", "a"},  // the same inside one match
      {"(?:a|a)*c|[\\s\\S]", "a"},    // many ways to match the same characters
      {"(?=[\\s\\S]*z)a|[\\s\\S]", "a"},
      {"(?:\\p{L}+\\s?)+z|[\\s\\S]", "ab "},
      {"[\\s\\S](?<!z)(?![\\s\\S]*z)b|a", "a"},
  };
  // A pattern costs its bound, half a second.
  for (size_t i = 0; i < std::size(kRows); i += test::count(size_t{2}, size_t{1})) {
    const Row& row = kRows[i];
    INFO("pattern: " << row.pattern);
    auto tokenizer = with_pattern(row.pattern);
    REQUIRE_OK(tokenizer);
    CHECK(tokenizer->encode("abc").has_value());  // a short text is none of this
    const double began = thread_seconds();
    const auto ids = tokenizer->encode(repeated(row.unit, size_t{1} << (test::is_full() ? 19 : 16)));
    const double took = thread_seconds() - began;
    REQUIRE_FALSE(ids);
    CHECK(ids.error().mc == static_cast<int>(err::kPatternCost));
    CHECK(ids.error().what.find("needs too many steps for this text") != std::string::npos);
    CHECK(ids.error().what.find("UTF-8") == std::string::npos);
    CHECK(took < 60);  // some seconds; without a bound some of them take hours
  }
}

namespace {

/// The longest run of letters for which that pattern takes less than 150 ms, and its processor time; it doubles with
/// each letter, and a single text may take 200 ms.
std::pair<std::string, double> costly_text(const Tokenizer& tokenizer) {
  std::pair<std::string, double> found;
  for (std::string text = "aaaaaaaa"; text.size() < 64; text += 'a') {
    const double began = thread_seconds();
    const bool is_done = tokenizer.encode(text).has_value();
    const double took = thread_seconds() - began;
    if (!is_done || took > 0.15) break;
    found = {text, took};
  }
  return found;
}

}  // namespace

TEST_CASE("attack/text: the texts of one request share the time of one") {
  auto tokenizer = with_pattern("(?:a|a)*c|[\\s\\S]");
  REQUIRE_OK(tokenizer);
  const auto [text, each] = costly_text(*tokenizer);
  REQUIRE(each > 0.01);
  const EncodeLimits limits;
  Work work(limits);
  const double began = thread_seconds();
  Result<std::vector<uint32_t>> ids = std::vector<uint32_t>();
  int done = 0;
  while (done < 64 && ids) {
    ids = tokenizer->encode(text, {.work = &work});
    done += ids.has_value();
  }
  REQUIRE_FALSE(ids);
  CHECK(ids.error().mc == static_cast<int>(err::kPatternCost));
  MESSAGE(done << " texts of " << each * 1e3 << " ms each in " << (thread_seconds() - began) * 1e3 << " ms");
  CHECK(done * each < 2);  // the bound is 0.2 s; times differ between runs of the same text
}

TEST_CASE("attack/text: a caller's bound on the time of patterns ends a text early, and can be told from their own") {
  auto tokenizer = with_pattern("(?:a|a)*c|[\\s\\S]");
  REQUIRE_OK(tokenizer);
  const auto [text, each] = costly_text(*tokenizer);
  REQUIRE(each > 0.01);
  const double began = thread_seconds();
  const auto ids = tokenizer->encode(text, {.limits = {.matching_max = 2ms}});
  const double took = thread_seconds() - began;
  REQUIRE_FALSE(ids);
  CHECK(ids.error().code == Code::timeout);
  CHECK(took < each);
  // The same where each character costs little, and all of them much.
  const auto many = tokenizer->encode(repeated("aaaaaaaaab", 200'000), {.limits = {.matching_max = 2ms}});
  REQUIRE_FALSE(many);
  CHECK(many.error().code == Code::timeout);
  int asked = 0;
  const auto stopped = tokenizer->encode(text, {.limits = {.stop = [&] { return ++asked > 1; }}});
  REQUIRE_FALSE(stopped);
  CHECK(stopped.error().code == Code::cancelled);
  CHECK(asked == 2);
}

TEST_CASE("attack/text: no released tokenizer's patterns come near the bound") {
  const size_t bytes = test::is_full() ? size_t{512} << 10 : size_t{64} << 10;
  INFO("seed " << test::seed());
  Rng rng(test::seed());
  std::vector<std::string> texts;
  for (const char* unit : {"a", " ", "\n", " \n", "\t ", "A", "aA", "1", "\u0301", "a\u0301\u0316", "\u4e2d", "'", "'s",
                           "\u1100\u1161\u11a8", "\xF0\x9F\x98\x80\u200d", "don't 12 \n", "\u212a", "\u00a0 "})
    texts.push_back(repeated(unit, bytes));
  texts.push_back(random_text(rng, test::is_full() ? size_t{512} << 10 : size_t{256} << 10));
  for (const char* name : kGoldens) {
    const Tokenizer tokenizer = golden(name);
    for (const std::string& text : texts) {
      INFO(std::string(name) << ": " << text.substr(0, 12));
      for (const bool special : {true, false}) {
        const auto ids = tokenizer.encode(text, {.add_special = false, .parse_special = special});
        REQUIRE_OK(ids);
        CHECK(text.size() <= tokenizer.text_bytes_max(ids->size()));
      }
    }
  }
}

TEST_CASE("attack/text: a long text, read a part at a time, gives the ids of its lines") {
  INFO("seed " << test::seed());
  Rng rng(test::seed());
  for (const char* name : kGoldens) {
    INFO(std::string(name));
    const Tokenizer tokenizer = golden(name);
    // No pattern and no merge joins the bytes of a snowman with a letter; SentencePiece's forms put a space in front of
    // a text.
    const bool is_spaced = std::string_view(name) == "llama2" || std::string_view(name) == "mistral3";
    const std::string between = std::string("\u2603") + (is_spaced ? " " : "");
    auto snowman = tokenizer.encode("\u2603", {.add_special = false});
    REQUIRE_OK(snowman);
    REQUIRE(snowman->size() >= 3);
    std::string text;
    std::vector<uint32_t> expected;
    while (text.size() < 100'000) {
      std::string line;
      for (uint64_t words = 1 + rng.below(9); words > 0; --words) {
        for (uint64_t letters = 1 + rng.below(rng.below(20) == 0 ? 3000 : 12); letters > 0; --letters)
          unicode::append_utf8(line, rng.below(10) == 0 ? U'\u4e2d' : static_cast<char32_t>('a' + rng.below(26)));
        if (words > 1) line += ' ';
      }
      const auto ids = tokenizer.encode(line, {.add_special = false});
      REQUIRE_OK(ids);
      if (!text.empty()) {
        text += between;
        expected.insert(expected.end(), snowman->end() - 3, snowman->end());
      }
      text += line;
      expected.insert(expected.end(), ids->begin(), ids->end());
    }
    const auto ids = tokenizer.encode(text, {.add_special = false});
    REQUIRE_OK(ids);
    CHECK(*ids == expected);
    CHECK(*tokenizer.encode(text, {.add_special = false, .limits = {.tokens_max = ids->size()}}) == expected);
    const auto refused = tokenizer.encode(text, {.add_special = false, .limits = {.tokens_max = ids->size() - 1}});
    REQUIRE_FALSE(refused);
    CHECK(refused.error().mc == static_cast<int>(err::kContextLength));
  }
}

TEST_CASE("attack/text: tokenising ends soon after it is told to stop") {
  const Tokenizer tokenizer = golden("llama3");
  const std::string text = repeated("don't stop 12 \u4e2d\n", size_t{8} << 20);
  int asked = 0;
  const EncodeLimits limits{.stop = [&] { return ++asked > 3; }};
  const double began = thread_seconds();
  const auto ids = tokenizer.encode(text, {.add_special = false, .limits = limits});
  REQUIRE_FALSE(ids);
  CHECK(ids.error().code == Code::cancelled);
  CHECK(asked == 4);
  CHECK(thread_seconds() - began < 5);
}

TEST_CASE("attack/text: a word that cannot fit is refused before it is merged") {
  const Tokenizer tokenizer = golden("gpt2");
  const std::string text = repeated("a", size_t{15} << 20);
  const double began = thread_seconds();
  const auto ids = tokenizer.encode(text, {.limits = {.tokens_max = 1000}});
  REQUIRE_FALSE(ids);
  CHECK(ids.error().mc == static_cast<int>(err::kContextLength));
  CHECK(thread_seconds() - began < 10);
}

TEST_CASE("attack/text: no step of a normalizer shortens a text by more than the bound allows for") {
  for (char32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    std::string text;
    unicode::append_utf8(text, c);
    const size_t own = text.size(), canonical = unicode::normalize(text, unicode::NormalForm::nfd).size();
    const size_t compatible = unicode::normalize(text, unicode::NormalForm::nfkd).size();
    // One character decomposed, one composed of what it decomposes to, one in lower case.
    const bool fits = own <= 3 * canonical && own <= 4 * compatible && canonical <= 3 * own &&
                      own <= 3 * unicode::lowercase(text).size();
    if (!fits) {
      INFO("U+" << static_cast<uint32_t>(c));
      CHECK(fits);
    }
  }
}

TEST_CASE("attack/text: added tokens that begin everywhere cost no more than the text") {
  Json file = Json::parse(R"({"version":"1.0","normalizer":null,"post_processor":null,"decoder":{"type":"Fuse"},
    "pre_tokenizer":null,"model":{"type":"BPE","vocab":{"a":0,"b":1," ":2},"merges":[]}})")
                  .value_or(Json());
  const auto added = [](std::string content, int id, bool rstrip) {
    return Json::object({{"id", id},
                         {"content", std::move(content)},
                         {"special", false},
                         {"single_word", false},
                         {"lstrip", false},
                         {"rstrip", rstrip},
                         {"normalized", false}});
  };
  struct Row {
    Json token;
    std::string text;
  };
  const size_t bytes = size_t{1} << (test::is_full() ? 22 : 18);
  const Row rows[] = {{added(std::string(4000, 'a') + "b", 3, false), repeated("a", bytes)},
                      {added(" ", 2, true), repeated(" ", bytes)}};
  for (const Row& row : rows) {
    file.set("added_tokens", Json::array({row.token}));
    auto tokenizer = Tokenizer::parse({.tokenizer = file.dump()});
    REQUIRE_OK(tokenizer);
    const double began = thread_seconds();
    const auto ids = tokenizer->encode(row.text);
    REQUIRE_FALSE(ids);
    CHECK(ids.error().mc == static_cast<int>(err::kPatternCost));
    CHECK(thread_seconds() - began < 30);
  }
}
