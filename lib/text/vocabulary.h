// The tokens of a tokenizer by id and by text: the bytes each stands for, and its spelling in tokenizer.json.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/decoder.h"
#include "text/spec.h"
#include "text/string_table.h"

namespace mc::text {

class Vocabulary {
 public:
  /// Enters all tokens of `spec`. A look-up by a text that two tokens share finds the added one. invalid: texts and
  /// spellings together exceed 64 MiB.
  static Result<Vocabulary> build(const TokenizerSpec& spec, const Decoder& decoder);

  /// One past the highest id.
  uint32_t size() const { return static_cast<uint32_t>(entries_.size()); }
  /// The bytes of the token; empty for an unknown id. The view is valid as long as the vocabulary.
  std::string_view text_of(uint32_t id) const;
  std::string_view spelling_of(uint32_t id) const;
  /// Whether the token is a single byte (<0xNN>).
  bool is_byte(uint32_t id) const { return id < size() && entries_[id].byte; }
  bool is_special(uint32_t id) const { return id < size() && entries_[id].special; }
  bool knows(uint32_t id) const { return id < size() && entries_[id].known; }
  std::optional<uint32_t> find(std::string_view text) const { return ids_.find(text); }

 private:
  /// Text and spelling lie in bytes_.
  struct Entry {
    uint32_t offset = 0;
    uint32_t spelling_offset = 0;
    uint16_t length = 0;
    uint16_t spelling_length = 0;
    bool known = false;
    bool special = false;
    bool byte = false;
  };

  Result<void> add(uint32_t id, const Decoder::Token& token, std::string_view spelling, bool special);

  std::string bytes_;
  std::vector<Entry> entries_;  // by id
  StringTable ids_;             // by text
};

}  // namespace mc::text
