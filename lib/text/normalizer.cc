#include "text/normalizer.h"

#include <algorithm>

#include "unicode/unicode.h"
#include "unicode/utf8.h"

namespace mc::text {
namespace {

Error too_long(size_t bytes_max) {
  return {Code::invalid, "text: the normalised text is longer than " + std::to_string(bytes_max) + " bytes"};
}

Result<std::string> replace(const Regex& regex, std::string_view text, std::string_view content, size_t bytes_max,
                            Work& work) {
  constexpr size_t kSpansAtOnce = 4096;  // a text may have as many spans as characters, so they are made in parts
  std::vector<Span> spans;
  std::string out;
  out.reserve(text.size());
  Regex::Cursor cursor(0, static_cast<uint32_t>(text.size()));
  std::string buffer;
  const std::string_view subject = regex.subject(text, buffer);
  while (!cursor.done) {
    spans.clear();
    MC_CHECK(regex.split_some(subject, cursor, kSpansAtOnce, spans, work));
    for (const Span& span : spans) out += span.match ? content : text.substr(span.begin, span.end - span.begin);
    if (out.size() > bytes_max) return too_long(bytes_max);
    MC_CHECK(work.check(0));
  }
  return out;
}

std::string_view strip_left(std::string_view text) {
  while (!text.empty()) {
    const unicode::CodePoint c = unicode::decode_utf8(text);
    if (!unicode::is_space(c.value)) break;
    text.remove_prefix(c.bytes);
  }
  return text;
}

std::string_view strip_right(std::string_view text) {
  while (!text.empty()) {
    const unicode::CodePoint c = unicode::decode_utf8_back(text);
    if (!unicode::is_space(c.value)) break;
    text.remove_suffix(c.bytes);
  }
  return text;
}

std::string without_accents(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const unicode::CodePoint c = unicode::decode_utf8(text.substr(at));
    if (!unicode::is_mark(c.value)) out += text.substr(at, c.bytes);
    at += c.bytes;
  }
  return out;
}

/// SentencePiece's first step for translation models, as in the tokenizers crate: control characters vanish, other
/// white space and marks of direction become spaces.
std::string filtered(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const unicode::CodePoint c = unicode::decode_utf8(text.substr(at));
    const auto within = [v = c.value](char32_t low, char32_t high) { return v >= low && v <= high; };
    const char32_t v = c.value;
    const bool vanishes = within(0x1, 0x8) || v == 0xB || within(0xE, 0x1F) || v == 0x7F || v == 0x8F || v == 0x9F;
    const bool is_space = within(0x9, 0xA) || within(0xC, 0xD) || v == 0x1680 || within(0x200B, 0x200F) ||
                          within(0x2028, 0x2029) || v == 0x2581 || v == 0xFEFF || v == 0xFFFD;
    if (is_space)
      out += ' ';
    else if (!vanishes)
      out += text.substr(at, c.bytes);
    at += c.bytes;
  }
  return out;
}

/// Moves the ranges by `shift` bytes and cuts them to [0, size).
void move_ranges(std::vector<UserRange>& user, std::ptrdiff_t shift, size_t size) {
  const auto moved = [&](size_t at) {
    const auto to = static_cast<std::ptrdiff_t>(at) + shift;
    return static_cast<size_t>(std::clamp<std::ptrdiff_t>(to, 0, static_cast<std::ptrdiff_t>(size)));
  };
  for (UserRange& range : user) range = {moved(range.begin), moved(range.end)};
  std::erase_if(user, [](const UserRange& range) { return range.begin == range.end; });
}

}  // namespace

Result<Normalizer> Normalizer::build(const TokenizerSpec& spec) {
  Normalizer out;
  for (const NormalizerStep& step : spec.normalizer) {
    std::optional<Regex> regex;
    if (step.kind == NormalizerStep::Kind::replace) {
      MC_TRY(compiled, Regex::compile(step.pattern));
      regex = std::move(compiled);
    }
    std::optional<Charsmap> charsmap;
    if (step.kind == NormalizerStep::Kind::charsmap) {
      MC_TRY(read, Charsmap::read(step.content));
      charsmap = std::move(read);
    }
    out.steps_.push_back({step, std::move(regex), std::move(charsmap)});
  }
  return out;
}

size_t Normalizer::patterns() const {
  return static_cast<size_t>(
      std::count_if(steps_.begin(), steps_.end(), [](const Step& step) { return step.regex.has_value(); }));
}

Result<std::string> Normalizer::run(const Step& step, std::string_view text, size_t bytes_max, Work& work) {
  std::string out;
  switch (step.spec.kind) {
    case NormalizerStep::Kind::form: out = unicode::normalize(text, step.spec.form); break;
    case NormalizerStep::Kind::lowercase: out = unicode::lowercase(text); break;
    case NormalizerStep::Kind::strip_accents: out = without_accents(text); break;
    case NormalizerStep::Kind::strip:
      if (step.spec.left) text = strip_left(text);
      if (step.spec.right) text = strip_right(text);
      out = text;
      break;
    case NormalizerStep::Kind::prepend:
      if (!text.empty()) out.append(step.spec.content).append(text);
      break;
    case NormalizerStep::Kind::nmt: out = filtered(text); break;
    case NormalizerStep::Kind::charsmap: out = step.charsmap->apply(text, bytes_max); break;
    case NormalizerStep::Kind::replace: return replace(*step.regex, text, step.spec.content, bytes_max, work);
  }
  if (out.size() > bytes_max) return too_long(bytes_max);
  return out;
}

/// Converts `user` to ranges of `result`; false when that is not possible. It is possible when the pieces between the
/// borders, normalised one by one, give the whole result.
Result<bool> Normalizer::carry(const Step& step, std::string_view text, std::string_view result, size_t bytes_max,
                               std::vector<UserRange>& user, Work& work) {
  using Kind = NormalizerStep::Kind;
  if (step.spec.kind == Kind::prepend || step.spec.kind == Kind::strip) {
    const size_t cut = step.spec.kind == Kind::strip && step.spec.left ? text.size() - strip_left(text).size() : 0;
    const size_t put = step.spec.kind == Kind::prepend && !text.empty() ? step.spec.content.size() : 0;
    move_ranges(user, static_cast<std::ptrdiff_t>(put) - static_cast<std::ptrdiff_t>(cut), result.size());
    return true;
  }
  size_t from = 0, done = 0;  // in text, in result
  const auto piece = [&](size_t to) -> Result<bool> {
    MC_TRY(part, run(step, text.substr(from, to - from), bytes_max, work));
    const bool same = result.substr(done).starts_with(part);
    from = to;
    done += part.size();
    return same;
  };
  std::vector<UserRange> moved;
  for (const UserRange& range : user) {
    MC_TRY(before, piece(range.begin));
    const size_t begin = done;
    MC_TRY(inside, piece(range.end));
    if (!before || !inside) return false;
    if (begin != done) moved.push_back({begin, done});
  }
  MC_TRY(behind, piece(text.size()));
  if (!behind || done != result.size()) return false;
  user = std::move(moved);
  return true;
}

Result<std::string> Normalizer::apply(std::string_view text, size_t bytes_max) const {
  const EncodeLimits limits;
  Work work(text.size(), patterns(), limits);
  std::vector<UserRange> nobody;
  return apply(text, bytes_max, nobody, work);
}

Result<std::string> Normalizer::apply(std::string_view text, size_t bytes_max, std::vector<UserRange>& user,
                                      Work& work) const {
  std::string current(text);
  constexpr size_t kShort = 4096;  // a shorter text costs less than two readings of the clock
  for (const Step& step : steps_) {
    // The time of a step without a pattern does not count. It is linear in the text.
    std::optional<Work::Unmeasured> unmeasured;
    if (!step.regex && current.size() > kShort) unmeasured.emplace(work);
    MC_TRY(next, run(step, current, bytes_max, work));
    if (!user.empty() && next != current) {
      MC_TRY(carried, carry(step, current, next, bytes_max, user, work));
      if (!carried) user.assign({{0, next.size()}});
    }
    current = std::move(next);
  }
  return current;
}

}  // namespace mc::text
