// The tokenizer converts text to token ids and back, by the model's files. It first cuts out added tokens. It
// then normalises the rest, cuts it into words with the pre-tokenizer, and encodes each word by BPE or Unigram. Ids
// equal those of Hugging Face's `tokenizers` (goldens under tests/golden/text) and of tiktoken.
//
// Control tokens: a prompt is a list of parts, the template's and the user's. Special tokens are only recognised in
// the template's bytes. In a user's text, "<|eos|>" is seven ordinary characters. Parts are joined before they are cut
// into words, so a prompt whose user text spells no special token gets the ids of its plain concatenation.
//
//   MC_TRY(tokenizer, text::Tokenizer::open("models/llama"));
//   MC_TRY(ids, tokenizer.encode("Hello"));                  // with BOS, if the model wants one
//   std::string text = tokenizer.decode(ids);
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/spec.h"
#include "text/work.h"

namespace mc::text {

/// A piece of a prompt; `user` text can never become a control token.
struct Part {
  std::string text;
  bool user = false;
  bool operator==(const Part&) const = default;
};

struct EncodeOptions {
  bool add_special = true;    // put BOS and the model's other such tokens around the text
  bool parse_special = true;  // recognise special tokens such as "<|eos|>"; off: the text counts as a user's
  EncodeLimits limits = {};   // tokens_max does not count the tokens of add_special
  Work* work = nullptr;       // the cost that the texts of one request share, made with the same limits
};

struct TokenizerTables;

class Tokenizer {
 public:
  /// The longest text that encode() takes.
  static constexpr size_t kTextBytesMax = size_t{16} << 20;

  /// Reads tokenizer.json, tekken.json or the *.tiktoken file (spec_ranks.h) and, where present,
  /// tokenizer_config.json, special_tokens_map.json and chat_template.jinja from the folder, or the metadata of a GGUF
  /// file. Nothing is executed or fetched.
  ///   not_found    MC3001, the folder has none of the three, or the GGUF file no tokenizer
  ///   invalid      MC3002, a file is malformed; the text names file and field
  ///   unsupported  MC3007, another kind of tokenizer; the text names field and value
  static Result<Tokenizer> open(const std::string& folder);
  /// open(), but a model without a tokenizer (MC3001), or with one of another kind (MC3007), gives a tokenizer that
  /// knows no text: encode() returns an error that names the cause, and ids have no text. Such a model serves token
  /// ids.
  static Result<Tokenizer> open_or_ids(const std::string& folder);
  /// The same as open() from the files' contents.
  static Result<Tokenizer> parse(const TokenizerFiles& files);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  /// Why no text can be encoded; null when it can.
  const Error* no_text() const;

  // All const functions may run on any number of threads at once.

  /// invalid: not UTF-8 ("text: input is not valid UTF-8 at byte 17"), or beyond kTextBytesMax. MC4005: more tokens
  /// than the limits allow. MC4028: the tokenizer's patterns take too long for this text. cancelled, timeout: by
  /// the limits.
  Result<std::vector<uint32_t>> encode(std::string_view text, EncodeOptions options = {}) const;
  /// A prompt made of parts. With add_special, the tokens in front are not added again when the template has already
  /// written them. invalid: as above, the offset counting from the start of the first part.
  Result<std::vector<uint32_t>> encode(std::span<const Part> parts, bool add_special = false,
                                       const EncodeLimits& limits = {}) const;

  /// The text of the ids; bytes that are not UTF-8 become U+FFFD. Unknown ids have no text. In a run of byte tokens
  /// (<0xNN>), each byte outside a valid character becomes one U+FFFD. Hugging Face's tokenizers also replace the
  /// valid characters of such a run.
  std::string decode(std::span<const uint32_t> ids, bool skip_special = true) const;
  /// The bytes of a token, which may be part of a character; empty for an unknown id. The view is valid as long as the
  /// tokenizer.
  std::string_view token_bytes(uint32_t id) const;
  /// The token as tokenizer.json spells it (byte alphabet, marks); empty for an unknown id. For tests.
  std::string token_spelling(uint32_t id) const;
  /// The token whose bytes these are; added tokens first. For tests.
  std::optional<uint32_t> token_to_id(std::string_view bytes) const;
  bool is_special(uint32_t id) const;
  /// One past the highest id. The model may have more rows; ids beyond have no text.
  uint32_t vocab_size() const;

  /// The most bytes that a text of this many tokens can have. SIZE_MAX where the tokenizer may drop any part of a
  /// text, because it strips or removes it or has no token for it.
  size_t text_bytes_max(size_t tokens) const;

  /// Declared by the tokenizer files; generation_config.json (the model's) may name more EOS ids. For tests.
  std::optional<uint32_t> bos_id() const;
  std::optional<uint32_t> eos_id() const;
  /// The token of characters without a token of their own. A user's text can yield it. For tests.
  std::optional<uint32_t> unk_id() const;
  const TokenizerConfig& config() const;

 private:
  friend class Detokenizer;
  static Result<Tokenizer> open_gguf(const std::string& path);
  explicit Tokenizer(std::unique_ptr<const TokenizerTables> tables);
  std::unique_ptr<const TokenizerTables> tables_;
};

}  // namespace mc::text
