// Unicode properties and normalisation forms (utf8proc behind a fence). Input is always valid UTF-8.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace mc::unicode {

enum class NormalForm : uint8_t { nfc, nfd, nfkc, nfkd };

/// The normal form of a text by the tables of Unicode 9, which the crate behind Hugging Face's tokenizers has.
/// Characters of later versions (utf8proc 2.8 has Unicode 15) are neither changed, moved nor composed. The time is
/// linear in the length of any text; utf8proc's own reordering of combining marks is quadratic, and texts come from
/// users.
std::string normalize(std::string_view text, NormalForm form);
/// The text in lower case by the unconditional mappings of each character (no final sigma), as Rust's
/// char::to_lowercase gives it (Unicode 17).
std::string lowercase(std::string_view text);

/// Characters [first, last] whose category Unicode 16 knows and PCRE2's tables (Unicode 14) do not. Hugging
/// Face's tokenizers and tiktoken have Unicode 16. `stand_in` is an older character of the same category and the same
/// size in UTF-8, a Han character for Han characters. Whoever asks a library for a property asks for the stand-in's.
struct RecentRange {
  char32_t first, last, stand_in;
};
/// In order.
std::span<const RecentRange> recent_ranges();
/// The range that holds `c`; null for a character that the libraries know.
const RecentRange* recent_range(char32_t c);

/// The extended grapheme clusters of a text, one after the other, by the rules and properties of Unicode 17, which
/// Hugging Face's tokenizers have.
class Graphemes {
 public:
  /// `text` is valid UTF-8 and outlives the object.
  explicit Graphemes(std::string_view text) : rest_(text) {}
  /// Empty at the end.
  std::string_view next();

 private:
  std::string_view rest_;
};

/// Unicode's property White_Space.
bool is_space(char32_t c);
/// The class \w of UTS #18: letters, marks, decimal digits, connectors, joiners.
bool is_word(char32_t c);
/// The marks that Hugging Face's StripAccents removes: category M* by the tables of Unicode 9.
bool is_mark(char32_t c);
/// The categories that Python's str methods use.
bool is_letter(char32_t c);     // L*
bool is_decimal(char32_t c);    // Nd
bool is_numeric(char32_t c);    // N*
bool is_upper(char32_t c);      // Uppercase
bool is_lower(char32_t c);      // Lowercase
bool is_titlecase(char32_t c);  // Lt
bool is_printable(char32_t c);  // neither C* nor a separator other than the space
/// Full case mappings (one character may become up to three), without regard to neighbours.
std::u32string upper_of(char32_t c);
std::u32string lower_of(char32_t c);
std::u32string title_of(char32_t c);

}  // namespace mc::unicode
