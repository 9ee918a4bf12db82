// GPT-2's byte alphabet: tokenizer.json spells a byte-level token as text in which each of the 256
// bytes is one printable character. The 188 bytes that are printable in Latin-1 stand for themselves,
// the others are U+0100 onwards in the order of their values (the space is U+0120).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace mc::text {

/// The bytes that `token` (valid UTF-8) spells; nullopt when a character is outside the alphabet.
std::optional<std::string> bytes_spelt(std::string_view token);
/// The inverse: `bytes` spelt in the alphabet.
std::string spell_bytes(std::string_view bytes);

}  // namespace mc::text
