// SentencePiece's map of characters applied to graphemes. The expected texts are those of the normalizer
// "Precompiled" of Hugging Face's tokenizers 0.23.3 with this map.
#include "text/charsmap.h"

#include <array>

#include "test.h"

namespace charsmap_test {

using namespace mc;
using namespace mc::text;

namespace {

/// A map that has "o" for each character. A grapheme of less than 6 bytes becomes one "o", and a longer grapheme
/// becomes one "o" for each character.
Charsmap map_of_all() {
  constexpr uint32_t kFirst = 256, kLeaf = 768, kLast = 1024, kTwoLeft = 1280, kThreeLeft = 1536, kHasLeaf = 1 << 8;
  std::array<uint32_t, 2048> units{};
  const auto put = [&](uint32_t node, uint32_t label, uint32_t child) {
    units[node ^ label] = label | (child == kLeaf ? kHasLeaf : 0) | (node ^ label ^ child) << 10;
  };
  units[0] = kFirst << 10;
  units[kLeaf] = uint32_t{1} << 31;  // the text at offset 0
  for (uint32_t label = 0x01; label < 0x80; ++label) put(kFirst, label, kLeaf);
  for (uint32_t label = 0xC2; label < 0xE0; ++label) put(kFirst, label, kLast);
  for (uint32_t label = 0xE0; label < 0xF0; ++label) put(kFirst, label, kTwoLeft);
  for (uint32_t label = 0xF0; label < 0xF5; ++label) put(kFirst, label, kThreeLeft);
  for (uint32_t label = 0x80; label < 0xC0; ++label) {
    put(kLast, label, kLeaf);
    put(kTwoLeft, label, kLast);
    put(kThreeLeft, label, kTwoLeft);
  }
  std::string bytes;
  const auto append = [&](uint32_t value) {
    for (int shift = 0; shift < 32; shift += 8) bytes += static_cast<char>(value >> shift);
  };
  append(units.size() * 4);
  for (uint32_t unit : units) append(unit);
  auto out = Charsmap::read(bytes + "o");
  REQUIRE_OK(out);
  return std::move(*out);
}

}  // namespace

TEST_CASE("text/charsmap: a grapheme of less than 6 bytes is mapped whole and a longer one by its characters") {
  const Charsmap map = map_of_all();
  const auto mapped = [&](std::string_view text) { return map.apply(text, 100); };
  CHECK(mapped("ab") == "oo");
  CHECK(mapped("a\u0306\u0306") == "o");
  CHECK(mapped("a\u0306\u0306\u0306") == "oooo");
  // Marks of Unicode 17.
  CHECK(mapped("a\u1acf") == "o");
  CHECK(mapped("a\u0306\u1acf") == "ooo");
  CHECK(mapped("a\U0001e6ee") == "o");
  // A virama between two consonants joins them.
  CHECK(mapped("\u0915\u0300") == "o");
  CHECK(mapped("\u0915\u094d\u0915\u0300") == "oooo");
  CHECK(mapped("\u0915\u094d\u200c\u0915\u0300") == "oooo");
  // U+2605 was a pictograph before Unicode 17, and pictographs are joined.
  CHECK(mapped("\u2600\u200d\u00a9\u0300") == "oooo");
  CHECK(mapped("\u2605\u200d\u00a9\u0300") == "ooo");
  // Unassigned characters that are controls, and a vowel of Unicode 16.
  CHECK(mapped("\u2065\u0300\u0300") == "oo");
  CHECK(mapped("\U00016d63\u11a8\u0300") == "ooo");
}

}  // namespace charsmap_test
