#include "unicode/utf8.h"

#include "test.h"
#include "unicode/unicode.h"

using namespace mc;
using namespace mc::unicode;

TEST_CASE("unicode/utf8: the error names the first bad byte") {
  const auto check = [](std::string_view bytes) {
    const auto result = check_utf8(bytes);
    return result ? std::string("ok") : result.error().what;
  };
  CHECK(check("abc \xE4\xB8\xAD") == "ok");
  CHECK(check("seventeen bytes..\xFF") == "text: input is not valid UTF-8 at byte 17");
  CHECK(check("a\xC0\x80") == "text: input is not valid UTF-8 at byte 1");         // overlong
  CHECK(check("\xED\xA0\x80") == "text: input is not valid UTF-8 at byte 0");      // surrogate
  CHECK(check("\xF4\x90\x80\x80") == "text: input is not valid UTF-8 at byte 0");  // above U+10FFFF
  CHECK(check("ab\xE4\xB8") == "text: input is not valid UTF-8 at byte 2");        // cut off
}

TEST_CASE("unicode/utf8: every scalar value survives encoding and decoding from both ends") {
  for (char32_t c = 0; c < 0x110000; c += c < 0x3000 ? 1 : 61) {
    if (c >= 0xD800 && c < 0xE000) continue;
    std::string text = "\xE4\xB8\xAD";
    append_utf8(text, c);
    CHECK_FALSE(find_invalid_utf8(text).has_value());
    CHECK(decode_utf8(std::string_view(text).substr(3)).value == c);
    CHECK(decode_utf8_back(text).value == c);
  }
}

TEST_CASE("unicode/utf8: each maximal invalid piece becomes one U+FFFD, and an unfinished end waits") {
  const auto lossy = [](std::string_view bytes, bool final) {
    std::string out;
    const size_t used = append_lossy_utf8(out, bytes, final);
    return out + "|" + std::to_string(used);
  };
  const std::string r = "\xEF\xBF\xBD";
  CHECK(lossy("a\xE4\xB8\xAD", false) == "a\xE4\xB8\xAD|4");
  CHECK(lossy("a\xE4\xB8", false) == "a|1");
  CHECK(lossy("a\xE4\xB8", true) == "a" + r + "|3");
  CHECK(lossy("\xE4\xB8 ", false) == r + " |3");
  CHECK(lossy("\xF0\x9F\x99", false) == "|0");
  CHECK(lossy("\xF0\x9F\x99", true) == r + "|3");
  CHECK(lossy("\xED\xA0\x80", false) == r + r + r + "|3");  // no character starts like a surrogate
  CHECK(lossy("\xC0\xAF\xFF", false) == r + r + r + "|3");
  CHECK(lossy("\xF4\x90", false) == r + r + "|2");
  CHECK(lossy("\x80\xBF", true) == r + r + "|2");
}

TEST_CASE(
    "unicode/unicode: what Unicode added after version 9 is neither moved nor composed, as in Hugging Face's crate") {
  for (const char* stays : {" \u089e\u08e6", "e\u089e\u0301", "e\u1abf\u0323\u0302", "\U00011935\U00011930",
                            "\U00011938", "a\U0001e130\u0316", "e\U0001e08f\u0323", "a\U00010efd\u0334"})
    CHECK(normalize(stays, NormalForm::nfc) == stays);
  for (const char* stays : {"\u32ff", "\ua7f2", "\U00010781", "\U0001fbf0", "\U00011938"})
    CHECK(normalize(stays, NormalForm::nfkd) == stays);
  CHECK(normalize("e\u0301\u089eo\u0301", NormalForm::nfc) == "\u00e9\u089e\u00f3");
  CHECK(normalize("e\u08e6\u08e4", NormalForm::nfc) == "e\u08e6\u08e4");
  CHECK(normalize("e\u08e4\u08e6", NormalForm::nfc) == "e\u08e6\u08e4");  // older marks are ordered
}

TEST_CASE("unicode/unicode: the four forms of the standard's examples") {
  CHECK(normalize("e\u0301", NormalForm::nfc) == "\u00e9");
  CHECK(normalize("\u00e9", NormalForm::nfd) == "e\u0301");
  CHECK(normalize("\u1e9b\u0323", NormalForm::nfc) == "\u1e9b\u0323");
  CHECK(normalize("\u1e9b\u0323", NormalForm::nfd) == "\u017f\u0323\u0307");
  CHECK(normalize("\u1e9b\u0323", NormalForm::nfkc) == "\u1e69");
  CHECK(normalize("\u1e9b\u0323", NormalForm::nfkd) == "s\u0323\u0307");
  CHECK(normalize("\u1112\u1161\u11ab", NormalForm::nfc) == "\ud55c");
  CHECK(normalize("\ud55c", NormalForm::nfd) == "\u1112\u1161\u11ab");
  CHECK(normalize("plain ASCII", NormalForm::nfkd) == "plain ASCII");
}

TEST_CASE("unicode/unicode: half a million combining marks out of order are put in order") {
  std::string marks = "e", sorted = "e";
  for (int i = 0; i < 250'000; ++i) marks += "\u0301\u0323";
  for (int i = 0; i < 250'000; ++i) sorted += "\u0323";
  for (int i = 0; i < 250'000; ++i) sorted += "\u0301";
  CHECK(normalize(marks, NormalForm::nfd) == sorted);
}

TEST_CASE("unicode/unicode: lower case is per character") {
  CHECK(lowercase("ABC \u00c9\u0130\u03a3") == "abc \u00e9i\u0307\u03c3");
}

TEST_CASE("unicode/unicode: lower case, marks and word characters are those of Hugging Face's versions of Unicode") {
  CHECK(lowercase("\u1c89\ua7cb\ua7dc\U00010d50\U00010d65\U00016ea0") ==
        "\u1c8a\u0264\u019b\U00010d70\U00010d85\U00016ebb");
  CHECK(is_mark(0x300));
  CHECK_FALSE(is_mark(0x898));  // a mark since Unicode 14
  CHECK(is_mark(0x1cf2));       // a letter since Unicode 12
  CHECK(is_word(0x1e4d0));
  CHECK(is_word(0x31350));
  CHECK_FALSE(is_word(0x1fae8));
}

TEST_CASE("unicode/unicode: a stand-in is a known character of the same size") {
  char32_t before = 0;
  for (const RecentRange& range : recent_ranges()) {
    CHECK(range.first > before);
    CHECK(range.last >= range.first);
    before = range.last;
    std::string first, last, stand_in;
    append_utf8(first, range.first);
    append_utf8(last, range.last);
    append_utf8(stand_in, range.stand_in);
    CHECK(first.size() == stand_in.size());
    CHECK(last.size() == stand_in.size());
    CHECK(recent_range(range.stand_in) == nullptr);
    CHECK(recent_range(range.first) == &range);
    CHECK(recent_range(range.last) == &range);
  }
  CHECK(recent_range('a') == nullptr);
  CHECK(recent_range(0x10FFFF) == nullptr);
}

TEST_CASE("unicode/unicode: graphemes keep marks, joined emoji, line ends and syllables whole") {
  const auto graphemes = [](std::string_view text) {
    std::string out;
    Graphemes parts(text);
    for (std::string_view part = parts.next(); !part.empty(); part = parts.next()) out += "[" + std::string(part) + "]";
    return out;
  };
  CHECK(graphemes("") == "");
  CHECK(graphemes("ab\r\nc") == "[a][b][\r\n][c]");
  CHECK(graphemes("e\u0301x\u0897") == "[e\u0301][x\u0897]");
  CHECK(graphemes("\U0001F468\u200d\U0001F469\U0001F642") == "[\U0001F468\u200d\U0001F469][\U0001F642]");
  CHECK(graphemes("\u1112\u1161\u11ab\u1112") == "[\u1112\u1161\u11ab][\u1112]");
  CHECK(graphemes("\uac00\u11a8\uac01\u1161") == "[\uac00\u11a8][\uac01][\u1161]");
  CHECK(graphemes("\u1100\uac01\u11a8") == "[\u1100\uac01\u11a8]");
  CHECK(graphemes("\u0915\u094d\u200d\u0937\u093f\u0915") == "[\u0915\u094d\u200d\u0937\u093f][\u0915]");
  CHECK(graphemes("\u0600a\u00ad\u0301") == "[\u0600a][\u00ad][\u0301]");
  CHECK(graphemes("\U0001F1EB\U0001F1F7\U0001F1E9\U0001F1EA\U0001F1EA") ==
        "[\U0001F1EB\U0001F1F7][\U0001F1E9\U0001F1EA][\U0001F1EA]");
  CHECK(graphemes("\u00a9\u0301\u200d\u00a9\u200d\u200d\u00a9") == "[\u00a9\u0301\u200d\u00a9\u200d\u200d][\u00a9]");
  CHECK(graphemes("\r\r\n\u0301") == "[\r][\r\n][\u0301]");
}

TEST_CASE("unicode/unicode: graphemes have the properties of Unicode 17") {
  const auto count = [](std::string_view text) {
    size_t out = 0;
    Graphemes parts(text);
    while (!parts.next().empty()) ++out;
    return out;
  };
  CHECK(count("a\u1acf\u1add\u1ae0\u1aeb") == 1);                         // marks
  CHECK(count("\U00016d63\u11a8") == 1);                                  // a vowel of Kirat Rai
  CHECK(count("\u2605\u200d\u2600") == 2);                                // a star that is no pictograph any more
  CHECK(count("\u1780\u17d2\u1781") == 1);                                // a conjunct of Khmer
  CHECK(count("\u0915\u094d\u200c\u0937") == 2);                          // U+200C ends a conjunct
  CHECK(count(std::string(1, '\0') + "\u0301" + std::string(2, '\0')) == 4);  // zero bytes are controls
}
