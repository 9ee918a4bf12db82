#include "text/charsmap.h"

#include "unicode/unicode.h"
#include "unicode/utf8.h"

namespace mc::text {
namespace {

constexpr size_t kWholeGrapheme = 6;  // the bytes from which a grapheme is mapped by its characters

uint32_t read_u32(std::string_view bytes, size_t at) {
  uint32_t out = 0;
  for (size_t i = 4; i-- > 0;) out = out << 8 | static_cast<uint8_t>(bytes[at + i]);
  return out;
}

// The fields of a unit of darts-clone's array.
bool has_leaf(uint32_t unit) {
  return (unit >> 8 & 1) != 0;
}
uint32_t value_of(uint32_t unit) {
  return unit & 0x7FFFFFFF;
}
uint32_t label_of(uint32_t unit) {
  return unit & 0x800000FF;
}
uint32_t offset_of(uint32_t unit) {
  return unit >> 10 << ((unit & 1u << 9) >> 6);
}

}  // namespace

Result<Charsmap> Charsmap::read(std::string_view bytes) {
  const auto wrong = [](const std::string& what) {
    return Error{Code::corrupt, "normalizer.precompiled_charsmap " + what};
  };
  if (bytes.size() < 4) return wrong("has " + std::to_string(bytes.size()) + " bytes");
  const uint32_t size = read_u32(bytes, 0);
  bytes.remove_prefix(4);
  if (size < 4 || size % 4 != 0 || size > bytes.size())
    return wrong("has an array of " + std::to_string(size) + " bytes in " + std::to_string(bytes.size()));
  Charsmap out;
  out.units_.resize(size / 4);
  for (size_t i = 0; i < out.units_.size(); ++i) out.units_[i] = read_u32(bytes, i * 4);
  out.texts_ = bytes.substr(size);
  if (const auto at = find_invalid_utf8(out.texts_)) return wrong("has a text that is not UTF-8");
  return out;
}

/// The text for the shortest string of the map that `piece` starts with.
std::optional<std::string_view> Charsmap::find(std::string_view piece) const {
  size_t node = offset_of(units_[0]);
  for (char c : piece) {
    const auto byte = static_cast<uint8_t>(c);
    if (byte == 0) break;
    node ^= byte;
    if (node >= units_.size() || label_of(units_[node]) != byte) return std::nullopt;
    const uint32_t unit = units_[node];
    node ^= offset_of(unit);
    if (!has_leaf(unit)) continue;
    const size_t begin = node < units_.size() ? value_of(units_[node]) : texts_.size();
    // A crafted offset could lie inside a character.
    if (begin >= texts_.size() || (static_cast<uint8_t>(texts_[begin]) & 0xC0) == 0x80) return std::nullopt;
    const size_t end = texts_.find('\0', begin);
    return std::string_view(texts_).substr(begin, end == std::string::npos ? end : end - begin);
  }
  return std::nullopt;
}

std::string Charsmap::apply(std::string_view text, size_t bytes_max) const {
  std::string out;
  out.reserve(text.size());
  unicode::Graphemes graphemes(text);
  for (std::string_view grapheme = graphemes.next(); !grapheme.empty() && out.size() <= bytes_max;
       grapheme = graphemes.next()) {
    if (grapheme.size() < kWholeGrapheme)
      if (const auto mapped = find(grapheme)) {
        out += *mapped;
        continue;
      }
    for (size_t at = 0; at < grapheme.size() && out.size() <= bytes_max;) {
      const std::string_view character = grapheme.substr(at, unicode::decode_utf8(grapheme.substr(at)).bytes);
      out += find(character).value_or(character);
      at += character.size();
    }
  }
  return out;
}

}  // namespace mc::text
