// Converts token ids to text one at a time, for streaming. A token may end in the middle of a character, so up to 3
// bytes are held back until the character is complete. The joined results of all calls equal Tokenizer::decode() of
// all ids when the text starts here. An answer continues its prompt instead, and keeps the leading space that the
// start of a text loses (SentencePiece's forms).
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "text/tokenizer.h"

namespace mc::text {

enum class TextStart : uint8_t { here, before };

class Detokenizer {
 public:
  /// `tokenizer` outlives the detokenizer. One thread at a time may use it.
  explicit Detokenizer(const Tokenizer& tokenizer, bool skip_special = true, TextStart start = TextStart::here);

  /// The characters that this token completes; bytes that no later token can make valid are U+FFFD.
  std::string push(uint32_t id);
  std::string push(std::span<const uint32_t> ids);
  /// Ends the text. An unfinished character becomes U+FFFD. The next push() begins another text.
  std::string flush();
  /// The number of bytes held back. For tests.
  size_t pending_bytes() const { return pending_.size(); }

 private:
  void add(uint32_t id, std::string& out);
  void add_text(std::string_view text, std::string& out);
  void begin();

  const Tokenizer* tokenizer_;
  bool skip_special_;
  TextStart start_;
  bool first_ = false;       // the next token is the text's first
  uint32_t strip_left_ = 0;  // characters that the text's start may still lose
  std::string pending_;      // bytes of a character that is not whole
};

}  // namespace mc::text
