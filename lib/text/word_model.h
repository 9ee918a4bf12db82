// The model of a tokenizer: the tokens of one word, by BPE (bpe.h) or Unigram (unigram.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/work.h"

namespace mc::text {

class WordModel {
 public:
  virtual ~WordModel() = default;
  /// Whether encode() takes a byte-level word as plain bytes. Otherwise it takes words spelt in the byte alphabet.
  virtual bool takes_bytes() const = 0;
  /// The token of unknown characters.
  virtual std::optional<uint32_t> unknown() const = 0;
  /// Whether every character without a token becomes the tokens of its bytes.
  virtual bool has_all_bytes() const = 0;
  /// Searches over a text whose time is bounded like that of a pattern.
  virtual size_t searches() const = 0;
  /// Appends the ids of one non-empty word, which is, or spells, a part of valid UTF-8 text. A long word may remain
  /// incomplete when the bounds of `work` are reached. Work::check() then fails. MC4028: a search takes too long;
  /// cancelled, timeout: by the limits.
  virtual Result<void> encode(std::string_view word, Work& work, std::vector<uint32_t>& out) const = 0;
};

}  // namespace mc::text
