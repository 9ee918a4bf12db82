// Tokenizers whose file lists byte strings by rank and no merges: tiktoken's rank files, and Mistral's tekken.json. Two
// neighbouring tokens merge when their bytes together are a token, the one of the lowest rank first, so the merges
// follow from the tokens. The rest of a tiktoken encoding (pattern, special tokens) follows from the file's name
// (cl100k_base, o200k_base, o200k_harmony, llama3, r50k_base, p50k_base, qwen), or stands in tiktoken.json beside it:
//   {"encoding": NAME}, or "pat_str", "special_tokens" {CONTENT: ID} and, if it has them, "normalizer" ("NFC"),
//   "bos_token" and "eos_token". What both give, the side file decides.
#pragma once

#include "base/result.h"
#include "text/spec.h"

namespace mc::text {

/// files.ranks with files.ranks_side. Fills the names of BOS and EOS where `config` has none. invalid, corrupt or
/// unsupported; the text starts with the file's name and names line or field.
Result<TokenizerSpec> read_ranks(const TokenizerFiles& files, TokenizerConfig& config);
/// files.tekken. As read_ranks().
Result<TokenizerSpec> read_tekken(const TokenizerFiles& files, TokenizerConfig& config);

}  // namespace mc::text
