// Token ids, one at a time, to text that can be sent at once: a token may end in the middle of a
// character, so bytes are held back (at most 3) until the character is whole. What all calls return,
// put together, is Tokenizer::decode() of all ids.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "text/tokenizer.h"

namespace mc::text {

class Detokenizer {
 public:
  /// `tokenizer` outlives this. One thread at a time.
  explicit Detokenizer(const Tokenizer& tokenizer, bool skip_special = true)
      : tokenizer_(&tokenizer), skip_special_(skip_special) {}

  /// The characters that this token completes; bytes that no later token can make valid are U+FFFD.
  std::string push(uint32_t id);
  std::string push(std::span<const uint32_t> ids);
  /// The end of the text: an unfinished character becomes U+FFFD. Ready for another text afterwards.
  std::string flush();
  /// Bytes held back.
  size_t pending_bytes() const { return pending_.size(); }

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_;
  std::string pending_;
};

}  // namespace mc::text
