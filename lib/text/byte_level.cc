#include "text/byte_level.h"

#include "unicode/utf8.h"

namespace mc::text {
namespace {

constexpr bool is_self(int byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

constexpr int kAlphabetEnd = 256 + 68;

struct Alphabet {
  std::array<char16_t, 256> chars{};
  std::array<int16_t, kAlphabetEnd> bytes{};
};

constexpr Alphabet make_alphabet() {
  Alphabet alphabet;
  alphabet.bytes.fill(-1);
  int next = 256;
  for (int byte = 0; byte < 256; ++byte) {
    const int c = is_self(byte) ? byte : next++;
    alphabet.chars[byte] = static_cast<char16_t>(c);
    alphabet.bytes[c] = static_cast<int16_t>(byte);
  }
  return alphabet;
}

constexpr Alphabet kAlphabet = make_alphabet();
static_assert(kAlphabet.chars[' '] == 0x120 && kAlphabet.chars[0xAD] == kAlphabetEnd - 1);

}  // namespace

std::optional<std::string> bytes_spelt(std::string_view token) {
  std::string out;
  for (size_t at = 0; at < token.size();) {
    const unicode::CodePoint c = unicode::decode_utf8(token.substr(at));
    if (c.value >= kAlphabetEnd || kAlphabet.bytes[c.value] < 0) return std::nullopt;
    out.push_back(static_cast<char>(kAlphabet.bytes[c.value]));
    at += c.bytes;
  }
  return out;
}

std::string spell_bytes(std::string_view bytes) {
  std::string out;
  for (char byte : bytes) unicode::append_utf8(out, kAlphabet.chars[static_cast<uint8_t>(byte)]);
  return out;
}

}  // namespace mc::text
