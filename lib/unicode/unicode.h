// Unicode properties and normalisation forms (utf8proc behind a fence). Input is always valid UTF-8.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace mc::unicode {

enum class NormalForm : uint8_t { nfc, nfd, nfkc, nfkd };

/// The normal form of a text by the tables of Unicode 9, which the crate behind Hugging Face's tokenizers has.
/// Characters of later versions (utf8proc has Unicode 14) are neither changed, moved nor composed. The time is linear
/// in the length of any text; utf8proc's own reordering of combining marks is quadratic, and texts come from users.
std::string normalize(std::string_view text, NormalForm form);
/// The text in lower case by the unconditional mappings of each character (no final sigma), as Rust's
/// char::to_lowercase gives it.
std::string lowercase(std::string_view text);

/// Unicode's property White_Space.
bool is_space(char32_t c);
/// The class \w of UTS #18: letters, marks, decimal digits, connectors, joiners.
bool is_word(char32_t c);
/// Category M*.
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
