#include "unicode/utf8.h"

#include "base/assert.h"
#include "base/errors.h"

namespace mc::unicode {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

/// The properties of a lead byte (Unicode 15, table 3-7): the character's length, and the range of the second byte.
struct Lead {
  uint32_t bytes = 0;  // 0: no character starts with this byte
  uint8_t low = 0x80;
  uint8_t high = 0xBF;
};

Lead lead_of(uint8_t byte) {
  if (byte < 0x80) return {1};
  if (byte < 0xC2) return {};
  if (byte < 0xE0) return {2};
  if (byte < 0xF0) return {3, uint8_t(byte == 0xE0 ? 0xA0 : 0x80), uint8_t(byte == 0xED ? 0x9F : 0xBF)};
  if (byte < 0xF5) return {4, uint8_t(byte == 0xF0 ? 0x90 : 0x80), uint8_t(byte == 0xF4 ? 0x8F : 0xBF)};
  return {};
}

/// The size of the longest prefix of `bytes` that begins a valid character. `whole`: the prefix is a complete
/// character.
uint32_t valid_start(std::string_view bytes, bool& whole) {
  const Lead lead = lead_of(static_cast<uint8_t>(bytes[0]));
  whole = lead.bytes == 1;
  if (lead.bytes < 2) return lead.bytes;
  for (uint32_t i = 1; i < lead.bytes; ++i) {
    if (i == bytes.size()) return i;
    const auto byte = static_cast<uint8_t>(bytes[i]);
    if (byte < (i == 1 ? lead.low : 0x80) || byte > (i == 1 ? lead.high : 0xBF)) return i;
  }
  whole = true;
  return lead.bytes;
}

}  // namespace

Error not_utf8(size_t offset) {
  return user_error(err::kInputNotUtf8, "text: input is not valid UTF-8 at byte " + std::to_string(offset));
}

Result<void> check_utf8(std::string_view text) {
  if (const auto offset = find_invalid_utf8(text)) return not_utf8(*offset);
  return {};
}

CodePoint decode_utf8(std::string_view text) {
  MC_ASSERT(!text.empty());
  const auto byte = [&](size_t i) { return static_cast<char32_t>(static_cast<uint8_t>(text[i])); };
  const uint32_t length = lead_of(static_cast<uint8_t>(text[0])).bytes;
  MC_ASSERT(length > 0 && length <= text.size());
  switch (length) {
    case 1: return {byte(0), 1};
    case 2: return {(byte(0) & 0x1F) << 6 | (byte(1) & 0x3F), 2};
    case 3: return {(byte(0) & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F), 3};
    default: return {(byte(0) & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F), 4};
  }
}

CodePoint decode_utf8_back(std::string_view text) {
  size_t start = text.size() - 1;
  while (start > 0 && (static_cast<uint8_t>(text[start]) & 0xC0) == 0x80) --start;
  return decode_utf8(text.substr(start));
}

void append_utf8(std::string& out, char32_t value) {
  const auto tail = [&](int shift) { out.push_back(static_cast<char>(0x80 | (value >> shift & 0x3F))); };
  if (value < 0x80) {
    out.push_back(static_cast<char>(value));
  } else if (value < 0x800) {
    out.push_back(static_cast<char>(0xC0 | value >> 6));
    tail(0);
  } else if (value < 0x10000) {
    out.push_back(static_cast<char>(0xE0 | value >> 12));
    tail(6);
    tail(0);
  } else {
    out.push_back(static_cast<char>(0xF0 | value >> 18));
    tail(12);
    tail(6);
    tail(0);
  }
}

size_t append_lossy_utf8(std::string& out, std::string_view bytes, bool final, bool each_byte) {
  size_t at = 0;
  while (at < bytes.size()) {
    bool whole = false;
    const uint32_t length = valid_start(bytes.substr(at), whole);
    if (whole) {
      out.append(bytes.substr(at, length));
      at += length;
      continue;
    }
    if (!final && length > 0 && at + length == bytes.size()) break;
    const uint32_t skipped = length > 0 ? length : 1;
    for (uint32_t i = 0; i < (each_byte ? skipped : 1); ++i) out.append(kReplacement);
    at += skipped;
  }
  return at;
}

}  // namespace mc::unicode
