#include "text/spec.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>

#include "base/json.h"
#include "text/spec_fields.h"
#include "text/string_table.h"

namespace mc::text {
namespace {

constexpr JsonLimits kTokenizerLimits{.bytes = size_t{256} << 20, .depth = 64, .values = size_t{8} << 20};
constexpr JsonLimits kConfigLimits{.bytes = size_t{16} << 20, .depth = 64, .values = size_t{1} << 20};

// --- model ---------------------------------------------------------------------------------------

Result<void> read_vocab(const Json& vocab, TokenizerSpec& spec, StringTable& ids) {
  if (!vocab.is_object()) return wrong_kind("model.vocab", vocab, "an object");
  if (vocab.size() == 0) return bad("model.vocab is empty");
  spec.vocab.reserve(vocab.size());
  ids.reserve(vocab.size());
  std::vector<bool> used;
  for (const auto& [text, value] : vocab.members()) {
    if (text.empty() || text.size() > kTokenBytesMax)
      return bad("model.vocab has a token of " + std::to_string(text.size()) + " bytes; tokens have 1 to " +
                 std::to_string(kTokenBytesMax));
    MC_TRY(id, read_id("model.vocab." + text, value));
    if (id >= used.size()) used.resize(id + 1);
    if (used[id])
      return bad("model.vocab: id " + std::to_string(id) + " is given to two tokens, the second is " + text);
    used[id] = true;
    if (ids.insert(text, id) != StringTable::Insert::done) return bad("model.vocab: token " + text + " occurs twice");
    spec.vocab.push_back({text, id});
  }
  return {};
}

Result<void> read_merges(const Json& merges, TokenizerSpec& spec, const StringTable& ids) {
  if (!merges.is_array()) return wrong_kind("model.merges", merges, "an array");
  spec.merges.reserve(merges.size());
  std::string joined;
  size_t index = 0;
  for (const Json& item : merges.items()) {
    const std::string field = "model.merges[" + std::to_string(index++) + "]";
    std::string_view left, right;
    if (item.is_string()) {
      const std::string_view text = item.as_string();
      if (text.starts_with("#version")) continue;
      const size_t space = text.find(' ');
      if (space == std::string_view::npos || text.find(' ', space + 1) != std::string_view::npos)
        return bad(field + " " + shown(item) + " must be two tokens with one space between");
      left = text.substr(0, space);
      right = text.substr(space + 1);
    } else if (item.is_array() && item.size() == 2 && item[0].is_string() && item[1].is_string()) {
      left = item[size_t{0}].as_string();
      right = item[size_t{1}].as_string();
    } else {
      return bad(field + " " + shown(item) + " must be a string or a pair of strings");
    }
    // the right part of a merge has the prefix, the result has not
    const std::string_view prefix = spec.continuing_prefix;
    if (right.size() < prefix.size())
      return bad(field + " " + shown(item) + " has a right part without model.continuing_subword_prefix");
    joined.assign(left).append(right.substr(prefix.size()));
    const auto id_of = [&](std::string_view token) { return ids.find(token); };
    const auto left_id = id_of(left), right_id = id_of(right), result = id_of(joined);
    if (!left_id || !right_id || !result)
      return bad(field + " " + shown(item) + " names the token " +
                 std::string(!left_id    ? left
                             : !right_id ? right
                                         : std::string_view(joined)) +
                 ", which is not in model.vocab");
    spec.merges.push_back({*left_id, *right_id, *result});
  }
  return {};
}

Result<void> read_bpe(const Json& model, TokenizerSpec& spec, StringTable& ids) {
  const std::pair<const char*, std::string*> texts[] = {{"unk_token", &spec.unk_token},
                                                        {"continuing_subword_prefix", &spec.continuing_prefix},
                                                        {"end_of_word_suffix", &spec.word_suffix}};
  for (const auto& [key, target] : texts) {
    if (!model[key].is_null() && !model[key].is_string())
      return wrong_kind(std::string("model.") + key, model[key], "a string");
    *target = model[key].as_string();
    if (target->size() > kTokenBytesMax) return bad(std::string("model.") + key + " is too long for a token");
  }
  if (const Json& dropout = model["dropout"]; !dropout.is_null() && dropout.as_double(1) != 0)
    return unsupported("model.dropout", dropout, "null");
  MC_TRY(ignore_merges, read_flag("model", model, "ignore_merges", false));
  spec.ignore_merges = ignore_merges;
  MC_TRY(byte_fallback, read_flag("model", model, "byte_fallback", false));
  spec.byte_fallback = byte_fallback;
  MC_TRY(fuse_unk, read_flag("model", model, "fuse_unk", false));
  spec.fuse_unk = fuse_unk;
  if (!model.has("vocab")) return bad("model.vocab is missing");
  if (!model.has("merges")) return bad("model.merges is missing");
  MC_CHECK(read_vocab(model["vocab"], spec, ids));
  return read_merges(model["merges"], spec, ids);
}

/// The score as Hugging Face's tokenizers read it. Their JSON reader (serde_json without "float_roundtrip") divides the
/// digits of a number by a power of ten, and the quotient may miss the nearest double by one unit in the last place.
/// Whether two ways to cut a word have equal sums depends on that unit. The digits are those of the shortest text that
/// reads back as `score`, which writers of JSON print.
double as_reference_reads(double score) {
  constexpr int kPowerMax = 308;
  char text[32], power_text[8] = "1e";
  const char* end = std::to_chars(text, std::end(text), std::abs(score), std::chars_format::scientific).ptr;
  const char* at = text;
  uint64_t digits = 0;  // at most 17
  int power = 0, decimals = 0;
  for (bool is_fraction = false; *at != 'e'; ++at) {
    if (*at == '.') {
      is_fraction = true;
      continue;
    }
    digits = digits * 10 + static_cast<uint64_t>(*at - '0');
    decimals += is_fraction;
  }
  std::from_chars(at[1] == '+' ? at + 2 : at + 1, end, power);
  power -= decimals;
  if (std::abs(power) > kPowerMax) return score;
  double ten = 1;
  const char* power_end = std::to_chars(power_text + 2, std::end(power_text), std::abs(power)).ptr;
  std::from_chars(power_text, power_end, ten);
  const auto whole = static_cast<double>(digits);
  const double read = power < 0 ? whole / ten : whole * ten;
  return std::isfinite(read) ? std::copysign(read, score) : score;
}

/// Unigram: tokens in the order of their ids, each with its score.
Result<void> read_unigram(const Json& model, TokenizerSpec& spec, StringTable& ids) {
  const Json& vocab = model["vocab"];
  if (!vocab.is_array() || vocab.size() == 0 || vocab.size() > kTokenIdEnd)
    return bad("model.vocab must be an array of 1 to " + std::to_string(kTokenIdEnd) + " tokens with scores");
  MC_TRY(byte_fallback, read_flag("model", model, "byte_fallback", false));
  spec.byte_fallback = byte_fallback;
  spec.unigram = true;
  spec.fuse_unk = true;
  spec.vocab.reserve(vocab.size());
  ids.reserve(vocab.size());
  for (uint32_t id = 0; id < vocab.size(); ++id) {
    const Json& row = vocab[id];
    const std::string field = "model.vocab[" + std::to_string(id) + "]";
    if (!row.is_array() || row.size() != 2 || !row[0].is_string() || !std::isfinite(row[1].as_double(NAN)))
      return bad(field + " " + shown(row) + " must be a token and a finite score");
    const std::string_view text = row[size_t{0}].as_string();
    if (text.size() > kTokenBytesMax)
      return bad(field + " has " + std::to_string(text.size()) + " bytes; tokens have at most " +
                 std::to_string(kTokenBytesMax));
    if (!text.empty() && ids.insert(text, id) != StringTable::Insert::done)
      return bad(field + ": token " + std::string(text) + " occurs twice");
    spec.vocab.push_back({std::string(text), id});
    spec.scores.push_back(as_reference_reads(row[1].as_double(0)));
  }
  MC_TRY(unknown, read_id("model.unk_id", model["unk_id"]));
  if (unknown >= spec.vocab.size() || spec.vocab[unknown].text.empty())
    return bad("model.unk_id is " + std::to_string(unknown) + ", which is no token of model.vocab");
  spec.unk_token = spec.vocab[unknown].text;
  return {};
}

struct ModelKind {
  std::string_view type;
  Result<void> (*read)(const Json& model, TokenizerSpec& spec, StringTable& ids);
};
constexpr ModelKind kModels[] = {{"BPE", read_bpe}, {"Unigram", read_unigram}};

Result<void> read_model(const Json& root, TokenizerSpec& spec, StringTable& ids) {
  const Json* model = root.find("model");
  if (model == nullptr) return bad("model is missing");
  if (!model->is_object()) return wrong_kind("model", *model, "an object");
  // Files older than this field hold BPE when they have merges.
  const Json type = model->has("type") ? (*model)["type"] : Json(model->has("merges") ? "BPE" : "");
  for (const ModelKind& kind : kModels)
    if (type == Json(kind.type)) return kind.read(*model, spec, ids);
  return unsupported("model.type", type, "\"BPE\", \"Unigram\"");
}

// --- added tokens ----------------------------------------------------------------------------------

Result<AddedToken> read_added(const std::string& field, const Json& item, bool is_special_default) {
  if (!item.is_object()) return wrong_kind(field, item, "an object");
  if (!item["content"].is_string()) return wrong_kind(field + ".content", item["content"], "a string");
  AddedToken token;
  token.content = item["content"].as_string();
  if (token.content.empty() || token.content.size() > kTokenBytesMax)
    return bad(field + ".content has " + std::to_string(token.content.size()) + " bytes; tokens have 1 to " +
               std::to_string(kTokenBytesMax));
  MC_TRY(special, read_flag(field, item, "special", is_special_default));
  token.special = special;
  MC_TRY(single_word, read_flag(field, item, "single_word", false));
  MC_TRY(lstrip, read_flag(field, item, "lstrip", false));
  MC_TRY(rstrip, read_flag(field, item, "rstrip", false));
  MC_TRY(normalized, read_flag(field, item, "normalized", !special));
  token.single_word = single_word;
  token.lstrip = lstrip;
  token.rstrip = rstrip;
  token.normalized = normalized;
  return token;
}

/// Reads added tokens. Two tokens must not share a content or an id. A token that is listed twice is read once.
Result<void> read_added_tokens(const Json& list, TokenizerSpec& spec, const StringTable& ids) {
  if (list.is_null()) return {};
  if (!list.is_array()) return wrong_kind("added_tokens", list, "an array");
  std::vector<std::pair<uint32_t, std::string_view>> vocab_of_id;
  vocab_of_id.reserve(spec.vocab.size());
  for (const VocabEntry& entry : spec.vocab) vocab_of_id.emplace_back(entry.id, entry.text);
  std::sort(vocab_of_id.begin(), vocab_of_id.end());
  StringTable seen;
  std::vector<bool> used;
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string field = "added_tokens[" + std::to_string(i) + "]";
    MC_TRY(token, read_added(field, list[i], false));
    MC_TRY(id, read_id(field + ".id", list[i]["id"]));
    token.id = id;
    if (const auto earlier = seen.find(token.content)) {
      if (*earlier == id) continue;
      return bad(field + ": " + token.content + " has the ids " + std::to_string(*earlier) + " and " +
                 std::to_string(id));
    }
    if (id >= used.size()) used.resize(id + 1);
    if (used[id])
      return bad(field + ": id " + std::to_string(id) + " is given to two tokens, the second is " + token.content);
    const auto in_vocab = std::lower_bound(vocab_of_id.begin(), vocab_of_id.end(), std::pair(id, std::string_view()));
    if (in_vocab != vocab_of_id.end() && in_vocab->first == id && in_vocab->second != token.content)
      return bad(field + ": id " + std::to_string(id) + " is " + std::string(in_vocab->second) +
                 " in model.vocab and " + token.content + " here");
    if (const auto other = ids.find(token.content); other && *other != id)
      return bad(field + ": " + token.content + " has id " + std::to_string(*other) + " in model.vocab and " +
                 std::to_string(id) + " here");
    used[id] = true;
    if (seen.insert(token.content, id) != StringTable::Insert::done) return bad("added_tokens: crafted contents");
    spec.added.push_back(std::move(token));
  }
  return {};
}

// --- the smaller files -----------------------------------------------------------------------------

/// A token is written as its text or as an object with a content.
std::string token_text(const Json& value) {
  return std::string(value.is_object() ? value["content"].as_string() : value.as_string());
}

void read_names(const Json& root, TokenizerConfig& config) {
  const auto set = [&](const char* key, std::string& target) {
    if (std::string text = token_text(root[key]); !text.empty()) target = std::move(text);
  };
  set("bos_token", config.bos_token);
  set("eos_token", config.eos_token);
  set("pad_token", config.pad_token);
  for (const char* key : {"additional_special_tokens", "extra_special_tokens"})
    for (const Json& item : root[key].items())
      if (std::string text = token_text(item); !text.empty())
        config.additional_special_tokens.push_back(std::move(text));
}

Result<void> read_decoder_map(const Json& map, TokenizerConfig& config) {
  for (const auto& [key, value] : map.members()) {
    const std::string field = "added_tokens_decoder." + key;
    MC_TRY(token, read_added(field, value, false));
    if (key.empty() || key.size() > 9 ||
        !std::all_of(key.begin(), key.end(), [](char c) { return c >= '0' && c <= '9'; }))
      return bad(field + " must be named by an id");
    MC_TRY(id, read_id(field, Json(std::stoll(key))));
    token.id = id;
    config.added.push_back(std::move(token));
  }
  return {};
}

Result<void> read_chat_template(const Json& value, TokenizerConfig& config) {
  if (value.is_null() || value.is_string()) {
    config.chat_template = value.as_string();
    return {};
  }
  if (!value.is_array())
    return Error{Code::invalid, "tokenizer_config.json: chat_template must be a string or a list of named templates"};
  for (const Json& item : value.items()) {
    if (item["name"] == Json("default")) config.chat_template = item["template"].as_string();
    if (item["name"] == Json("tool_use")) config.tool_template = item["template"].as_string();
  }
  if (config.chat_template.empty())
    return Error{Code::unsupported, "tokenizer_config.json: chat_template is a list without one named \"default\""};
  return {};
}

}  // namespace

Result<TokenizerSpec> read_tokenizer_json(std::string_view text) {
  auto parsed = Json::parse(text, kTokenizerLimits);
  if (!parsed) return within("tokenizer.json", std::move(parsed).error());
  const Json& root = *parsed;
  if (!root.is_object()) return wrong_kind("the file", root, "an object");
  TokenizerSpec spec;
  StringTable ids;
  MC_CHECK(read_model(root, spec, ids));
  MC_CHECK(read_added_tokens(root["added_tokens"], spec, ids));
  MC_CHECK(read_steps(root, spec));
  return spec;
}

Result<TokenizerConfig> read_tokenizer_config(const TokenizerFiles& files) {
  TokenizerConfig config;
  if (!files.special_tokens_map.empty()) {
    auto map = Json::parse(files.special_tokens_map, kConfigLimits);
    if (!map) return within("special_tokens_map.json", std::move(map).error());
    read_names(*map, config);
  }
  if (!files.config.empty()) {
    auto parsed = Json::parse(files.config, kConfigLimits);
    if (!parsed) return within("tokenizer_config.json", std::move(parsed).error());
    const Json& root = *parsed;
    read_names(root, config);  // tokenizer_config.json wins where both files name a token
    if (root["add_bos_token"].is_bool()) config.add_bos_token = root["add_bos_token"].as_bool();
    if (root["add_eos_token"].is_bool()) config.add_eos_token = root["add_eos_token"].as_bool();
    if (auto added = read_decoder_map(root["added_tokens_decoder"], config); !added)
      return Error{added.error().code,
                   "tokenizer_config.json: " + added.error().what.substr(sizeof("tokenizer.json: ") - 1)};
    MC_CHECK(read_chat_template(root["chat_template"], config));
  }
  if (!files.chat_template.empty()) {
    config.chat_template = files.chat_template;
    config.tool_template.clear();
  }
  return config;
}

}  // namespace mc::text
