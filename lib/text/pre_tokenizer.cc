#include "text/pre_tokenizer.h"

#include <algorithm>

namespace mc::text {
namespace {

/// Joins or drops the pieces of one split (spans[first, end)) by the behaviour, in place, after
/// NormalizedString::split of the tokenizers crate.
void apply(SplitBehavior behavior, bool invert, std::vector<Span>& spans, size_t first) {
  const auto begin = spans.begin() + static_cast<std::ptrdiff_t>(first);
  if (invert)
    for (auto span = begin; span != spans.end(); ++span) span->match = !span->match;
  auto out = begin;  // pieces kept so far end here
  bool previous = false;
  switch (behavior) {
    case SplitBehavior::isolated: out = spans.end(); break;
    case SplitBehavior::removed: out = std::remove_if(begin, spans.end(), [](const Span& s) { return s.match; }); break;
    case SplitBehavior::contiguous:
    case SplitBehavior::merged_with_previous:
      for (auto span = begin; span != spans.end(); ++span) {
        const bool is_match = span->match;
        const bool join = behavior == SplitBehavior::contiguous ? is_match == previous : is_match && !previous;
        if (join && out != begin)
          (out - 1)->end = span->end;
        else
          *out++ = *span;
        previous = is_match;
      }
      break;
    case SplitBehavior::merged_with_next: {
      auto in = spans.end(), kept = spans.end();  // from the back: pieces kept so far begin at `kept`
      while (in != begin) {
        --in;
        const Span span = *in;
        if (span.match && !previous && kept != spans.end())
          kept->begin = span.begin;
        else
          *--kept = span;
        previous = span.match;
      }
      out = std::move(kept, spans.end(), begin);
      break;
    }
  }
  out = std::remove_if(begin, out, [](const Span& s) { return s.begin == s.end; });
  spans.erase(out, spans.end());
}

/// Puts a space in front of every piece that does not start with one.
void prefix_spaces(std::string_view text, std::vector<Span>& pieces, std::string& out) {
  out.clear();
  out.reserve(text.size() + pieces.size());
  for (Span& piece : pieces) {
    const auto begin = static_cast<uint32_t>(out.size());
    if (text[piece.begin] != ' ') out += ' ';
    out += text.substr(piece.begin, piece.end - piece.begin);
    piece.begin = begin;
    piece.end = static_cast<uint32_t>(out.size());
  }
}

/// Spaces become the mark, and one is put in front of the pieces that the scheme names.
void write_marks(const PreStep& step, bool first, std::string_view text, std::vector<Span>& pieces, std::string& out) {
  out.clear();
  out.reserve(text.size() + text.size() / 2 + 8);
  for (Span& piece : pieces) {
    const auto begin = static_cast<uint32_t>(out.size());
    const std::string_view source = text.substr(piece.begin, piece.end - piece.begin);
    const bool starts = source[0] == ' ' || source.starts_with(step.mark);
    const bool named =
        step.prepend == PrependScheme::always || (step.prepend == PrependScheme::first && first && piece.begin == 0);
    if (named && !starts) out += step.mark;
    for (char c : source) {
      if (c == ' ')
        out += step.mark;
      else
        out += c;
    }
    piece.begin = begin;
    piece.end = static_cast<uint32_t>(out.size());
  }
}

}  // namespace

Result<PreTokenizer> PreTokenizer::build(const TokenizerSpec& spec) {
  PreTokenizer out;
  for (const PreStep& step : spec.pre) {
    std::optional<Regex> regex;
    if (step.kind == PreStep::Kind::split || (step.kind == PreStep::Kind::metaspace && step.split)) {
      MC_TRY(compiled, Regex::compile(step.kind == PreStep::Kind::split ? step.pattern : Regex::quote(step.mark)));
      regex = std::move(compiled);
    }
    out.steps_.push_back({step, std::move(regex)});
  }
  return out;
}

Result<std::string_view> PreTokenizer::split(std::string_view text, bool first, std::string& rewritten,
                                             std::vector<Span>& words) const {
  words.clear();
  if (text.empty()) return text;
  words.push_back({0, static_cast<uint32_t>(text.size()), false});
  std::vector<Span> next;
  std::string other;  // a step reads one buffer and writes the other
  for (const Step& step : steps_) {
    if (step.spec.kind != PreStep::Kind::split) {
      if (step.spec.kind == PreStep::Kind::prefix_space)
        prefix_spaces(text, words, other);
      else
        write_marks(step.spec, first, text, words, other);
      rewritten.swap(other);
      text = rewritten;
    }
    if (!step.regex) continue;
    const bool marks = step.spec.kind == PreStep::Kind::metaspace;
    next.clear();
    for (const Span& word : words) {
      const size_t begin = next.size();
      MC_CHECK(step.regex->split(text, word.begin, word.end, next));
      apply(marks ? SplitBehavior::merged_with_next : step.spec.behavior, step.spec.invert, next, begin);
    }
    words.swap(next);
  }
  return text;
}

}  // namespace mc::text
