// Extended grapheme clusters (UAX #29, rules GB3 to GB999) with the table of the unicode-segmentation crate.
#include <algorithm>
#include <iterator>

#include "unicode/unicode.h"
#include "unicode/utf8.h"

namespace mc::unicode {
namespace {

enum class Break : uint8_t {
  other,
  control,
  extend,    // joins the character before it, also between the consonants of a conjunct
  unlinked,  // joins the character before it, but ends a conjunct
  linker,    // the virama that joins two consonants of a conjunct
  joiner,    // U+200D
  spacing,
  prepend,
  consonant,
  pictograph,
  regional,
  leading,  // of a Hangul syllable: a jamo L, V or T, or a syllable LV or LVT
  vowel,
  trailing,
  open_syllable,
  closed_syllable,
  carriage_return,
  line_feed,
};

struct BreakRow {
  char32_t first, last;
  Break kind;
};
#include "unicode/breaks.inc"

Break break_of(char32_t c) {
  using enum Break;
  if (c >= ' ' && c < 0x7F) return other;
  if (c == '\r') return carriage_return;
  if (c == '\n') return line_feed;
  constexpr char32_t kSyllables = 0xAC00, kSyllablesEnd = 0xD7A4, kTrailing = 28;
  if (c >= kSyllables && c < kSyllablesEnd) return (c - kSyllables) % kTrailing == 0 ? open_syllable : closed_syllable;
  const auto* row = std::lower_bound(std::begin(kBreaks), std::end(kBreaks), c,
                                     [](const BreakRow& r, char32_t value) { return r.last < value; });
  return row != std::end(kBreaks) && row->first <= c ? row->kind : other;
}

bool ends_a_line(Break kind) {
  using enum Break;
  return kind == control || kind == carriage_return || kind == line_feed;
}
bool extends(Break kind) {
  using enum Break;
  return kind == extend || kind == unlinked || kind == linker || kind == joiner;
}

/// Rules GB6 to GB8.
bool is_syllable(Break before, Break after) {
  using enum Break;
  switch (before) {
    case leading: return after == leading || after == vowel || after == open_syllable || after == closed_syllable;
    case vowel:
    case open_syllable: return after == vowel || after == trailing;
    case trailing:
    case closed_syllable: return after == trailing;
    default: return false;
  }
}

/// The characters of a grapheme so far, as far as the rules look back.
class Cluster {
 public:
  bool takes(Break after) const {
    using enum Break;
    if (before_ == carriage_return && after == line_feed) return true;
    if (ends_a_line(before_) || ends_a_line(after)) return false;
    if (extends(after) || after == spacing || before_ == prepend || is_syllable(before_, after)) return true;
    if (after == consonant) return conjunct_ == Conjunct::linked;
    if (after == pictograph) return has_picture_ && before_ == joiner;
    return after == regional && regionals_ % 2 == 1;
  }

  void add(Break kind) {
    using enum Break;
    if (kind == consonant)
      conjunct_ = Conjunct::begun;
    else if (kind == linker)
      conjunct_ = conjunct_ == Conjunct::none ? Conjunct::none : Conjunct::linked;
    else if (kind != extend && kind != joiner)
      conjunct_ = Conjunct::none;
    has_picture_ = kind == pictograph || (has_picture_ && extends(kind) && before_ != joiner);
    regionals_ = kind == regional ? regionals_ + 1 : 0;
    before_ = kind;
  }

 private:
  enum class Conjunct : uint8_t { none, begun, linked };
  Break before_ = Break::other;
  Conjunct conjunct_ = Conjunct::none;
  bool has_picture_ = false;  // a pictograph, then characters that extend it
  size_t regionals_ = 0;
};

}  // namespace

std::string_view Graphemes::next() {
  Cluster cluster;
  size_t end = 0;
  while (end < rest_.size()) {
    const CodePoint c = decode_utf8(rest_.substr(end));
    const Break kind = break_of(c.value);
    if (end > 0 && !cluster.takes(kind)) break;
    cluster.add(kind);
    end += c.bytes;
  }
  const std::string_view out = rest_.substr(0, end);
  rest_.remove_prefix(end);
  return out;
}

}  // namespace mc::unicode
