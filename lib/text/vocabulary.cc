#include "text/vocabulary.h"

#include "text/added_tokens.h"

namespace mc::text {
namespace {

/// The bound on all texts and spellings. The largest vocabularies need a tenth of it; a crafted decoder could make
/// millions of tokens of kTokenBytesMax.
constexpr size_t kVocabularyBytesMax = size_t{64} << 20;
static_assert(kVocabularyBytesMax <= UINT32_MAX && kTokenBytesMax <= UINT16_MAX);  // the fields of Entry

}  // namespace

Result<void> Vocabulary::add(uint32_t id, const Decoder::Token& token, std::string_view spelling, bool special) {
  if (token.text.size() + spelling.size() > kVocabularyBytesMax - bytes_.size())
    return Error{Code::invalid, "decoder makes texts of more than " + std::to_string(kVocabularyBytesMax) +
                                    " bytes of model.vocab and added_tokens"};
  if (id >= entries_.size()) entries_.resize(id + 1);
  Entry& entry = entries_[id];
  entry.offset = entry.spelling_offset = static_cast<uint32_t>(bytes_.size());
  entry.length = static_cast<uint16_t>(token.text.size());
  bytes_ += token.text;
  entry.spelling_length = static_cast<uint16_t>(spelling.size());
  if (spelling != token.text) {
    entry.spelling_offset = static_cast<uint32_t>(bytes_.size());
    bytes_ += spelling;
  }
  entry.known = true;
  entry.special = special;
  entry.byte = token.byte;
  return {};
}

Result<Vocabulary> Vocabulary::build(const TokenizerSpec& spec, const Decoder& decoder) {
  Vocabulary out;
  out.ids_.reserve(spec.vocab.size() + spec.added.size());
  for (const AddedToken& token : spec.added) {
    // The byte alphabet is the vocabulary's; an added token is spelt as it is.
    const Decoder::Token text =
        decoder.byte_level() ? Decoder::Token{token.content} : decoder.apply(token.content, false);
    MC_CHECK(out.add(token.id, text, token.content, token.special));
    (void)out.ids_.insert(token.content, token.id);
  }
  for (const VocabEntry& entry : spec.vocab) {
    if (out.knows(entry.id)) continue;  // an added token has this id
    const Decoder::Token text = decoder.apply(entry.text, false);
    MC_CHECK(out.add(entry.id, text, entry.text, false));
    if (!text.byte) (void)out.ids_.insert(text.text, entry.id);  // an added token with the same text keeps its place
  }
  return out;
}

std::string_view Vocabulary::text_of(uint32_t id) const {
  if (id >= size()) return {};
  return std::string_view(bytes_).substr(entries_[id].offset, entries_[id].length);
}

std::string_view Vocabulary::spelling_of(uint32_t id) const {
  if (id >= size()) return {};
  return std::string_view(bytes_).substr(entries_[id].spelling_offset, entries_[id].spelling_length);
}

}  // namespace mc::text
