// The tokenizer of a GGUF file as the same plain data that tokenizer.json gives (spec.h). Three kinds are read:
//   gpt2   byte-level BPE: tokens, merges, and the name of the pre-tokenizer, whose patterns are in a table
//   llama  SentencePiece's BPE: tokens and scores; the merges are made from them as Hugging Face's converter does
//   t5     SentencePiece's Unigram: tokens, scores and the map of characters
// A GGUF file has no normalizer and no list of added tokens: both follow from the kind, the pre-tokenizer's name and
// the type of each token.
#pragma once

#include "base/result.h"
#include "gguf/gguf.h"
#include "text/spec.h"

namespace mc::text {

struct GgufTokenizer {
  TokenizerSpec spec;
  TokenizerConfig config;
};

/// not_found: the file has no tokenizer. invalid, unsupported: the text names the key and its value.
Result<GgufTokenizer> read_gguf_tokenizer(const gguf::File& file);

}  // namespace mc::text
