// The tables of a Tokenizer and the steps of encoding: added tokens, normalizer, words, model. The loader makes the
// tables from the files of a model folder, and they never change afterwards.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/added_tokens.h"
#include "text/decoder.h"
#include "text/normalizer.h"
#include "text/pre_tokenizer.h"
#include "text/vocabulary.h"
#include "text/word_model.h"
#include "text/work.h"

namespace mc::text {

struct TokenizerTables {
  TokenizerConfig config;
  AddedTokenMatcher raw_tokens;         // matched in the text before normalisation
  AddedTokenMatcher normalized_tokens;  // matched in the normalised text between those
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  std::unique_ptr<const WordModel> model;
  Decoder decoder;
  bool spell_words = false;      // the model wants words in the byte alphabet
  std::vector<uint32_t> prefix;  // the tokens that add_special puts in front and behind
  std::vector<uint32_t> suffix;
  std::optional<uint32_t> bos;
  std::optional<uint32_t> eos;
  size_t bytes_per_token = 0;  // the most bytes of text that one token covers; 0: no bound

  Vocabulary vocabulary;
  std::optional<Error> no_text = {};  // why the model has no tokenizer

  Result<void> encode(std::string_view text, std::span<const UserRange> user, Work& work,
                      std::vector<uint32_t>& out) const;
  Result<void> encode_piece(std::string_view text, bool first, std::span<const UserRange> user, Work& work,
                            std::vector<uint32_t>& out) const;
  /// `first`: the text's start is the input's.
  Result<void> encode_normalized(std::string_view text, bool first, std::span<const UserRange> user, Work& work,
                                 std::vector<uint32_t>& out) const;
  Result<void> encode_words(std::string_view text, bool first, Work& work, std::vector<uint32_t>& out) const;
};

/// The files of a folder; absent ones are empty. not_found: MC3001, there is no tokenizer.
Result<TokenizerFiles> read_tokenizer_files(const std::string& folder);
/// Errors as those of Tokenizer::parse, without their numbers.
Result<std::unique_ptr<const TokenizerTables>> load_tables(const TokenizerFiles& files);
Result<std::unique_ptr<TokenizerTables>> build_tables(TokenizerSpec spec, TokenizerConfig config);

}  // namespace mc::text
