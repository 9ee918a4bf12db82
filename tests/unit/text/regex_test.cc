#include "text/regex.h"

#include "test.h"

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
