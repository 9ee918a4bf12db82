#include "text/spec_ranks.h"

#include <algorithm>
#include <charconv>

#include "base/assert.h"
#include "base/json.h"
#include "text/base64.h"
#include "text/byte_level.h"
#include "text/spec_fields.h"
#include "text/string_table.h"

namespace mc::text {
namespace {

constexpr JsonLimits kTekkenLimits{.bytes = size_t{256} << 20, .depth = 64, .values = size_t{8} << 20};
constexpr JsonLimits kSideLimits{.bytes = size_t{16} << 20, .depth = 8, .values = size_t{1} << 20};
constexpr const char* kSideName = "tiktoken.json";
constexpr size_t kRankTextBytesMax = size_t{64} << 20;  // of all tokens
constexpr uint64_t kRankWorkMax = uint64_t{1} << 32;    // squares of the tokens' bytes, as in GGUF files
constexpr size_t kRankMergesMax = size_t{1} << 23;      // o200k_base has 900 thousand

// Patterns of released encodings, in the syntax of Rust's regex.
constexpr const char* kR50k = R"('(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s)";
constexpr const char* kCl100k = R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+)"
                                R"(| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s)";
constexpr const char* kO200k =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

struct Special {
  std::string_view content;
  uint32_t id = 0;
};
constexpr Special kR50kSpecial[] = {{"<|endoftext|>", 50256}};
constexpr Special kCl100kSpecial[] = {{"<|endoftext|>", 100257},
                                      {"<|fim_prefix|>", 100258},
                                      {"<|fim_middle|>", 100259},
                                      {"<|fim_suffix|>", 100260},
                                      {"<|endofprompt|>", 100276}};
constexpr Special kO200kSpecial[] = {{"<|endoftext|>", 199999}, {"<|endofprompt|>", 200018}};
constexpr Special kHarmonySpecial[] = {{"<|startoftext|>", 199998}, {"<|endoftext|>", 199999}, {"<|return|>", 200002},
                                       {"<|constrain|>", 200003},   {"<|channel|>", 200005},   {"<|start|>", 200006},
                                       {"<|end|>", 200007},         {"<|message|>", 200008},   {"<|call|>", 200012}};
constexpr Special kLlama3Special[] = {{"<|begin_of_text|>", 128000},
                                      {"<|end_of_text|>", 128001},
                                      {"<|start_header_id|>", 128006},
                                      {"<|end_header_id|>", 128007},
                                      {"<|eot_id|>", 128009}};
constexpr Special kQwenSpecial[] = {{"<|endoftext|>", 151643}, {"<|im_start|>", 151644}, {"<|im_end|>", 151645}};

struct Encoding {
  std::string_view name;
  const char* pattern = "";
  std::span<const Special> special = {};
  // The ids from the first special one up to this are special too; those without a name are "PREFIX" N "|>", where N
  // counts them from 0, or is the id.
  uint32_t end = 0;
  const char* filler = "";
  bool filler_counts = false;
  const char* bos = "";
  const char* eos = "<|endoftext|>";
  bool nfc = false;
};
constexpr Encoding kEncodings[] = {
    {.name = "cl100k_base", .pattern = kCl100k, .special = kCl100kSpecial},
    {.name = "o200k_base", .pattern = kO200k, .special = kO200kSpecial},
    {.name = "o200k_harmony",
     .pattern = kO200k,
     .special = kHarmonySpecial,
     .end = 201088,
     .filler = "<|reserved_",
     .bos = "<|startoftext|>",
     .eos = "<|return|>"},
    {.name = "llama3",
     .pattern = kLlama3Pattern,
     .special = kLlama3Special,
     .end = 128256,
     .filler = "<|reserved_special_token_",
     .filler_counts = true,
     .bos = "<|begin_of_text|>",
     .eos = "<|end_of_text|>"},
    {.name = "r50k_base", .pattern = kR50k, .special = kR50kSpecial},
    {.name = "p50k_base", .pattern = kR50k, .special = kR50kSpecial},
    {.name = "qwen",
     .pattern = kQwen2Pattern,
     .special = kQwenSpecial,
     .end = 151851,
     .filler = "<|extra_",
     .filler_counts = true,
     .nfc = true},
};

// The special tokens of tekken.json up to version 7, which does not list them.
constexpr std::string_view kTekkenSpecial[] = {"<unk>",
                                               "<s>",
                                               "</s>",
                                               "[INST]",
                                               "[/INST]",
                                               "[AVAILABLE_TOOLS]",
                                               "[/AVAILABLE_TOOLS]",
                                               "[TOOL_RESULTS]",
                                               "[/TOOL_RESULTS]",
                                               "[TOOL_CALLS]",
                                               "[IMG]",
                                               "<pad>",
                                               "[IMG_BREAK]",
                                               "[IMG_END]",
                                               "[PREFIX]",
                                               "[MIDDLE]",
                                               "[SUFFIX]",
                                               "[SYSTEM_PROMPT]",
                                               "[/SYSTEM_PROMPT]",
                                               "[TOOL_CONTENT]"};

Error wrong(const std::string& where, const std::string& what) {
  return {Code::invalid, where + ": " + what};
}

/// Byte strings with their ids. It bounds what an untrusted file can cost.
class RankTable {
 public:
  explicit RankTable(std::string source) : source_(std::move(source)) {}

  Result<void> add(const std::string& where, std::string bytes, uint64_t id) {
    if (bytes.empty() || bytes.size() > kTokenBytesMax)
      return wrong(where, "the token has " + std::to_string(bytes.size()) + " bytes; tokens have 1 to " +
                              std::to_string(kTokenBytesMax));
    if (id >= kTokenIdEnd)
      return wrong(where, "the id is " + std::to_string(id) + "; ids go from 0 to " + std::to_string(kTokenIdEnd - 1));
    work_ += uint64_t{bytes.size()} * bytes.size();
    if ((bytes_ += bytes.size()) > kRankTextBytesMax || work_ > kRankWorkMax)
      return wrong(source_, "there are too many long tokens to try every cut of each");
    if (id >= used_.size()) used_.resize(id + 1);
    if (used_[id]) return wrong(where, "the id " + std::to_string(id) + " is given to two tokens");
    used_[id] = true;
    switch (ids_.insert(bytes, static_cast<uint32_t>(id))) {
      case StringTable::Insert::done: break;
      case StringTable::Insert::duplicate:
        return wrong(where,
                     "the token has the ids " + std::to_string(*ids_.find(bytes)) + " and " + std::to_string(id));
      case StringTable::Insert::crowded: return wrong(source_, "it holds crafted tokens");
    }
    tokens_.push_back({std::move(bytes), static_cast<uint32_t>(id)});
    return {};
  }

  bool is_used(uint32_t id) const { return id < used_.size() && used_[id]; }

  /// Vocabulary, merges and the steps that all such tokenizers share.
  Result<void> finish(std::string pattern, TokenizerSpec& spec) {
    for (int byte = 0; byte < 256; ++byte)
      if (!ids_.find(std::string(1, static_cast<char>(byte))))
        return wrong(source_, "no token is the byte " + std::to_string(byte) + " alone");
    spec.source = source_;
    spec.byte_level = true;
    spec.ignore_merges = true;  // a word that is a token is never cut
    spec.rank_is_id = true;
    spec.pre.push_back(
        {.pattern = std::move(pattern), .syntax = PatternSyntax::rust, .behavior = SplitBehavior::isolated});
    spec.decoder.push_back({.kind = DecoderStep::Kind::byte_level});
    spec.vocab.reserve(tokens_.size());
    for (const VocabEntry& token : tokens_) {
      MC_CHECK(add_merges(token, spec));
      spec.vocab.push_back({spell_bytes(token.text), token.id});
    }
    MC_ASSERT_EQ(spec.vocab.size(), ids_.size());
    return {};
  }

 private:
  Result<void> add_merges(const VocabEntry& token, TokenizerSpec& spec) const {
    const std::string_view bytes = token.text;
    for (size_t cut = 1; cut < bytes.size(); ++cut) {
      const auto left = ids_.find(bytes.substr(0, cut)), right = ids_.find(bytes.substr(cut));
      if (left && right) spec.merges.push_back({*left, *right, token.id});
    }
    if (spec.merges.size() > kRankMergesMax)
      return wrong(source_, "the tokens can be merged in more than " + std::to_string(kRankMergesMax) + " ways");
    return {};
  }

  std::string source_;
  std::vector<VocabEntry> tokens_;  // `text` is bytes
  StringTable ids_;
  std::vector<bool> used_;  // by id
  size_t bytes_ = 0;
  uint64_t work_ = 0;
};

Result<void> add_special(const RankTable& table, std::string content, uint32_t id, TokenizerSpec& spec) {
  if (content.empty() || content.size() > kTokenBytesMax)
    return wrong(spec.source, "a special token has " + std::to_string(content.size()) + " bytes; tokens have 1 to " +
                                  std::to_string(kTokenBytesMax));
  if (table.is_used(id))
    return wrong(spec.source,
                 "the special token " + content + " has the id " + std::to_string(id) + ", which another token has");
  spec.added.push_back({.content = std::move(content), .id = id, .special = true});
  return {};
}

/// Contents and ids of the special tokens are unique.
Result<void> check_special(const TokenizerSpec& spec) {
  StringTable contents;
  std::vector<bool> used;
  for (const AddedToken& token : spec.added) {
    const std::string named = "the special token " + token.content;
    if (contents.insert(token.content, token.id) != StringTable::Insert::done)
      return wrong(spec.source, named + " occurs twice");
    if (token.id >= used.size()) used.resize(token.id + 1);
    if (used[token.id]) return wrong(spec.source, named + " has the id of another one, " + std::to_string(token.id));
    used[token.id] = true;
  }
  return {};
}

// --- tiktoken --------------------------------------------------------------------------------------

Result<void> read_lines(const TokenizerFiles& files, RankTable& table) {
  const std::string_view text = files.ranks;
  size_t line_number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string_view line = text.substr(begin, end - begin);
    begin = end + 1;
    const std::string where = files.ranks_name + ":" + std::to_string(++line_number);
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty()) continue;
    const size_t space = line.find(' ');
    auto bytes = space == line.npos ? std::nullopt : decode_base64(line.substr(0, space));
    uint64_t rank = 0;
    const char* first = line.data() + (bytes ? space + 1 : line.size());
    const auto [last, error] = std::from_chars(first, line.data() + line.size(), rank);
    if (!bytes || error != std::errc() || last != line.data() + line.size())
      return wrong(where, "a line must be a token in base64, a space and its rank");
    MC_CHECK(table.add(where, std::move(*bytes), rank));
  }
  return {};
}

/// The content of tiktoken.json; fields that it lacks are empty.
struct Side {
  std::string encoding, pattern, bos, eos;
  std::optional<std::vector<std::pair<std::string, uint32_t>>> special;
  std::optional<bool> nfc;
};

Result<Side> read_side(const std::string& text) {
  Side out;
  if (text.empty()) return out;
  auto parsed = Json::parse(text, kSideLimits);
  if (!parsed) return within(kSideName, std::move(parsed).error());
  if (!parsed->is_object()) return wrong(kSideName, "the file must be an object");
  const std::pair<std::string_view, std::string*> texts[] = {
      {"encoding", &out.encoding}, {"pat_str", &out.pattern}, {"bos_token", &out.bos}, {"eos_token", &out.eos}};
  for (const auto& [key, value] : parsed->members()) {
    const auto* row = std::find_if(std::begin(texts), std::end(texts), [&](const auto& r) { return r.first == key; });
    if (row != std::end(texts)) {
      if (!value.is_string()) return wrong(kSideName, key + " must be a string");
      *row->second = value.as_string();
    } else if (key == "special_tokens") {
      if (!value.is_object()) return wrong(kSideName, "special_tokens must be an object of contents and ids");
      out.special.emplace();
      for (const auto& [content, id] : value.members()) {
        if (!id.is_int() || id.as_int() < 0 || id.as_int() >= kTokenIdEnd)
          return wrong(kSideName,
                       "special_tokens." + content + " must be an id from 0 to " + std::to_string(kTokenIdEnd - 1));
        out.special->emplace_back(content, static_cast<uint32_t>(id.as_int()));
      }
    } else if (key == "normalizer") {
      if (!value.is_null() && value != Json("NFC"))
        return Error{Code::unsupported,
                     std::string(kSideName) + ": normalizer is " + shown(value) + "; supported: \"NFC\", null"};
      out.nfc = !value.is_null();
    } else {
      return Error{Code::unsupported, std::string(kSideName) + ": " + key +
                                          " is not known; supported: encoding, pat_str, special_tokens, normalizer, "
                                          "bos_token, eos_token"};
    }
  }
  return out;
}

const Encoding* encoding_of(std::string_view name) {
  const auto* row = std::find_if(std::begin(kEncodings), std::end(kEncodings),
                                 [&](const Encoding& encoding) { return encoding.name == name; });
  return row == std::end(kEncodings) ? nullptr : row;
}

Error unknown_encoding(const std::string& source, std::string_view name) {
  std::string known;
  for (const Encoding& encoding : kEncodings) known += (known.empty() ? "" : ", ") + std::string(encoding.name);
  return {Code::unsupported, source + ": no encoding is known by the name '" + std::string(name) +
                                 "'; supported: " + known + "; or write pat_str and special_tokens into " + kSideName +
                                 " beside the file"};
}

Result<void> add_named(const Encoding& encoding, const RankTable& table, TokenizerSpec& spec) {
  for (const Special& token : encoding.special)
    MC_CHECK(add_special(table, std::string(token.content), token.id, spec));
  uint32_t count = 0;
  for (uint32_t id = encoding.special.front().id; id < encoding.end; ++id) {
    if (std::any_of(encoding.special.begin(), encoding.special.end(), [&](const Special& s) { return s.id == id; }))
      continue;
    const uint32_t number = encoding.filler_counts ? count++ : id;
    MC_CHECK(add_special(table, encoding.filler + std::to_string(number) + "|>", id, spec));
  }
  return {};
}

// --- tekken.json -------------------------------------------------------------------------------------

Result<uint32_t> read_count(const Json& config, const char* key) {
  const Json& value = config[key];
  if (!value.is_int() || value.as_int() < 0 || value.as_int() > kTokenIdEnd)
    return wrong("tekken.json", std::string("config.") + key + " " + shown(value) + " must be a number from 0 to " +
                                    std::to_string(kTokenIdEnd));
  return static_cast<uint32_t>(value.as_int());
}

Result<std::vector<std::string>> read_tekken_special(const Json& root, uint32_t count) {
  std::vector<std::string> names(count);
  const Json& list = root["special_tokens"];
  if (list.is_null()) {
    for (size_t i = 0; i < std::min<size_t>(count, std::size(kTekkenSpecial)); ++i) names[i] = kTekkenSpecial[i];
  } else if (!list.is_array() || list.size() > count) {
    return wrong("tekken.json", "special_tokens must be an array of at most " + std::to_string(count) + " tokens");
  }
  for (size_t i = 0; i < list.size(); ++i) {
    const Json& rank = list[i]["rank"];
    const std::string field = "special_tokens[" + std::to_string(i) + "]";
    if (!rank.is_int() || rank.as_int() < 0 || rank.as_int() >= count || !list[i]["token_str"].is_string())
      return wrong("tekken.json", field + " needs a token_str, and a rank below " + std::to_string(count));
    names[static_cast<size_t>(rank.as_int())] = list[i]["token_str"].as_string();
  }
  for (uint32_t id = 0; id < count; ++id)
    if (names[id].empty()) names[id] = "<SPECIAL_" + std::to_string(id) + ">";
  return names;
}

}  // namespace

Result<TokenizerSpec> read_ranks(const TokenizerFiles& files, TokenizerConfig& config) {
  TokenizerSpec spec;
  spec.source = files.ranks_name;
  MC_TRY(side, read_side(files.ranks_side));
  std::string_view name = side.encoding;
  if (name.empty()) {
    name = files.ranks_name;
    if (name.ends_with(kRanksSuffix)) name.remove_suffix(kRanksSuffix.size());
  }
  const Encoding* encoding = encoding_of(name);
  const bool is_whole = !side.pattern.empty() && side.special;
  if (!encoding && (!side.encoding.empty() || !is_whole)) return unknown_encoding(files.ranks_name, name);
  static constexpr Encoding kNothing{.name = "", .eos = ""};
  if (!encoding) encoding = &kNothing;
  RankTable table(files.ranks_name);
  MC_CHECK(read_lines(files, table));
  MC_CHECK(table.finish(side.pattern.empty() ? encoding->pattern : side.pattern, spec));
  if (side.special) {
    for (auto& [content, id] : *side.special) MC_CHECK(add_special(table, content, id, spec));
  } else {
    MC_CHECK(add_named(*encoding, table, spec));
  }
  MC_CHECK(check_special(spec));
  if (side.nfc.value_or(encoding->nfc)) spec.normalizer.push_back({.form = unicode::NormalForm::nfc});
  if (config.bos_token.empty()) config.bos_token = side.bos.empty() ? encoding->bos : side.bos;
  if (config.eos_token.empty()) config.eos_token = side.eos.empty() ? encoding->eos : side.eos;
  if (!config.add_bos_token) config.add_bos_token = !config.bos_token.empty();
  return spec;
}

Result<TokenizerSpec> read_tekken(const TokenizerFiles& files, TokenizerConfig& config) {
  auto parsed = Json::parse(files.tekken, kTekkenLimits);
  if (!parsed) return within("tekken.json", std::move(parsed).error());
  const Json& root = *parsed;
  const Json& about = root["config"];
  if (!about["pattern"].is_string()) return wrong("tekken.json", "config.pattern must be a string");
  MC_TRY(special, read_count(about, "default_num_special_tokens"));
  MC_TRY(size, read_count(about, "default_vocab_size"));
  const Json& vocab = root["vocab"];
  if (!vocab.is_array()) return wrong("tekken.json", "vocab must be an array");
  if (size < special || vocab.size() < size - special)
    return wrong("tekken.json", "vocab has " + std::to_string(vocab.size()) + " tokens; config.default_vocab_size is " +
                                    std::to_string(size) + ", of which " + std::to_string(special) + " are special");
  RankTable table("tekken.json");
  for (size_t i = 0; i < size - special; ++i) {
    const std::string where = "tekken.json: vocab[" + std::to_string(i) + "]";
    const Json& row = vocab[i];
    auto bytes = row["token_bytes"].is_string() ? decode_base64(row["token_bytes"].as_string()) : std::nullopt;
    // The ranks count from 0, so a rank beyond the size is one that the model has no row for.
    if (!bytes || !row["rank"].is_int() || row["rank"].as_int() < 0 || row["rank"].as_int() >= size - special)
      return wrong(where, "needs token_bytes in base64, and a rank below " + std::to_string(size - special));
    MC_CHECK(table.add(where, std::move(*bytes), static_cast<uint64_t>(row["rank"].as_int()) + special));
  }
  TokenizerSpec spec;
  MC_CHECK(table.finish(std::string(about["pattern"].as_string()), spec));
  MC_TRY(names, read_tekken_special(root, special));
  for (uint32_t id = 0; id < special; ++id) MC_CHECK(add_special(table, std::move(names[id]), id, spec));
  MC_CHECK(check_special(spec));
  if (config.bos_token.empty()) config.bos_token = "<s>";
  if (config.eos_token.empty()) config.eos_token = "</s>";
  if (!config.add_bos_token) config.add_bos_token = true;
  return spec;
}

}  // namespace mc::text
