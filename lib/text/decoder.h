// The decoder chain of tokenizer.json: from a token's spelling to the text it stands for. Every step but
// the last kind works on one token, so a token's text is made once, when the tokenizer is loaded:
//   ByteLevel     the bytes that the byte alphabet spells; a token may hold part of a character
//   ByteFallback  <0xNN> is that byte
//   Replace, Strip, Metaspace   one token's text
// The first token of a text loses Metaspace's mark, and the joined text loses characters in front (Strip after Fuse).
// The two are kept apart, because text that continues another text loses neither.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/regex.h"
#include "text/spec.h"

namespace mc::text {

class Decoder {
 public:
  struct Token {
    std::string text;
    bool byte = false;  // `text` is one byte of a run of such tokens
  };

  /// unsupported: a pattern.
  static Result<Decoder> build(const TokenizerSpec& spec);

  /// The text of a token with this spelling. `first`: the token stands at the start of a text. A replacement that
  /// exceeds its limits leaves the token unchanged.
  Token apply(std::string_view spelling, bool first) const;

  /// Whether tokens are bytes throughout (byte-level), or text between runs of single bytes.
  bool byte_level() const { return byte_level_; }
  /// Whether apply() depends on `first`.
  bool first_differs() const { return first_differs_; }
  /// The number of `strip_character` that a text loses at its start.
  uint32_t strip_count() const { return strip_count_; }
  std::string_view strip_character() const { return strip_character_; }

 private:
  struct Step {
    DecoderStep spec;
    std::optional<Regex> regex;
  };
  Decoder() = default;

  std::vector<Step> steps_;
  bool byte_level_ = false;
  bool first_differs_ = false;
  uint32_t strip_count_ = 0;
  std::string strip_character_;
};

}  // namespace mc::text
