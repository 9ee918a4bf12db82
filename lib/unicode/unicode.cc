#include "unicode/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <bitset>
#include <vector>

#include "base/assert.h"
#include "unicode/utf8.h"

namespace mc::unicode {
namespace {

bool composes(NormalForm form) {
  return form == NormalForm::nfc || form == NormalForm::nfkc;
}
bool is_compatible(NormalForm form) {
  return form == NormalForm::nfkc || form == NormalForm::nfkd;
}

/// True when no byte can start a character that the form changes: all four forms keep ASCII, and NFC
/// keeps everything below U+0300 (lead bytes below 0xCC).
bool is_plain(std::string_view text, NormalForm form) {
  const int limit = form == NormalForm::nfc ? 0xCC : 0x80;
  return std::all_of(text.begin(), text.end(), [&](char c) { return static_cast<uint8_t>(c) < limit; });
}

/// Characters that have a combining class or a decomposition only in versions of Unicode after 9. A comparison of the
/// crate with the tables of Unicode 14, character by character, has found them. U+11930 is listed so that U+11935
/// U+11930 is not composed, U+11938 so that it is not decomposed.
struct Range {
  char32_t first, last;
};
constexpr Range kLate[] = {
    {0x7fd, 0x7fd},     {0x898, 0x89f},     {0x8ca, 0x8d3},     {0x9fe, 0x9fe},     {0xc3c, 0xc3c},
    {0xd3b, 0xd3c},     {0xeba, 0xeba},     {0x1715, 0x1715},   {0x1abf, 0x1ace},   {0x1df6, 0x1dfa},
    {0x32ff, 0x32ff},   {0xa7f2, 0xa7f4},   {0xa82c, 0xa82c},   {0xab69, 0xab69},   {0x10781, 0x107ba},
    {0x10d24, 0x10d27}, {0x10eab, 0x10eac}, {0x10f46, 0x10f50}, {0x10f82, 0x10f85}, {0x11070, 0x11070},
    {0x1133b, 0x1133b}, {0x1145e, 0x1145e}, {0x11839, 0x1183a}, {0x11930, 0x11930}, {0x11938, 0x11938},
    {0x1193d, 0x1193e}, {0x11943, 0x11943}, {0x119e0, 0x119e0}, {0x11a34, 0x11a34}, {0x11a47, 0x11a47},
    {0x11a99, 0x11a99}, {0x11d42, 0x11d42}, {0x11d44, 0x11d45}, {0x11d97, 0x11d97}, {0x16ff0, 0x16ff1},
    {0x1e130, 0x1e136}, {0x1e2ae, 0x1e2ae}, {0x1e2ec, 0x1e2ef}, {0x1f16c, 0x1f16c}, {0x1fbf0, 0x1fbf9},
};

/// Characters that the tables of StripAccents see otherwise than those of Unicode 14.
struct OtherMark {
  char32_t first, last;
  bool is_mark;
};
#include "unicode/recent.inc"

template <class Rows>
auto find_row(const Rows& rows, char32_t c) {
  const auto row = std::lower_bound(std::begin(rows), std::end(rows), c,
                                    [](const auto& r, char32_t value) { return r.last < value; });
  return row != std::end(rows) && row->first <= c ? &*row : nullptr;
}

bool is_late(char32_t c) {
  return find_row(kLate, c) != nullptr || recent_range(c) != nullptr;
}

// The 128-character blocks with a recent character, which spare most characters the search.
constexpr char32_t kRecentEnd = std::end(kRecent)[-1].last + 1;
constexpr unsigned kBlockBits = 7;
using RecentBlocks = std::bitset<(kRecentEnd >> kBlockBits) + 1>;
const RecentBlocks kRecentBlocks = [] {
  RecentBlocks blocks;
  for (const RecentRange& range : kRecent)
    for (char32_t block = range.first >> kBlockBits; block <= range.last >> kBlockBits; ++block) blocks.set(block);
  return blocks;
}();

int combining_class(char32_t c) {
  if (is_late(c)) return 0;
  return utf8proc_get_property(static_cast<utf8proc_int32_t>(c))->combining_class;
}

/// Appends the full decomposition of `c`.
void decompose(char32_t c, bool compatible, std::vector<utf8proc_int32_t>& out) {
  if (is_late(c)) return out.push_back(static_cast<utf8proc_int32_t>(c));
  constexpr int kLongest = 18;  // U+FDFA under NFKD
  utf8proc_int32_t buffer[kLongest * 2];
  const auto options =
      static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | (compatible ? UTF8PROC_COMPAT : 0));
  int boundary = 0;
  const utf8proc_ssize_t count =
      utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c), buffer, std::size(buffer), options, &boundary);
  MC_ASSERT(count >= 0 && count <= static_cast<utf8proc_ssize_t>(std::size(buffer)));
  out.insert(out.end(), buffer, buffer + count);
}

/// Canonical ordering: each run of combining marks sorted by class, keeping the order of equals.
void reorder(std::vector<utf8proc_int32_t>& chars) {
  for (size_t i = 0; i < chars.size();) {
    size_t end = i;
    while (end < chars.size() && combining_class(static_cast<char32_t>(chars[end])) != 0) ++end;
    if (end > i + 1)
      std::stable_sort(chars.begin() + i, chars.begin() + end, [](utf8proc_int32_t a, utf8proc_int32_t b) {
        return combining_class(static_cast<char32_t>(a)) < combining_class(static_cast<char32_t>(b));
      });
    i = end + 1;
  }
}

/// Composes in place. A character of a version after 9 begins a run of its own. Returns the number of characters left.
size_t compose(std::vector<utf8proc_int32_t>& chars) {
  size_t kept = 0;
  for (size_t begin = 0, end = 0; begin < chars.size(); begin = end) {
    while (++end < chars.size() && !is_late(static_cast<char32_t>(chars[end])))
      ;
    const utf8proc_ssize_t count =
        utf8proc_normalize_utf32(chars.data() + begin, static_cast<utf8proc_ssize_t>(end - begin),
                                 static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
    MC_ASSERT(count >= 0);
    std::copy_n(chars.data() + begin, count, chars.data() + kept);
    kept += static_cast<size_t>(count);
  }
  return kept;
}

}  // namespace

std::string normalize(std::string_view text, NormalForm form) {
  if (is_plain(text, form)) return std::string(text);
  std::vector<utf8proc_int32_t> chars;
  chars.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = decode_utf8(text.substr(at));
    at += c.bytes;
    if (c.value < 0x80)
      chars.push_back(static_cast<utf8proc_int32_t>(c.value));
    else
      decompose(c.value, is_compatible(form), chars);
  }
  reorder(chars);
  const size_t count = composes(form) ? compose(chars) : chars.size();
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < count; ++i) append_utf8(out, static_cast<char32_t>(chars[i]));
  return out;
}

std::string lowercase(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = decode_utf8(text.substr(at));
    at += c.bytes;
    if (const RecentRange* row = c.value < 0x80 ? nullptr : find_row(kRecentLower, c.value))
      append_utf8(out, row->stand_in + (c.value - row->first));
    else
      append_utf8(out, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c.value))));
    if (c.value == 0x130) append_utf8(out, 0x307);  // the only character whose lower case is two characters
  }
  return out;
}

bool is_space(char32_t c) {
  if (c < 0x80) return c == ' ' || (c >= '\t' && c <= '\r');
  if (c == 0x85) return true;
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return category == UTF8PROC_CATEGORY_ZS || category == UTF8PROC_CATEGORY_ZL || category == UTF8PROC_CATEGORY_ZP;
}

std::span<const RecentRange> recent_ranges() {
  return kRecent;
}

const RecentRange* recent_range(char32_t c) {
  if (c >= kRecentEnd || !kRecentBlocks[c >> kBlockBits]) return nullptr;
  return find_row(kRecent, c);
}

bool is_mark(char32_t c) {
  if (const OtherMark* row = find_row(kOtherMarks, c)) return row->is_mark;
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return category == UTF8PROC_CATEGORY_MN || category == UTF8PROC_CATEGORY_MC || category == UTF8PROC_CATEGORY_ME;
}

bool is_word(char32_t c) {
  if (const RecentRange* range = recent_range(c)) c = range->stand_in;
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC: return true;
    default: break;
  }
  // Alphabetic symbols (circled and squared letters) and the two joiners.
  const auto within = [c](char32_t low, char32_t high) { return c >= low && c <= high; };
  return within(0x200C, 0x200D) || within(0x24B6, 0x24E9) || within(0x1F130, 0x1F149) || within(0x1F150, 0x1F169) ||
         within(0x1F170, 0x1F189);
}

}  // namespace mc::unicode
