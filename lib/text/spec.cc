#include "text/spec.h"

#include <algorithm>

#include "base/json.h"
#include "text/regex.h"
#include "text/string_table.h"

namespace mc::text {
namespace {

constexpr JsonLimits kTokenizerLimits{.bytes = size_t{256} << 20, .depth = 64, .values = size_t{8} << 20};
constexpr JsonLimits kConfigLimits{.bytes = size_t{16} << 20, .depth = 64, .values = size_t{1} << 20};

Error bad(std::string what) {
  return {Code::invalid, "tokenizer.json: " + std::move(what)};
}

/// `value` as the user will look for it in the file.
std::string shown(const Json& value) {
  constexpr size_t kShownMax = 80;
  std::string text = value.dump();
  if (text.size() > kShownMax) text = text.substr(0, kShownMax) + "...";
  return text;
}

Error unsupported(const std::string& field, const Json& value, std::string_view supported) {
  return {Code::unsupported,
          "tokenizer.json: " + field + " " + shown(value) + " is not supported; supported: " + std::string(supported)};
}

Error wrong_kind(const std::string& field, const Json& value, std::string_view wanted) {
  return bad(field + " must be " + std::string(wanted) + ", it is " + std::string(value.kind_name()));
}

Result<uint32_t> read_id(const std::string& field, const Json& value) {
  if (!value.is_int()) return wrong_kind(field, value, "an integer");
  const int64_t id = value.as_int();
  if (id < 0 || id >= kTokenIdEnd)
    return bad(field + " is " + std::to_string(id) + "; ids go from 0 to " + std::to_string(kTokenIdEnd - 1));
  return static_cast<uint32_t>(id);
}

Result<bool> read_flag(const std::string& parent, const Json& object, std::string_view key, bool fallback) {
  const Json* value = object.find(key);
  if (value == nullptr || value->is_null()) return fallback;
  if (!value->is_bool()) return wrong_kind(parent + "." + std::string(key), *value, "a boolean");
  return value->as_bool();
}

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
    joined.assign(left).append(right);
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
  if (const Json& fallback = model["byte_fallback"]; fallback.as_bool())
    return unsupported("model.byte_fallback", fallback,
                       "false (byte-level BPE; SentencePiece-style BPE is not read yet)");
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"})
    if (!model[key].is_null() && model[key] != Json(""))
      return unsupported(std::string("model.") + key, model[key], "null");
  if (const Json& dropout = model["dropout"]; !dropout.is_null() && dropout.as_double(1) != 0)
    return unsupported("model.dropout", dropout, "null");
  MC_TRY(ignore_merges, read_flag("model", model, "ignore_merges", false));
  spec.ignore_merges = ignore_merges;
  if (!model.has("vocab")) return bad("model.vocab is missing");
  if (!model.has("merges")) return bad("model.merges is missing");
  MC_CHECK(read_vocab(model["vocab"], spec, ids));
  return read_merges(model["merges"], spec, ids);
}

struct ModelKind {
  std::string_view type;
  Result<void> (*read)(const Json& model, TokenizerSpec& spec, StringTable& ids);
};
constexpr ModelKind kModels[] = {{"BPE", read_bpe}};

Result<void> read_model(const Json& root, TokenizerSpec& spec, StringTable& ids) {
  const Json* model = root.find("model");
  if (model == nullptr) return bad("model is missing");
  if (!model->is_object()) return wrong_kind("model", *model, "an object");
  // Files from before the field existed hold BPE when they hold merges.
  const Json type = model->has("type") ? (*model)["type"] : Json(model->has("merges") ? "BPE" : "");
  for (const ModelKind& kind : kModels)
    if (type == Json(kind.type)) return kind.read(*model, spec, ids);
  return unsupported("model.type", type, "\"BPE\" (byte-level)");
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

/// Two tokens must not share a content or an id; the same token twice is harmless, the first one holds.
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

// --- normalizer, pre_tokenizer, post_processor, decoder --------------------------------------------

/// A Sequence becomes its parts, in order; null becomes nothing.
Result<std::vector<const Json*>> flatten(const std::string& field, const Json& node, const char* parts_key) {
  std::vector<const Json*> out, open{&node};
  while (!open.empty()) {
    const Json* top = open.back();
    open.pop_back();
    if (top->is_null()) continue;
    if (!top->is_object() || !(*top)["type"].is_string()) return wrong_kind(field, *top, "an object with a type");
    if ((*top)["type"].as_string() != "Sequence") {
      out.push_back(top);
      continue;
    }
    const Json& parts = (*top)[parts_key];
    if (!parts.is_array()) return wrong_kind(field + "." + parts_key, parts, "an array");
    for (size_t i = parts.size(); i-- > 0;) open.push_back(&parts[i]);
  }
  return out;
}

Result<std::string> read_pattern(const std::string& field, const Json& pattern) {
  if (pattern["Regex"].is_string()) return std::string(pattern["Regex"].as_string());
  if (pattern["String"].is_string()) return Regex::quote(pattern["String"].as_string());
  return bad(field + ".pattern " + shown(pattern) + " must hold a String or a Regex");
}

Result<void> read_normalizer(const Json& node, TokenizerSpec& spec) {
  using Kind = NormalizerStep::Kind;
  MC_TRY(steps, flatten("normalizer", node, "normalizers"));
  for (const Json* step : steps) {
    const std::string_view type = (*step)["type"].as_string();
    if (type == "NFC")
      spec.normalizer.push_back({Kind::form, NormalForm::nfc, {}, {}});
    else if (type == "NFD")
      spec.normalizer.push_back({Kind::form, NormalForm::nfd, {}, {}});
    else if (type == "NFKC")
      spec.normalizer.push_back({Kind::form, NormalForm::nfkc, {}, {}});
    else if (type == "NFKD")
      spec.normalizer.push_back({Kind::form, NormalForm::nfkd, {}, {}});
    else if (type == "Lowercase")
      spec.normalizer.push_back({Kind::lowercase, {}, {}, {}});
    else if (type == "Prepend")
      spec.normalizer.push_back({Kind::prepend, {}, {}, std::string((*step)["prepend"].as_string())});
    else if (type == "Replace") {
      MC_TRY(pattern, read_pattern("normalizer", (*step)["pattern"]));
      spec.normalizer.push_back({Kind::replace, {}, std::move(pattern), std::string((*step)["content"].as_string())});
    } else {
      return unsupported("normalizer.type", (*step)["type"], "NFC NFD NFKC NFKD Lowercase Prepend Replace Sequence");
    }
  }
  return {};
}

Result<SplitBehavior> read_behavior(const Json& value, SplitBehavior fallback) {
  static constexpr std::pair<std::string_view, SplitBehavior> kNames[] = {
      {"Removed", SplitBehavior::removed},
      {"Isolated", SplitBehavior::isolated},
      {"MergedWithPrevious", SplitBehavior::merged_with_previous},
      {"MergedWithNext", SplitBehavior::merged_with_next},
      {"Contiguous", SplitBehavior::contiguous},
  };
  if (value.is_null()) return fallback;
  for (const auto& [name, behavior] : kNames)
    if (value == Json(name)) return behavior;
  return unsupported("pre_tokenizer.behavior", value, "Removed Isolated MergedWithPrevious MergedWithNext Contiguous");
}

// The pattern built into ByteLevel, and those of the pre-tokenizers that are short for a Split.
constexpr const char* kGpt2Pattern = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr const char* kPunctuationPattern = R"([\p{P}$+<=>^`|~])";
constexpr const char* kWhitespacePattern = R"([\w\x{200c}\x{200d}]+|[^\w\s\x{200c}\x{200d}]+)";

/// Adds one pre-tokenizer; ByteLevel is left to the caller.
Result<void> read_split(const Json& step, TokenizerSpec& spec) {
  const std::string_view type = step["type"].as_string();
  if (type == "Split") {
    MC_TRY(pattern, read_pattern("pre_tokenizer", step["pattern"]));
    MC_TRY(behavior, read_behavior(step["behavior"], SplitBehavior::isolated));
    MC_TRY(invert, read_flag("pre_tokenizer", step, "invert", false));
    spec.splits.push_back({std::move(pattern), behavior, invert});
  } else if (type == "Digits") {
    MC_TRY(individual, read_flag("pre_tokenizer", step, "individual_digits", false));
    spec.splits.push_back({"\\p{N}", individual ? SplitBehavior::isolated : SplitBehavior::contiguous, false});
  } else if (type == "Punctuation") {
    MC_TRY(behavior, read_behavior(step["behavior"], SplitBehavior::isolated));
    spec.splits.push_back({kPunctuationPattern, behavior, false});
  } else if (type == "Whitespace") {
    spec.splits.push_back({kWhitespacePattern, SplitBehavior::removed, true});
  } else if (type == "WhitespaceSplit") {
    spec.splits.push_back({"\\s", SplitBehavior::removed, false});
  } else {
    return unsupported("pre_tokenizer.type", step["type"],
                       "ByteLevel Split Digits Punctuation Whitespace WhitespaceSplit Sequence");
  }
  return {};
}

Result<void> read_pre_tokenizer(const Json& node, TokenizerSpec& spec) {
  MC_TRY(steps, flatten("pre_tokenizer", node, "pretokenizers"));
  for (size_t i = 0; i < steps.size(); ++i) {
    const Json& step = *steps[i];
    if (step["type"].as_string() != "ByteLevel") {
      MC_CHECK(read_split(step, spec));
      continue;
    }
    // What follows would see the spelling in the byte alphabet, not text.
    if (i + 1 != steps.size())
      return unsupported("pre_tokenizer.type after ByteLevel", (*steps[i + 1])["type"], "ByteLevel as the last one");
    MC_TRY(add_prefix_space, read_flag("pre_tokenizer", step, "add_prefix_space", true));
    MC_TRY(use_regex, read_flag("pre_tokenizer", step, "use_regex", true));
    spec.add_prefix_space = add_prefix_space;
    spec.splits_before_byte_level = spec.splits.size();
    if (use_regex) spec.splits.push_back({kGpt2Pattern, SplitBehavior::isolated, false});
    return {};
  }
  return unsupported("pre_tokenizer without ByteLevel:", node, "ByteLevel, alone or at the end of a Sequence");
}

Result<void> read_template(const Json& step, TokenizerSpec& spec) {
  const Json& single = step["single"];
  if (!single.is_array()) return wrong_kind("post_processor.single", single, "an array");
  bool behind = false;
  for (const Json& item : single.items()) {
    if (const Json* sequence = item.find("Sequence")) {
      if ((*sequence)["id"] != Json("A") || behind)
        return unsupported("post_processor.single", single, "the sequence A once");
      behind = true;
      continue;
    }
    const std::string_view name = item["SpecialToken"]["id"].as_string();
    const Json& ids = step["special_tokens"][name]["ids"];
    if (name.empty() || !ids.is_array())
      return bad("post_processor.single names the token " + shown(item) + ", which special_tokens does not define");
    for (const Json& value : ids.items()) {
      MC_TRY(id, read_id("post_processor.special_tokens." + std::string(name) + ".ids", value));
      (behind ? spec.suffix : spec.prefix).push_back(id);
    }
  }
  if (!behind) return unsupported("post_processor.single", single, "the sequence A once");
  return {};
}

Result<void> read_post_processor(const Json& node, TokenizerSpec& spec) {
  MC_TRY(steps, flatten("post_processor", node, "processors"));
  bool seen = false;
  for (const Json* step : steps) {
    const std::string_view type = (*step)["type"].as_string();
    if (type == "ByteLevel") continue;  // it moves offsets, not ids
    if (type != "TemplateProcessing" || seen)
      return unsupported("post_processor.type", (*step)["type"], "ByteLevel, TemplateProcessing (once), Sequence");
    seen = true;
    MC_CHECK(read_template(*step, spec));
  }
  return {};
}

Result<void> read_decoder(const Json& node) {
  MC_TRY(steps, flatten("decoder", node, "decoders"));
  bool byte_level = false;
  for (const Json* step : steps) {
    const std::string_view type = (*step)["type"].as_string();
    if (type == "ByteLevel")
      byte_level = true;
    else if (type != "Fuse")
      return unsupported("decoder.type", (*step)["type"], "ByteLevel Fuse Sequence");
  }
  if (!byte_level) return unsupported("decoder", node, "ByteLevel");
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
  MC_CHECK(read_normalizer(root["normalizer"], spec));
  MC_CHECK(read_pre_tokenizer(root["pre_tokenizer"], spec));
  MC_CHECK(read_post_processor(root["post_processor"], spec));
  MC_CHECK(read_decoder(root["decoder"]));
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
    read_names(root, config);  // where both name a token, tokenizer_config.json holds
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
