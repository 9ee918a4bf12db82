// SentencePiece's compiled map of characters (nmt_nfkc and others), the normalizer "Precompiled" of tokenizer.json: a
// double array (darts-clone) from byte strings to offsets, and the texts at these offsets, each ended by a zero byte.
// It is applied as Hugging Face's spm_precompiled does: to a whole grapheme of less than 6 bytes, where the map has a
// string that the grapheme starts with (the shortest), otherwise to each of its characters. The map is untrusted.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace mc::text {

class Charsmap {
 public:
  /// The bytes of the map: a size (u32, little-endian), the array of that size, the texts. corrupt.
  static Result<Charsmap> read(std::string_view bytes);

  /// The mapped text. It may end early once it is longer than `bytes_max`. Linear time for any map whose texts are
  /// short; no longer than the result otherwise.
  std::string apply(std::string_view text, size_t bytes_max) const;

 private:
  std::optional<std::string_view> find(std::string_view piece) const;

  std::vector<uint32_t> units_;
  std::string texts_;
};

}  // namespace mc::text
