#include "text/tokenizer.h"

#include <algorithm>

#include "text/byte_level.h"
#include "text/detokenizer.h"
#include "text/tokenizer_tables.h"
#include "text/utf8.h"

namespace mc::text {
namespace {

Result<void> check_size(size_t bytes) {
  if (bytes <= Tokenizer::kTextBytesMax) return {};
  return Error{Code::invalid, "text: input has " + std::to_string(bytes) + " bytes; the most is " +
                                  std::to_string(Tokenizer::kTextBytesMax)};
}

}  // namespace

Result<void> Tokenizer::Tables::encode_words(std::string_view text, bool first, std::vector<uint32_t>& out) const {
  std::string rewritten;
  std::vector<Span> words;
  MC_TRY(source, pre_tokenizer.split(text, first, rewritten, words));
  for (const Span& span : words) {
    const std::string_view word = source.substr(span.begin, span.end - span.begin);
    if (spell_words)
      bpe.encode(spell_bytes(word), out);
    else
      bpe.encode(word, out);
  }
  return {};
}

Result<void> Tokenizer::Tables::encode_normalized(std::string_view text, bool first, std::span<const UserRange> user,
                                                  std::vector<uint32_t>& out) const {
  if (normalized_tokens.empty()) return encode_words(text, first, out);
  std::vector<Piece> pieces;
  normalized_tokens.split(text, 0, text.size(), user, pieces);
  for (const Piece& piece : pieces) {
    if (piece.token != Piece::kText)
      out.push_back(piece.token);
    else
      MC_CHECK(encode_words(text.substr(piece.begin, piece.end - piece.begin), first && piece.begin == 0, out));
  }
  return {};
}

Result<void> Tokenizer::Tables::encode(std::string_view text, std::span<const UserRange> user,
                                       std::vector<uint32_t>& out) const {
  std::vector<Piece> pieces;
  raw_tokens.split(text, 0, text.size(), user, pieces);
  std::vector<UserRange> inner;
  for (const Piece& piece : pieces) {
    if (piece.token != Piece::kText) {
      out.push_back(piece.token);
      continue;
    }
    const std::string_view source = text.substr(piece.begin, piece.end - piece.begin);
    inner.clear();
    const auto ends_before = [&](const UserRange& range) { return range.end <= piece.begin; };
    for (auto r = std::partition_point(user.begin(), user.end(), ends_before); r != user.end() && r->begin < piece.end;
         ++r)
      inner.push_back({std::max(r->begin, piece.begin) - piece.begin, std::min(r->end, piece.end) - piece.begin});
    const bool first = piece.begin == 0;
    if (normalizer.empty()) {
      MC_CHECK(encode_normalized(source, first, inner, out));
      continue;
    }
    MC_TRY(changed, normalizer.apply(source, kTextBytesMax, inner));
    MC_CHECK(encode_normalized(changed, first, inner, out));
  }
  return {};
}

Tokenizer::Tokenizer(std::unique_ptr<const Tables> tables) : tables_(std::move(tables)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Result<std::vector<uint32_t>> Tokenizer::encode(std::string_view text, EncodeOptions options) const {
  MC_CHECK(check_size(text.size()));
  MC_CHECK(check_utf8(text));
  std::vector<uint32_t> out;
  out.reserve(text.size() / 3 + 8);
  if (options.add_special) out = tables_->prefix;
  const UserRange all{0, text.size()};
  MC_CHECK(tables_->encode(text, options.parse_special ? std::span<const UserRange>() : std::span(&all, 1), out));
  if (options.add_special) out.insert(out.end(), tables_->suffix.begin(), tables_->suffix.end());
  return out;
}

Result<std::vector<uint32_t>> Tokenizer::encode(std::span<const Part> parts, bool add_special) const {
  std::string text;
  std::vector<UserRange> user;
  for (const Part& part : parts) {
    if (part.text.empty()) continue;
    const size_t begin = text.size();
    MC_CHECK(check_size(begin + part.text.size()));
    // Each part by itself: a character must not be put together from the ends of two.
    if (const auto offset = find_invalid_utf8(part.text)) return not_utf8(begin + *offset);
    text += part.text;
    if (part.user) user.push_back({begin, text.size()});
  }
  std::vector<uint32_t> out;
  MC_CHECK(tables_->encode(text, user, out));
  if (!add_special) return out;
  const std::vector<uint32_t>& prefix = tables_->prefix;
  const std::vector<uint32_t>& suffix = tables_->suffix;
  if (out.size() < prefix.size() || !std::equal(prefix.begin(), prefix.end(), out.begin()))
    out.insert(out.begin(), prefix.begin(), prefix.end());
  out.insert(out.end(), suffix.begin(), suffix.end());
  return out;
}

std::string Tokenizer::decode(std::span<const uint32_t> ids, bool skip_special) const {
  Detokenizer detokenizer(*this, skip_special);
  std::string out = detokenizer.push(ids);
  out += detokenizer.flush();
  return out;
}

std::string_view Tokenizer::token_bytes(uint32_t id) const {
  return tables_->text_of(id);
}

std::string Tokenizer::token_spelling(uint32_t id) const {
  return std::string(tables_->spelling_of(id));
}

std::optional<uint32_t> Tokenizer::token_to_id(std::string_view bytes) const {
  return tables_->ids.find(bytes);
}

bool Tokenizer::is_special(uint32_t id) const {
  return id < tables_->texts.size() && tables_->texts[id].special;
}
uint32_t Tokenizer::vocab_size() const {
  return static_cast<uint32_t>(tables_->texts.size());
}
std::optional<uint32_t> Tokenizer::bos_id() const {
  return tables_->bos;
}
std::optional<uint32_t> Tokenizer::eos_id() const {
  return tables_->eos;
}
std::optional<uint32_t> Tokenizer::unk_id() const {
  return tables_->bpe.unknown();
}
const TokenizerConfig& Tokenizer::config() const {
  return tables_->config;
}

}  // namespace mc::text
