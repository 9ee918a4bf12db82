// Regular expressions of pre-tokenizers, run by PCRE2 with UTF and Unicode properties and its JIT. They were written
// for Oniguruma (Ruby syntax) or for Rust's regex; they agree on what tokenizer files use, except that $ is a line's
// end for the first and the text's end for the second. Where a construct means something else in PCRE2, compile()
// rewrites it (\s, \w, ^ and $) or refuses it. Characters that PCRE2's tables of Unicode lack are matched as an older
// character of their kind (subject()). Patterns come from untrusted files and subjects from untrusted users: length,
// nesting and memory are bounded, and so is the processor time of all matches of one text together (text/work.h).
// Matching beyond that bound fails, it never hangs. A match is first tried in a window of a few bytes, which grows only
// when the match reaches the window's end. So a pattern that looks far ahead costs more for each match.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/spec.h"
#include "text/work.h"

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
  static Result<Regex> compile(std::string_view pattern, PatternSyntax syntax = PatternSyntax::ruby);
  /// The pattern that matches exactly this text.
  static std::string quote(std::string_view literal);

  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;
  ~Regex();

  /// The progress of a split of one range.
  struct Cursor {
    uint32_t begin = 0, end = 0;  // the range
    uint32_t from = 0;            // where the next search starts
    uint32_t last_end = 0;        // end of the last match, up to which the range is cut
    bool any = false;             // there was a match
    bool done = false;
    Cursor(uint32_t range_begin, uint32_t range_end)
        : begin(range_begin), end(range_end), from(range_begin), last_end(range_begin) {}
  };

  /// The text as the pattern is to see it, for the functions below: each character that PCRE2's tables lack becomes
  /// its stand-in (unicode::recent_ranges()), unless the pattern itself names one of the two. Sizes and borders of
  /// characters stay. The result is `text`, or `buffer` where something changes. Linear time.
  std::string_view subject(std::string_view text, std::string& buffer) const;

  /// Cuts text[begin, end) into matches and what lies between them, in order and without gaps, and
  /// appends them to `out`. The pattern sees nothing outside the range. `text` is a subject() of valid UTF-8, and the
  /// range lies on character borders. Any thread. MC4028: the matches take too long;
  /// cancelled, timeout: by the limits of `work`.
  Result<void> split(std::string_view text, uint32_t begin, uint32_t end, std::vector<Span>& out, Work& work) const;
  /// Goes on with a split: each call appends about `spans` pieces, until `cursor` is done.
  Result<void> split_some(std::string_view text, Cursor& cursor, size_t spans, std::vector<Span>& out,
                          Work& work) const;
  /// Splits any valid UTF-8 with a Work of its own.
  Result<void> split(std::string_view text, uint32_t begin, uint32_t end, std::vector<Span>& out) const;

 private:
  struct Program;
  explicit Regex(std::unique_ptr<const Program> program);
  std::unique_ptr<const Program> program_;
};

}  // namespace mc::text
