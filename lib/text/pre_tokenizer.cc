#include "text/pre_tokenizer.h"

#include <algorithm>

#include "base/assert.h"

namespace mc::text {
namespace {

/// Joins or drops the pieces of one split (spans[first, end)) in place, by the rules of NormalizedString::split in the
/// tokenizers crate.
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

/// Replaces spaces by the mark and puts a mark in front of the pieces that the scheme names.
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
      const std::string pattern = step.kind == PreStep::Kind::split ? step.pattern : Regex::quote(step.mark);
      MC_TRY(compiled, Regex::compile(pattern, step.syntax));
      regex = std::move(compiled);
    }
    out.steps_.push_back({step, std::move(regex)});
  }
  return out;
}

/// Regex::subject() of the step. A rewritten text is new in each batch.
std::string_view PreTokenizer::subject(size_t step, std::string_view text, bool is_rewritten, Batch& batch) const {
  Subject& known = batch.subjects[step];
  if (is_rewritten || !known.view) known.view = steps_[step].regex->subject(text, known.buffer);
  MC_ASSERT_EQ(known.view->size(), text.size());
  return *known.view;
}

Result<std::string_view> PreTokenizer::run(size_t from, std::string_view text, bool first, Batch& batch,
                                           Work& work) const {
  bool is_rewritten = false;
  for (size_t i = from; i < steps_.size(); ++i) {
    const Step& step = steps_[i];
    if (step.spec.kind != PreStep::Kind::split) {
      if (step.spec.kind == PreStep::Kind::prefix_space)
        prefix_spaces(text, batch.words, batch.other);
      else
        write_marks(step.spec, first, text, batch.words, batch.other);
      batch.rewritten.swap(batch.other);
      text = batch.rewritten;
      is_rewritten = true;
    }
    if (!step.regex) continue;
    const bool marks = step.spec.kind == PreStep::Kind::metaspace;
    batch.next.clear();
    const std::string_view seen = subject(i, text, is_rewritten, batch);
    for (const Span& word : batch.words) {
      const size_t begin = batch.next.size();
      MC_CHECK(step.regex->split(seen, word.begin, word.end, batch.next, work));
      apply(marks ? SplitBehavior::merged_with_next : step.spec.behavior, step.spec.invert, batch.next, begin);
    }
    batch.words.swap(batch.next);
  }
  return text;
}

Result<void> PreTokenizer::split(std::string_view text, bool first, Work& work, const Sink& sink) const {
  constexpr size_t kWordsAtOnce = 4096;
  if (text.empty()) return {};
  const auto end = static_cast<uint32_t>(text.size());
  Batch batch(steps_.size());
  // Isolated and removed pieces do not depend on their neighbours, so the first step may work in batches.
  const bool is_cut =
      !steps_.empty() && steps_[0].spec.kind == PreStep::Kind::split &&
      (steps_[0].spec.behavior == SplitBehavior::isolated || steps_[0].spec.behavior == SplitBehavior::removed);
  if (!is_cut) {
    batch.words.push_back({0, end, false});
    MC_TRY(source, run(0, text, first, batch, work));
    return sink(source, batch.words);
  }
  Regex::Cursor cursor(0, end);
  const std::string_view seen = subject(0, text, false, batch);
  while (!cursor.done) {
    batch.words.clear();
    MC_CHECK(steps_[0].regex->split_some(seen, cursor, kWordsAtOnce, batch.words, work));
    apply(steps_[0].spec.behavior, steps_[0].spec.invert, batch.words, 0);
    if (batch.words.empty()) continue;
    MC_TRY(source, run(1, text, first, batch, work));
    MC_CHECK(sink(source, batch.words));
    first = false;
  }
  return {};
}

}  // namespace mc::text
