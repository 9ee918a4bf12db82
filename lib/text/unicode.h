// Unicode properties and normalisation forms (utf8proc behind a fence). Input is always valid UTF-8.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace mc::text {

enum class NormalForm : uint8_t { nfc, nfd, nfkc, nfkd };

/// Unicode 14. The crate behind Hugging Face's tokenizers has older tables: texts in which one of 51
/// marks that Unicode has added since stands out of order come out differently there.
/// Linear in the length of the text, whatever it holds (utf8proc's own reordering of combining marks
/// is quadratic, and texts come from users).
std::string normalize(std::string_view text, NormalForm form);
/// Lower case by the unconditional mappings, character by character (no final sigma), as Rust's
/// char::to_lowercase.
std::string lowercase(std::string_view text);

/// White_Space.
bool is_space(char32_t c);
/// What \w matches in UTS #18: letters, marks, decimal digits, connectors, joiners.
bool is_word(char32_t c);
/// Trims what Python's str.strip() does: White_Space and U+001C..U+001F.
std::string_view strip(std::string_view text);

}  // namespace mc::text
