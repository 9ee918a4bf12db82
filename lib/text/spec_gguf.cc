#include "text/spec_gguf.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/assert.h"
#include "text/regex.h"
#include "text/spec_fields.h"
#include "text/string_table.h"
#include "unicode/utf8.h"

namespace mc::text {
namespace {

constexpr const char* kKind = "tokenizer.ggml.model";
constexpr const char* kPre = "tokenizer.ggml.pre";
constexpr const char* kTokens = "tokenizer.ggml.tokens";
constexpr const char* kScores = "tokenizer.ggml.scores";
constexpr const char* kTypes = "tokenizer.ggml.token_type";
constexpr const char* kMerges = "tokenizer.ggml.merges";
constexpr const char* kTemplate = "tokenizer.chat_template";
constexpr size_t kTemplateBytesMax = size_t{16} << 20;
constexpr uint64_t kMergesMax = kTokenIdEnd;               // like the tokens that they make
constexpr size_t kTextBytesMax = size_t{64} << 20;         // of all tokens
constexpr uint64_t kMergeWorkMax = uint64_t{1} << 32;      // squares of the tokens' bytes: all 2^22 may have 32
constexpr uint64_t kCharsmapBytesMax = uint64_t{4} << 20;  // released ones have 300 KB
constexpr const char* kMark = "\u2581";                    // SentencePiece's space

/// The numbers in tokenizer.ggml.token_type.
enum class TokenType : uint8_t { normal = 1, unknown = 2, control = 3, user_defined = 4, unused = 5, byte = 6 };

// The patterns of released models' tokenizer.json, by the name that converters give their pre-tokenizer.
constexpr const char* kDigit = R"(\p{N})";
constexpr const char* kTekken = R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
                                R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
                                R"(|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

struct PreRow {
  std::string_view name;
  std::array<const char*, 2> patterns;  // one Split (isolated) each, in this order; null: no more
  bool nfc;                             // text is normalised to NFC first
  bool whole_words;                     // a word in the vocabulary is one token, whatever its merges
  bool bos;                             // BOS in front where tokenizer.ggml.add_bos_token is absent
};
constexpr PreRow kPreRows[] = {
    {"gpt-2", {kGpt2Pattern}, false, false, false},
    {"smollm", {kDigit, kGpt2Pattern}, false, false, false},
    {"starcoder", {kDigit, kGpt2Pattern}, false, false, false},
    {"llama-bpe", {kLlama3Pattern}, false, true, true},
    {"llama3", {kLlama3Pattern}, false, true, true},
    {"qwen2", {kQwen2Pattern}, true, false, false},
    {"deepseek-r1-qwen", {kQwen2Pattern}, true, false, false},
    {"tekken", {kTekken}, false, true, true},
};

/// The first characters of a token, for messages.
std::string shown_token(std::string_view token) {
  constexpr size_t kShownMax = 60;
  return "'" + std::string(token.substr(0, kShownMax)) + (token.size() > kShownMax ? "...'" : "'");
}

class GgufReader {
 public:
  explicit GgufReader(const gguf::File& file) : file_(file), header_(file.header()) {}

  Result<GgufTokenizer> read() {
    out_.spec.source = file_.paths().front();
    const gguf::Value* kind = header_.find(kKind);
    if (!kind)
      return Error{Code::not_found, out_.spec.source + ": there is no tokenizer, because " + kKind + " is missing"};
    const std::string_view name = kind->text().value_or("");
    static constexpr std::pair<std::string_view, Result<void> (GgufReader::*)()> kKinds[] = {
        {"gpt2", &GgufReader::read_byte_level},
        {"llama", &GgufReader::read_sentence_piece},
        {"t5", &GgufReader::read_unigram}};
    const auto* row =
        std::find_if(std::begin(kKinds), std::end(kKinds), [&](const auto& k) { return k.first == name; });
    if (row == std::end(kKinds))
      return foreign(kKind, "'gpt2' (byte-level BPE), 'llama' (SentencePiece's BPE), 't5' (Unigram)");
    MC_CHECK(read_tokens());
    MC_CHECK((this->*row->second)());
    MC_CHECK(read_special_ids());
    MC_CHECK(read_template());
    return std::move(out_);
  }

 private:
  Error wrong(const std::string& key, const std::string& what) const {
    return {Code::invalid, out_.spec.source + ": " + key + " " + what};
  }
  Error foreign(const char* key, const std::string& supported) const {
    const gguf::Value* value = header_.find(key);
    return {Code::unsupported, out_.spec.source + ": " + key + " is " + (value ? value->shown() : "missing") +
                                   "; supported: " + supported};
  }

  Result<void> read_tokens() {
    const gguf::Value* tokens = header_.find(kTokens);
    auto texts = tokens && tokens->count() <= kTokenIdEnd ? tokens->texts() : std::nullopt;
    if (!texts || texts->empty())
      return wrong(kTokens, "is " + (tokens ? tokens->shown() : "missing") + "; it must be an array of 1 to " +
                                std::to_string(kTokenIdEnd) + " strings");
    tokens_ = std::move(*texts);
    MC_CHECK(read_types());
    TokenizerSpec& spec = out_.spec;
    spec.vocab.reserve(tokens_.size());
    ids_.reserve(tokens_.size());
    size_t bytes = 0;
    for (uint32_t id = 0; id < tokens_.size(); ++id) {
      const std::string_view token = tokens_[id];
      if (types_[id] == TokenType::unused || token.empty()) continue;  // no text has this id
      const std::string field = std::string(kTokens) + "[" + std::to_string(id) + "]";
      if (token.size() > kTokenBytesMax)
        return wrong(field, "has " + std::to_string(token.size()) + " bytes; tokens have at most " +
                                std::to_string(kTokenBytesMax));
      if ((bytes += token.size()) > kTextBytesMax)
        return wrong(kTokens, "has more than " + std::to_string(kTextBytesMax) + " bytes of text");
      if (find_invalid_utf8(token)) return wrong(field, "is not valid UTF-8");
      switch (ids_.insert(token, id)) {
        case StringTable::Insert::done: break;
        case StringTable::Insert::duplicate:
          return wrong(field, "is " + shown_token(token) + ", like token " + std::to_string(*ids_.find(token)));
        case StringTable::Insert::crowded: return wrong(kTokens, "holds crafted tokens");
      }
      spec.vocab.push_back({std::string(token), id});
      const bool special = types_[id] == TokenType::control || types_[id] == TokenType::unknown;
      if (special || types_[id] == TokenType::user_defined)
        spec.added.push_back({.content = std::string(token), .id = id, .special = special});
    }
    MC_ASSERT_LE(spec.vocab.size(), tokens_.size());
    return {};
  }

  /// The numbers of an array with one for each token. The length is looked at first: the file is untrusted, and
  /// numbers() takes 8 bytes for each.
  std::optional<std::vector<double>> one_for_each_token(const gguf::Value* value) const {
    return value && value->count() == tokens_.size() ? value->numbers() : std::nullopt;
  }

  Result<void> read_types() {
    types_.assign(tokens_.size(), TokenType::normal);
    const gguf::Value* value = header_.find(kTypes);
    if (!value) return {};
    const auto numbers = one_for_each_token(value);
    if (!numbers)
      return wrong(kTypes, "is " + value->shown() + "; it must have one number for each of " +
                               std::to_string(tokens_.size()) + " tokens");
    for (size_t i = 0; i < numbers->size(); ++i) {
      const double number = (*numbers)[i];
      if (!(number >= 0 && number <= 6) || number != std::floor(number))
        return wrong(std::string(kTypes) + "[" + std::to_string(i) + "]", "is no token type from 0 to 6");
      types_[i] = number == 0 ? TokenType::normal : static_cast<TokenType>(number);
    }
    return {};
  }

  Result<void> read_byte_level() {
    const gguf::Value* value = header_.find(kPre);
    const std::string_view name = value ? value->text().value_or("") : "";
    const auto* row =
        std::find_if(std::begin(kPreRows), std::end(kPreRows), [&](const PreRow& r) { return r.name == name; });
    if (row == std::end(kPreRows)) {
      std::string known;
      for (const PreRow& r : kPreRows) known += (known.empty() ? "" : ", ") + std::string(r.name);
      return foreign(kPre, known);
    }
    TokenizerSpec& spec = out_.spec;
    spec.byte_level = true;
    spec.ignore_merges = row->whole_words;
    out_.config.add_bos_token = row->bos;
    if (row->nfc) spec.normalizer.push_back({.form = unicode::NormalForm::nfc});
    MC_TRY(prefix, file_.flag("tokenizer.ggml.add_space_prefix"));
    if (prefix.value_or(false)) spec.pre.push_back({.kind = PreStep::Kind::prefix_space});
    for (const char* pattern : row->patterns)
      if (pattern) spec.pre.push_back({.pattern = pattern, .behavior = SplitBehavior::isolated});
    spec.decoder.push_back({.kind = DecoderStep::Kind::byte_level});
    return read_merges();
  }

  Result<void> read_merges() {
    const gguf::Value* value = header_.find(kMerges);
    if (value && value->count() > kMergesMax)
      return wrong(kMerges, "is " + value->shown() + "; it must have at most " + std::to_string(kMergesMax));
    const auto merges = value ? value->texts() : std::nullopt;
    if (!merges)
      return wrong(kMerges, "is " + (value ? value->shown() : "missing") + "; it must be an array of strings");
    out_.spec.merges.reserve(merges->size());
    std::string joined;
    for (size_t i = 0; i < merges->size(); ++i) {
      const std::string_view text = (*merges)[i];
      const size_t space = text.find(' ', 1);
      if (space == std::string_view::npos)
        return wrong(std::string(kMerges) + "[" + std::to_string(i) + "]",
                     "is " + shown_token(text) + "; it must be two tokens with a space between");
      const std::string_view left = text.substr(0, space), right = text.substr(space + 1);
      joined.assign(left).append(right);
      const auto left_id = ids_.find(left), right_id = ids_.find(right), result = ids_.find(joined);
      if (!left_id || !right_id || !result)
        return wrong(std::string(kMerges) + "[" + std::to_string(i) + "]",
                     "is " + shown_token(text) + ", but " + kTokens + " lacks a part of it or its result");
      out_.spec.merges.push_back({*left_id, *right_id, *result});
    }
    return {};
  }

  Result<void> read_sentence_piece() {
    TokenizerSpec& spec = out_.spec;
    spec.byte_fallback = true;
    spec.fuse_unk = true;
    out_.config.add_bos_token = true;
    MC_TRY(unknown, file_.whole("tokenizer.ggml.unknown_token_id", 0, UINT32_MAX));
    const uint64_t id = unknown.value_or(0);
    if (id < tokens_.size() && ids_.find(tokens_[id]) == id) spec.unk_token = tokens_[id];
    MC_TRY(prefix, file_.flag("tokenizer.ggml.add_space_prefix"));
    if (prefix.value_or(true)) spec.normalizer.push_back({.kind = NormalizerStep::Kind::prepend, .content = kMark});
    spec.normalizer.push_back(
        {.kind = NormalizerStep::Kind::replace, .pattern = Regex::quote(" "), .literal_bytes = 1, .content = kMark});
    spec.decoder.push_back({.kind = DecoderStep::Kind::replace, .pattern = Regex::quote(kMark), .content = " "});
    spec.decoder.push_back({.kind = DecoderStep::Kind::byte_fallback});
    spec.decoder.push_back({.kind = DecoderStep::Kind::fuse});
    if (prefix.value_or(true)) spec.decoder.push_back({.kind = DecoderStep::Kind::strip, .content = " ", .start = 1});
    return make_merges();
  }

  /// SentencePiece's Unigram: scores, and its map of characters.
  Result<void> read_unigram() {
    TokenizerSpec& spec = out_.spec;
    spec.unigram = true;
    spec.fuse_unk = true;
    const gguf::Value* value = header_.find(kScores);
    const auto scores = one_for_each_token(value);
    if (!scores)
      return wrong(kScores, "is " + (value ? value->shown() : "missing") + "; it must have one number for each of " +
                                std::to_string(tokens_.size()) + " tokens");
    for (const VocabEntry& entry : spec.vocab) {
      const double score = (*scores)[entry.id];
      if (!std::isfinite(score))
        return wrong(std::string(kScores) + "[" + std::to_string(entry.id) + "]", "is not a finite number");
      spec.scores.push_back(score);
      spec.byte_fallback |= types_[entry.id] == TokenType::byte;
    }
    const char* key = "tokenizer.ggml.unknown_token_id";
    MC_TRY(unknown, file_.whole(key, 0, UINT32_MAX));
    const uint64_t id = unknown.value_or(2);
    if (id >= tokens_.size() || ids_.find(tokens_[id]) != id)
      return wrong(key, "is " + std::to_string(id) + ", which is no token");
    spec.unk_token = tokens_[id];
    MC_CHECK(read_charsmap());
    MC_TRY(trims, file_.flag("tokenizer.ggml.remove_extra_whitespaces"));
    if (trims.value_or(false)) {
      spec.normalizer.push_back({.kind = NormalizerStep::Kind::strip, .left = true, .right = true});
      spec.normalizer.push_back({.kind = NormalizerStep::Kind::replace, .pattern = " {2,}", .content = " "});
    }
    MC_TRY(prefix, file_.flag("tokenizer.ggml.add_space_prefix"));
    const PrependScheme scheme = prefix.value_or(true) ? PrependScheme::always : PrependScheme::never;
    spec.pre.push_back({.kind = PreStep::Kind::metaspace, .mark = kMark, .prepend = scheme, .split = false});
    spec.decoder.push_back({.kind = DecoderStep::Kind::metaspace, .content = kMark, .prepend = scheme});
    if (spec.byte_fallback) spec.decoder.push_back({.kind = DecoderStep::Kind::byte_fallback});
    return {};
  }

  Result<void> read_charsmap() {
    const char* key = "tokenizer.ggml.precompiled_charsmap";
    const gguf::Value* value = header_.find(key);
    if (!value) return {};
    const auto bytes = value->count() <= kCharsmapBytesMax ? value->numbers() : std::nullopt;
    if (!bytes)
      return wrong(key, "is " + value->shown() + "; it must be an array of at most " +
                            std::to_string(kCharsmapBytesMax) + " bytes");
    std::string map;
    for (double byte : *bytes) {
      if (!(byte >= -128 && byte <= 255) || byte != std::floor(byte))
        return wrong(key, "holds a number that is no byte");
      map.push_back(static_cast<char>(static_cast<int>(byte) & 0xFF));
    }
    out_.spec.normalizer.push_back({.kind = NormalizerStep::Kind::charsmap, .content = std::move(map)});
    return {};
  }

  /// Every way to cut a token into two tokens is a merge. Merges are applied by the score of the token they make; among
  /// equal scores the longer left part, then the longer right part (in characters) comes first.
  Result<void> make_merges() {
    const gguf::Value* value = header_.find(kScores);
    const auto scores = one_for_each_token(value);
    if (!scores)
      return wrong(kScores, "is " + (value ? value->shown() : "missing") + "; it must have one number for each of " +
                                std::to_string(tokens_.size()) + " tokens");
    uint64_t work = 0;  // each cut looks both parts up
    for (uint32_t id = 0; id < tokens_.size(); ++id) {
      const uint64_t size = types_[id] == TokenType::normal ? tokens_[id].size() : 0;
      if ((work += size * size) > kMergeWorkMax)
        return wrong(kTokens, "has too many long tokens to try every cut of each");
    }
    struct Candidate {
      double score;
      uint32_t left_characters, right_characters;
      Merge merge;
    };
    std::vector<Candidate> all;
    for (uint32_t id = 0; id < tokens_.size(); ++id) {
      if (types_[id] != TokenType::normal || tokens_[id].empty()) continue;
      const double score = (*scores)[id];
      if (!std::isfinite(score))
        return wrong(std::string(kScores) + "[" + std::to_string(id) + "]", "is not a finite number");
      const std::string_view token = tokens_[id];
      std::vector<size_t> starts;  // of characters
      for (size_t at = 0; at < token.size(); at += unicode::decode_utf8(token.substr(at)).bytes) starts.push_back(at);
      const size_t first = all.size();
      for (size_t cut = 1; cut < starts.size(); ++cut) {
        const auto left = ids_.find(token.substr(0, starts[cut])), right = ids_.find(token.substr(starts[cut]));
        if (left && right)
          all.push_back(
              {score, static_cast<uint32_t>(cut), static_cast<uint32_t>(starts.size() - cut), {*left, *right, id}});
      }
      std::sort(all.begin() + static_cast<std::ptrdiff_t>(first), all.end(), [](const auto& a, const auto& b) {
        return std::pair(a.merge.left, a.merge.right) < std::pair(b.merge.left, b.merge.right);
      });
    }
    std::stable_sort(all.begin(), all.end(), [](const Candidate& a, const Candidate& b) {
      if (a.score != b.score) return a.score > b.score;
      if (a.left_characters != b.left_characters) return a.left_characters > b.left_characters;
      return a.right_characters > b.right_characters;
    });
    for (const Candidate& candidate : all) out_.spec.merges.push_back(candidate.merge);
    return {};
  }

  Result<void> read_special_ids() {
    const std::pair<const char*, std::string*> names[] = {{"tokenizer.ggml.bos_token_id", &out_.config.bos_token},
                                                          {"tokenizer.ggml.eos_token_id", &out_.config.eos_token},
                                                          {"tokenizer.ggml.padding_token_id", &out_.config.pad_token}};
    for (const auto& [key, token] : names) {
      MC_TRY(id, file_.whole(key, 0, UINT32_MAX));
      if (!id || *id == UINT32_MAX) continue;  // all ones: none
      if (*id >= tokens_.size())
        return wrong(key,
                     "is " + std::to_string(*id) + ", but there are " + std::to_string(tokens_.size()) + " tokens");
      *token = tokens_[*id];
    }
    MC_TRY(bos, file_.flag("tokenizer.ggml.add_bos_token"));
    MC_TRY(eos, file_.flag("tokenizer.ggml.add_eos_token"));
    if (bos) out_.config.add_bos_token = *bos;
    if (eos) out_.config.add_eos_token = *eos;
    return {};
  }

  Result<void> read_template() {
    const std::pair<std::string, std::string*> templates[] = {
        {kTemplate, &out_.config.chat_template}, {std::string(kTemplate) + ".tool_use", &out_.config.tool_template}};
    for (const auto& [key, target] : templates) {
      MC_TRY(text, file_.text(key));
      if (text && text->size() > kTemplateBytesMax)
        return wrong(
            key, "has " + std::to_string(text->size()) + " bytes; the most is " + std::to_string(kTemplateBytesMax));
      *target = text.value_or("");
    }
    return {};
  }

  const gguf::File& file_;
  const gguf::Header& header_;
  GgufTokenizer out_;
  std::vector<std::string_view> tokens_;
  std::vector<TokenType> types_;
  StringTable ids_;
};

}  // namespace

Result<GgufTokenizer> read_gguf_tokenizer(const gguf::File& file) {
  return GgufReader(file).read();
}

}  // namespace mc::text
