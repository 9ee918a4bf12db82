// The content of a model folder's tokenizer files as plain data, checked for form and bounds. The readers accept
// byte-level BPE (GPT-2, Llama 3, Qwen) and BPE over characters (SentencePiece's form with byte fallback: Llama 2,
// Mistral), and Unigram (T5, XLM-R). They refuse every other value by field and value. The readers are in spec.cc
// (model, added tokens, the smaller files), spec_steps.cc (the steps before and after the model), spec_ranks.cc
// (tiktoken, tekken.json) and spec_gguf.cc.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "unicode/unicode.h"

namespace mc::text {

struct AddedToken {
  std::string content;
  uint32_t id = 0;
  bool special = false;      // a control token: never produced from a user's text
  bool single_word = false;  // only between characters that are not word characters
  bool lstrip = false;       // takes the white space on its left with it
  bool rstrip = false;
  bool normalized = false;  // matched in the normalised text
};

struct NormalizerStep {
  enum class Kind : uint8_t { form, lowercase, prepend, replace, strip, strip_accents, nmt, charsmap };
  Kind kind = Kind::form;
  unicode::NormalForm form = unicode::NormalForm::nfc;
  std::string pattern = {};  // replace: a regular expression
  size_t literal_bytes = 0;  // replace: size of the only text that the pattern matches; 0: it matches several texts
  std::string content = {};  // prepend, replace; charsmap: SentencePiece's binary map (charsmap.h)
  bool left = false;         // strip: white space at the start, at the end
  bool right = false;
};

/// The syntax of a pattern: Oniguruma's (tokenizer.json, GGUF), or that of Rust's regex (tiktoken, tekken.json).
enum class PatternSyntax : uint8_t { ruby, rust };

enum class SplitBehavior : uint8_t { removed, isolated, merged_with_previous, merged_with_next, contiguous };

enum class PrependScheme : uint8_t { never, first, always };

/// One step of the pre-tokenizer, which works on the pieces of the step before it.
struct PreStep {
  enum class Kind : uint8_t {
    split,         // by a regular expression
    metaspace,     // a space becomes `mark`, which may be put in front, and starts a word
    prefix_space,  // a space in front of every piece without one
  };
  Kind kind = Kind::split;
  std::string pattern = {};
  PatternSyntax syntax = PatternSyntax::ruby;
  SplitBehavior behavior = SplitBehavior::isolated;
  bool invert = false;
  std::string mark = {};
  PrependScheme prepend = PrependScheme::never;
  bool split = true;  // metaspace: cut before each mark
};

/// One step from tokens to text.
struct DecoderStep {
  enum class Kind : uint8_t { byte_level, byte_fallback, fuse, replace, strip, metaspace };
  Kind kind = Kind::fuse;
  std::string pattern = {};  // replace: a regular expression
  std::string content = {};  // replace: the new text; strip: one character; metaspace: the mark
  uint32_t start = 0;        // strip: the most characters to remove at the start, at the end
  uint32_t stop = 0;
  PrependScheme prepend = PrependScheme::never;  // metaspace
};

struct Merge {
  uint32_t left = 0;
  uint32_t right = 0;
  uint32_t result = 0;
};

struct VocabEntry {
  std::string text;  // as the file spells it
  uint32_t id = 0;
};

struct TokenizerSpec {
  std::string source = "tokenizer.json";  // the file, for messages
  std::vector<VocabEntry> vocab;          // ids are unique
  std::vector<Merge> merges;              // by rank
  bool rank_is_id = false;                // the rank of a merge is the id of its result instead
  bool ignore_merges = false;
  bool unigram = false;                // the model is Unigram, and has no merges
  std::vector<double> scores = {};     // Unigram: by place in `vocab`, finite
  bool byte_fallback = false;          // a character without a token becomes the tokens <0xNN> of its bytes
  bool fuse_unk = false;               // neighbouring unknown characters become one unknown token
  std::string unk_token = {};          // empty: unknown characters vanish
  std::string continuing_prefix = {};  // spelt in front of every character of a word but the first
  std::string word_suffix = {};        // spelt behind the last character of a word
  std::vector<AddedToken> added;       // contents and ids are unique
  std::vector<NormalizerStep> normalizer;
  std::vector<PreStep> pre;
  bool byte_level = false;  // words reach the model spelt in the byte alphabet
  std::vector<DecoderStep> decoder;
  std::vector<uint32_t> prefix;  // ids that add_special puts in front and behind
  std::vector<uint32_t> suffix;
};

/// tokenizer_config.json, special_tokens_map.json and chat_template.jinja.
struct TokenizerConfig {
  std::string bos_token;  // empty: none
  std::string eos_token;
  std::string pad_token;
  std::vector<std::string> additional_special_tokens;
  std::optional<bool> add_bos_token;
  std::optional<bool> add_eos_token;
  std::vector<AddedToken> added;  // added_tokens_decoder
  std::string chat_template;      // Jinja source; empty: none
  std::string tool_template;      // the template named tool_use, for requests with tools; empty: none
};

/// The files' contents; an absent file is empty text. One of tokenizer.json, tekken.json and a rank file must be there;
/// the first of them counts.
struct TokenizerFiles {
  std::string tokenizer;
  std::string tekken;
  std::string ranks;       // a tiktoken file
  std::string ranks_name;  // its name without the folder
  std::string ranks_side;  // tiktoken.json
  std::string config;
  std::string special_tokens_map;
  std::string chat_template;
};

/// The end of a tiktoken file's name.
constexpr std::string_view kRanksSuffix = ".tiktoken";

/// invalid, corrupt or unsupported; the text starts with "tokenizer.json: " and names the field.
Result<TokenizerSpec> read_tokenizer_json(std::string_view text);
/// Reads the three smaller files. The .jinja file wins over a chat template in tokenizer_config.json.
Result<TokenizerConfig> read_tokenizer_config(const TokenizerFiles& files);

/// The end of ids and the longest token that a file may use, far above every known vocabulary.
constexpr uint32_t kTokenIdEnd = 1u << 22;
constexpr size_t kTokenBytesMax = 4096;

}  // namespace mc::text
