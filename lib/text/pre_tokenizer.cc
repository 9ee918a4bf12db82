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

}  // namespace

Result<PreTokenizer> PreTokenizer::build(const TokenizerSpec& spec) {
  PreTokenizer out;
  for (const SplitStep& step : spec.splits) {
    MC_TRY(regex, Regex::compile(step.pattern));
    out.steps_.push_back({std::move(regex), step.behavior, step.invert});
  }
  out.prefix_space_ = spec.add_prefix_space;
  out.steps_before_prefix_ = spec.splits_before_byte_level;
  return out;
}

Result<std::string_view> PreTokenizer::split(std::string_view text, std::string& rewritten,
                                             std::vector<Span>& words) const {
  words.clear();
  if (text.empty()) return text;
  words.push_back({0, static_cast<uint32_t>(text.size()), false});
  std::vector<Span> next;
  for (size_t i = 0; i <= steps_.size(); ++i) {
    if (prefix_space_ && i == steps_before_prefix_) {
      prefix_spaces(text, words, rewritten);
      text = rewritten;
    }
    if (i == steps_.size()) break;
    next.clear();
    for (const Span& word : words) {
      const size_t first = next.size();
      MC_CHECK(steps_[i].regex.split(text, word.begin, word.end, next));
      apply(steps_[i].behavior, steps_[i].invert, next, first);
    }
    words.swap(next);
  }
  return text;
}

}  // namespace mc::text
