#include "text/tokenizer.h"

#include <algorithm>

#include "base/assert.h"
#include "base/errors.h"
#include "gguf/gguf.h"
#include "text/byte_level.h"
#include "text/detokenizer.h"
#include "text/spec_gguf.h"
#include "text/tokenizer_tables.h"
#include "unicode/utf8.h"

namespace mc::text {
namespace {

Result<void> check_size(size_t bytes) {
  if (bytes <= Tokenizer::kTextBytesMax) return {};
  return Error{Code::invalid, "text: input has " + std::to_string(bytes) + " bytes; the most is " +
                                  std::to_string(Tokenizer::kTextBytesMax)};
}

err::Number number_of(const Error& error) {
  return error.code == Code::unsupported ? err::kTokenizerUnsupported : err::kModelCorrupt;
}

}  // namespace

Result<void> TokenizerTables::encode_words(std::string_view text, bool first, Work& work,
                                           std::vector<uint32_t>& out) const {
  const auto sink = [&](std::string_view source, std::span<const Span> words) -> Result<void> {
    for (const Span& span : words) {
      const std::string_view word = source.substr(span.begin, span.end - span.begin);
      MC_CHECK(spell_words ? model->encode(spell_bytes(word), work, out) : model->encode(word, work, out));
    }
    return work.check(out.size());
  };
  return pre_tokenizer.split(text, first, work, sink);
}

Result<void> TokenizerTables::encode_normalized(std::string_view text, bool first, std::span<const UserRange> user,
                                                Work& work, std::vector<uint32_t>& out) const {
  if (normalized_tokens.empty()) return encode_words(text, first, work, out);
  return normalized_tokens.split(text, 0, text.size(), user, work, [&](const Piece& piece) -> Result<void> {
    if (piece.token == Piece::kText)
      return encode_words(text.substr(piece.begin, piece.end - piece.begin), first && piece.begin == 0, work, out);
    out.push_back(piece.token);
    return {};
  });
}

Result<void> TokenizerTables::encode_piece(std::string_view text, bool first, std::span<const UserRange> user,
                                           Work& work, std::vector<uint32_t>& out) const {
  if (normalizer.empty()) return encode_normalized(text, first, user, work, out);
  std::vector<UserRange> moved(user.begin(), user.end());
  MC_TRY(changed, normalizer.apply(text, Tokenizer::kTextBytesMax, moved, work));
  return encode_normalized(changed, first, moved, work, out);
}

Result<void> TokenizerTables::encode(std::string_view text, std::span<const UserRange> user, Work& work,
                                     std::vector<uint32_t>& out) const {
  constexpr size_t kPiecesUnchecked = 1024;
  work.add_text(text.size(), normalizer.patterns() + pre_tokenizer.patterns() + model->searches());
  std::vector<UserRange> inner;
  size_t pieces = 0;
  MC_CHECK(raw_tokens.split(text, 0, text.size(), user, work, [&](const Piece& piece) -> Result<void> {
    if (++pieces % kPiecesUnchecked == 0) MC_CHECK(work.check(out.size()));
    if (piece.token != Piece::kText) {
      out.push_back(piece.token);
      return {};
    }
    inner.clear();
    const auto ends_before = [&](const UserRange& range) { return range.end <= piece.begin; };
    for (auto r = std::partition_point(user.begin(), user.end(), ends_before); r != user.end() && r->begin < piece.end;
         ++r)
      inner.push_back({std::max(r->begin, piece.begin) - piece.begin, std::min(r->end, piece.end) - piece.begin});
    return encode_piece(text.substr(piece.begin, piece.end - piece.begin), piece.begin == 0, inner, work, out);
  }));
  return work.check(out.size());
}

Tokenizer::Tokenizer(std::unique_ptr<const TokenizerTables> tables) : tables_(std::move(tables)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Result<Tokenizer> Tokenizer::open_gguf(const std::string& path) {
  MC_TRY(file, gguf::File::open(path));
  auto read = read_gguf_tokenizer(file);
  if (!read) {
    const bool absent = read.error().code == Code::not_found;
    return as_user_error(absent ? err::kModelIncomplete : number_of(read.error()), std::move(read).error());
  }
  auto tables = build_tables(std::move(read->spec), std::move(read->config));
  if (tables) return Tokenizer(std::move(*tables));
  return as_user_error(number_of(tables.error()), std::move(tables).error());
}

Result<Tokenizer> Tokenizer::open(const std::string& folder) {
  if (gguf::is_gguf(folder)) return open_gguf(folder);
  MC_TRY(files, read_tokenizer_files(folder));
  auto opened = parse(files);
  if (!opened) return within(folder, std::move(opened).error());
  return opened;
}

Result<Tokenizer> Tokenizer::open_or_ids(const std::string& folder) {
  auto opened = open(folder);
  if (opened) return opened;
  if (opened.error().mc != err::kModelIncomplete && opened.error().mc != err::kTokenizerUnsupported) return opened;
  TokenizerSpec empty;
  empty.byte_level = true;
  auto tables = build_tables(std::move(empty), {});
  MC_ASSERT(tables.has_value());
  (*tables)->no_text =
      user_error(err::kTokenizerUnsupported, "the model takes token ids only: " + opened.error().what, {},
                 "give token ids: --prompt-ids, or \"prompt\": [ids] in a request");
  return Tokenizer(std::move(*tables));
}

const Error* Tokenizer::no_text() const {
  return tables_->no_text ? &*tables_->no_text : nullptr;
}

Result<Tokenizer> Tokenizer::parse(const TokenizerFiles& files) {
  auto tables = load_tables(files);
  if (tables) return Tokenizer(std::move(*tables));
  return as_user_error(number_of(tables.error()), std::move(tables).error());
}

Result<std::vector<uint32_t>> Tokenizer::encode(std::string_view text, EncodeOptions options) const {
  if (const Error* cause = no_text()) return *cause;
  MC_CHECK(check_size(text.size()));
  MC_CHECK(unicode::check_utf8(text));
  std::vector<uint32_t> out;
  out.reserve(std::min(text.size() / 3, options.limits.tokens_max) + 8);
  if (options.add_special) out = tables_->prefix;
  const UserRange all{0, text.size()};
  const auto user = options.parse_special ? std::span<const UserRange>() : std::span(&all, 1);
  Work own(options.limits);
  MC_CHECK(tables_->encode(text, user, options.work ? *options.work : own, out));
  if (options.add_special) out.insert(out.end(), tables_->suffix.begin(), tables_->suffix.end());
  return out;
}

Result<std::vector<uint32_t>> Tokenizer::encode(std::span<const Part> parts, bool add_special,
                                                const EncodeLimits& limits) const {
  if (const Error* cause = no_text()) return *cause;
  std::string text;
  std::vector<UserRange> user;
  for (const Part& part : parts) {
    if (part.text.empty()) continue;
    const size_t begin = text.size();
    MC_CHECK(check_size(begin + part.text.size()));
    // Each part is checked by itself, so that no character is made of the ends of two parts.
    if (const auto offset = find_invalid_utf8(part.text)) return unicode::not_utf8(begin + *offset);
    text += part.text;
    if (part.user) user.push_back({begin, text.size()});
  }
  std::vector<uint32_t> out;
  Work work(limits);
  MC_CHECK(tables_->encode(text, user, work, out));
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
  return tables_->vocabulary.text_of(id);
}

std::string Tokenizer::token_spelling(uint32_t id) const {
  return std::string(tables_->vocabulary.spelling_of(id));
}

std::optional<uint32_t> Tokenizer::token_to_id(std::string_view bytes) const {
  return tables_->vocabulary.find(bytes);
}

bool Tokenizer::is_special(uint32_t id) const {
  return tables_->vocabulary.is_special(id);
}
uint32_t Tokenizer::vocab_size() const {
  return tables_->vocabulary.size();
}
size_t Tokenizer::text_bytes_max(size_t tokens) const {
  const size_t each = tables_->bytes_per_token;
  return each == 0 || tokens > SIZE_MAX / each ? SIZE_MAX : tokens * each;
}
std::optional<uint32_t> Tokenizer::bos_id() const {
  return tables_->bos;
}
std::optional<uint32_t> Tokenizer::eos_id() const {
  return tables_->eos;
}
std::optional<uint32_t> Tokenizer::unk_id() const {
  return tables_->model->unknown();
}
const TokenizerConfig& Tokenizer::config() const {
  return tables_->config;
}

}  // namespace mc::text
