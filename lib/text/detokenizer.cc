#include "text/detokenizer.h"

#include "text/tokenizer_tables.h"
#include "unicode/utf8.h"

namespace mc::text {

Detokenizer::Detokenizer(const Tokenizer& tokenizer, bool skip_special, TextStart start)
    : tokenizer_(&tokenizer), skip_special_(skip_special), start_(start) {
  begin();
}

void Detokenizer::begin() {
  const Decoder& decoder = tokenizer_->tables_->decoder;
  first_ = start_ == TextStart::here && decoder.first_differs();
  strip_left_ = start_ == TextStart::here ? decoder.strip_count() : 0;
}

void Detokenizer::add_text(std::string_view text, std::string& out) {
  const std::string_view stripped = tokenizer_->tables_->decoder.strip_character();
  while (strip_left_ > 0 && !text.empty()) {
    if (!text.starts_with(stripped)) {
      strip_left_ = 0;
      break;
    }
    text.remove_prefix(stripped.size());
    --strip_left_;
  }
  out += text;
}

void Detokenizer::add(uint32_t id, std::string& out) {
  if (skip_special_ && tokenizer_->is_special(id)) return;
  const Decoder& decoder = tokenizer_->tables_->decoder;
  const Vocabulary& vocabulary = tokenizer_->tables_->vocabulary;
  if (!vocabulary.knows(id)) return;
  if (decoder.byte_level()) {
    pending_ += vocabulary.text_of(id);
    return;
  }
  const bool first = std::exchange(first_, false);
  if (vocabulary.is_byte(id)) {
    pending_ += vocabulary.text_of(id);
    return;
  }
  std::string whole;
  if (!pending_.empty()) {  // the run of bytes ends, so the pending character cannot be completed
    unicode::append_lossy_utf8(whole, pending_, true, true);
    pending_.clear();
  }
  if (first)
    whole += decoder.apply(vocabulary.spelling_of(id), true).text;
  else
    whole += vocabulary.text_of(id);
  add_text(whole, out);
}

std::string Detokenizer::push(uint32_t id) {
  return push(std::span(&id, 1));
}

std::string Detokenizer::push(std::span<const uint32_t> ids) {
  std::string out;
  for (uint32_t id : ids) {
    add(id, out);
    if (pending_.empty()) continue;
    std::string whole;
    pending_.erase(0, unicode::append_lossy_utf8(whole, pending_, false, !tokenizer_->tables_->decoder.byte_level()));
    add_text(whole, out);
  }
  return out;
}

std::string Detokenizer::flush() {
  std::string whole, out;
  unicode::append_lossy_utf8(whole, pending_, true, !tokenizer_->tables_->decoder.byte_level());
  pending_.clear();
  add_text(whole, out);
  begin();
  return out;
}

}  // namespace mc::text
