#include "text/regex.h"

#include "test.h"
#include "unicode/utf8.h"

using namespace mc;
using namespace mc::text;

namespace {

std::string pieces(std::string_view pattern, std::string_view text) {
  auto regex = Regex::compile(pattern);
  REQUIRE_OK(regex);
  std::vector<Span> spans;
  REQUIRE_OK(regex->split(text, 0, static_cast<uint32_t>(text.size()), spans));
  std::string out;
  for (const Span& span : spans) {
    const std::string_view piece = text.substr(span.begin, span.end - span.begin);
    out += span.match ? "[" + std::string(piece) + "]" : std::string(piece);
  }
  return out;
}

std::string refusal(std::string_view pattern) {
  const auto regex = Regex::compile(pattern);
  return regex ? "accepted" : regex.error().what;
}

}  // namespace

TEST_CASE("text/regex: matches and gaps cover the range in order") {
  CHECK(pieces("b+", "abbcb") == "a[bb]c[b]");
  CHECK(pieces("x", "") == "");
  CHECK(pieces("x", "aaa") == "aaa");
  CHECK(pieces(" ?\\p{L}+|\\s+(?!\\S)|\\s+", "Hi  you  ") == "[Hi][ ][ you][  ]");
}

TEST_CASE("text/regex: an empty match is one between characters, never right behind a match") {
  CHECK(pieces("x*", "axxb") == "[]a[xx]b[]");
  CHECK(pieces("(?=b)", "abb") == "a[]b[]b");
  CHECK(pieces("z*", "\u4e2d") == "[]\u4e2d[]");
}

TEST_CASE("text/regex: a range hides the text around it from look-around") {
  auto regex = Regex::compile("(?<!a)b(?!c)");
  REQUIRE_OK(regex);
  std::vector<Span> spans;
  REQUIRE_OK(regex->split("abc", 1, 2, spans));
  CHECK(spans == std::vector<Span>{{1, 2, true}});
}

TEST_CASE("text/regex: space and word characters are Unicode's, as Oniguruma has them") {
  CHECK(pieces("\\s", "a\u0085\u00a0\u180e\u3000") == "a[\u0085][\u00a0]\u180e[\u3000]");
  CHECK(pieces("[^\\s]+", "a\u2003b") == "[a]\u2003[b]");
  CHECK(pieces("\\S+", "a\u2003b") == "[a]\u2003[b]");
  CHECK(pieces("\\w+", "e\u0301_1 \u24b6") == "[e\u0301_1] [\u24b6]");
  CHECK(pieces("(?i:'S)", "'s 'S '\u017f") == "['s] ['S] ['\u017f]");
}

TEST_CASE("text/regex: every class has the characters of Unicode 16 that Oniguruma's and Rust's have") {
  // Count, and sum of c * (c + 1) modulo 2^64, of the characters that tokenizers 0.23.3 matches.
  static constexpr struct {
    const char* pattern;
    size_t count;
    uint64_t sum;
  } kClasses[] = {
      {R"(\p{L})", 141028, 2236563777264508},
      {R"(\p{Lu})", 1858, 8621351473376},
      {R"(\p{Ll})", 2258, 10179546929594},
      {R"(\p{Lm})", 404, 1815493572930},
      {R"(\p{Lo})", 136477, 2215945613552788},
      {R"(\p{M})", 2501, 210569679274738},
      {R"(\p{Mn})", 2020, 209112376029770},
      {R"(\p{N})", 1911, 9773975787296},
      {R"(\p{Nd})", 760, 3527310676470},
      {R"(\p{P})", 855, 1821583414186},
      {R"(\p{S})", 8514, 71952393576474},
      {R"(\p{So})", 7376, 71296425642300},
      {R"(\p{Z})", 19, 1195543178},
      {R"(\s)", 25, 1195561670},
      {R"(\w)", 144671, 2452860906249134},
  };
  std::string text;
  for (char32_t c = 0; c < 0x110000; ++c)
    if (c < 0xD800 || c >= 0xE000) unicode::append_utf8(text, c);
  for (const auto& wanted : kClasses) {
    CAPTURE(wanted.pattern);
    auto regex = Regex::compile(std::string(wanted.pattern) + "+");
    REQUIRE_OK(regex);
    std::vector<Span> spans;
    REQUIRE_OK(regex->split(text, 0, static_cast<uint32_t>(text.size()), spans));
    size_t count = 0;
    uint64_t sum = 0;
    for (const Span& span : spans)
      for (size_t at = span.begin; span.match && at < span.end; ++count) {
        const unicode::CodePoint c = unicode::decode_utf8(std::string_view(text).substr(at));
        sum += uint64_t{c.value} * (c.value + 1);
        at += c.bytes;
      }
    CHECK(count == wanted.count);
    CHECK(sum == wanted.sum);
  }
}

TEST_CASE("text/regex: a recent character that the pattern names is matched as itself") {
  CHECK(pieces("\\p{So}", "a\U0001FAE8b\U0001F642") == "a[\U0001FAE8]b[\U0001F642]");
  CHECK(pieces("\U0001FAE8", "\U0001FAE8\U0001F600\U0001FAE9") == "[\U0001FAE8]\U0001F600\U0001FAE9");
  CHECK(pieces("\U0001F600", "\U0001FAE8\U0001F600\U0001FAE9") == "\U0001FAE8[\U0001F600]\U0001FAE9");
  CHECK(pieces("[\\x{1F600}-\\x{1F64F}]", "\U0001FAE8\U0001F600") == "\U0001FAE8[\U0001F600]");
  CHECK(pieces("[\\x{1FA00}-\\x{1FAFF}]", "\U0001FAE8\U0001F600") == "[\U0001FAE8]\U0001F600");
  CHECK(pieces("[\U0001F000-\U0001FFFF]+", "\U0001FAE8\U0001F600a") == "[\U0001FAE8\U0001F600]a");
  CHECK(pieces("[\\x{31350}-\\x{323AF}]", "\U00020000\U00031350") == "\U00020000[\U00031350]");
  CHECK(pieces("\\p{Han}+", "\U00020000\U00031350\U00011F04") == "[\U00020000\U00031350]\U00011F04");
  CHECK(pieces("[^\\x00-\\x{7F}]+", "a\U0001FAE8\u00e9") == "a[\U0001FAE8\u00e9]");
}

TEST_CASE("text/regex: what PCRE2 would read differently is refused with its offset") {
  CHECK(refusal("a\\hb") == "text: pre-tokenizer pattern, offset 1: \\h is not supported");
  CHECK(refusal("[a-z&&[^b]]") == "text: pre-tokenizer pattern, offset 4: an intersection of classes is not supported");
  CHECK(refusal("[a[b]]") == "text: pre-tokenizer pattern, offset 2: a class inside a class is not supported");
  CHECK(refusal("(*LIMIT_MATCH=9)a") == "text: pre-tokenizer pattern, offset 0: the group (*L is not supported");
  CHECK(refusal("(?m:a.b)").find("the group (?m") != std::string::npos);
  CHECK(refusal("(?C)a").find("the group (?C") != std::string::npos);
  CHECK(refusal("a(b").find("text: pre-tokenizer pattern: ") == 0);
  CHECK(refusal("a\\").find("a backslash at the end") != std::string::npos);
  CHECK(refusal(std::string(20'000, 'a')).find("20000 bytes") != std::string::npos);
  CHECK(refusal(std::string(500, '(') + std::string(500, ')')) != "accepted");
  CHECK(refusal("[[:alpha:]]+[]a](?<!x)(?>y)") == "accepted");
}

TEST_CASE("text/regex: a pattern that blows up gives an error, not a hang") {
  auto regex = Regex::compile("(a+)+$");
  REQUIRE_OK(regex);
  const std::string text = std::string(64, 'a') + "b";
  std::vector<Span> spans;
  const auto result = regex->split(text, 0, static_cast<uint32_t>(text.size()), spans);
  REQUIRE_FALSE(result);
  CHECK(result.error().code == Code::unsupported);
  CHECK(result.error().what.find("gave up at byte 0") != std::string::npos);
}

TEST_CASE("text/regex: quote makes any text match itself") {
  const std::string text = "a.b*c[d](e){f}\\^$|+?-#&~ g\n'\u4e2d";
  CHECK(pieces(Regex::quote(text), "<" + text + ">") == "<[" + text + "]>");
}
