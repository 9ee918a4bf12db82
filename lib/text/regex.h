// Regular expressions of pre-tokenizers, run by PCRE2 with UTF and Unicode properties and its JIT.
// They were written for Oniguruma (Ruby syntax); the two agree on what tokenizer.json files use. Where
// a construct means something else in PCRE2, compile() rewrites it (\s, \w, ^ and $) or refuses it.
// Patterns come from untrusted files and subjects from untrusted users: length, nesting, backtracking
// steps and memory are bounded, and a match that exceeds them is an error, never a hang.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace mc::text {

/// A range of bytes of the text being tokenised, and whether the pattern matched it.
struct Span {
  uint32_t begin = 0;
  uint32_t end = 0;
  bool match = false;
  bool operator==(const Span&) const = default;
};

class Regex {
 public:
  /// unsupported: not a valid pattern, or one that PCRE2 reads differently; names the offset.
  static Result<Regex> compile(std::string_view pattern);
  /// The pattern that matches exactly this text.
  static std::string quote(std::string_view literal);

  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;
  ~Regex();

  /// Cuts text[begin, end) into matches and what lies between them, in order and without gaps, and
  /// appends them to `out`. The pattern sees nothing outside the range. `text` is valid UTF-8 and the
  /// range lies on character borders. Any thread. unsupported: the match exceeded its limits.
  Result<void> split(std::string_view text, uint32_t begin, uint32_t end, std::vector<Span>& out) const;

 private:
  struct Program;
  explicit Regex(std::unique_ptr<const Program> program);
  std::unique_ptr<const Program> program_;
};

}  // namespace mc::text
