// What a Tokenizer holds; between tokenizer.cc, which uses it, and tokenizer_load.cc, which fills it.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/decoder.h"
#include "text/normalizer.h"
#include "text/pre_tokenizer.h"
#include "text/string_table.h"
#include "text/tokenizer.h"
#include "text/work.h"

namespace mc::text {

/// What stands for an id; text and spelling lie in Tables::bytes.
struct TokenText {
  uint32_t offset = 0;
  uint32_t spelling_offset = 0;
  uint16_t length = 0;
  uint16_t spelling_length = 0;
  bool known = false;
  bool special = false;
  bool byte = false;  // one byte of a run (<0xNN>)
};

/// Limit on all texts and spellings. The largest vocabularies need a tenth of it; a crafted decoder could make each of
/// millions of tokens kTokenBytesMax long.
constexpr size_t kTablesBytesMax = size_t{64} << 20;
static_assert(kTablesBytesMax <= UINT32_MAX && kTokenBytesMax <= UINT16_MAX);  // TokenText's fields

struct Tokenizer::Tables {
  TokenizerConfig config;
  AddedTokenMatcher raw_tokens;         // matched in the text as it comes
  AddedTokenMatcher normalized_tokens;  // matched in the normalised text between those
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  Bpe bpe;
  Decoder decoder;
  bool spell_words = false;      // the model wants words in the byte alphabet
  std::vector<uint32_t> prefix;  // what add_special puts in front and behind
  std::vector<uint32_t> suffix;
  std::optional<uint32_t> bos;
  std::optional<uint32_t> eos;
  size_t bytes_per_token = 0;  // of the text, at most; 0: any number

  std::string bytes;             // of all tokens: texts and spellings
  std::vector<TokenText> texts;  // by id
  StringTable ids;               // by text

  /// invalid: texts and spellings together exceed kTablesBytesMax.
  Result<void> add_text(uint32_t id, const Decoder::Token& token, std::string_view spelling, bool special);
  Result<void> index(const TokenizerSpec& spec);

  std::string_view text_of(uint32_t id) const {
    return id < texts.size() ? std::string_view(bytes).substr(texts[id].offset, texts[id].length) : std::string_view();
  }

  std::string_view spelling_of(uint32_t id) const {
    if (id >= texts.size()) return {};
    return std::string_view(bytes).substr(texts[id].spelling_offset, texts[id].spelling_length);
  }

  Result<void> encode(std::string_view text, std::span<const UserRange> user, Work& work,
                      std::vector<uint32_t>& out) const;
  Result<void> encode_piece(std::string_view text, bool first, std::span<const UserRange> user, Work& work,
                            std::vector<uint32_t>& out) const;
  /// `first`: the text's start is the input's.
  Result<void> encode_normalized(std::string_view text, bool first, std::span<const UserRange> user, Work& work,
                                 std::vector<uint32_t>& out) const;
  Result<void> encode_words(std::string_view text, bool first, Work& work, std::vector<uint32_t>& out) const;
};

}  // namespace mc::text
