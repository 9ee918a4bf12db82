// The steps around the model that tokenizer.json declares: normalizer, pre_tokenizer, post_processor and decoder, each
// a chain of typed steps after Hugging Face's `tokenizers`. The readers refuse every other step by field and value.
#include <algorithm>
#include <array>

#include "text/base64.h"
#include "text/regex.h"
#include "text/spec_fields.h"
#include "unicode/utf8.h"

namespace mc::text {

Error bad(std::string what) {
  return {Code::invalid, "tokenizer.json: " + std::move(what)};
}

/// `value` as the file spells it.
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

namespace {

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

/// Reads a required text field.
Result<std::string> read_text(const std::string& field, const Json& object, const char* key) {
  const Json& value = object[key];
  if (!value.is_string()) return wrong_kind(field + "." + key, value, "a string");
  if (value.as_string().size() > kTokenBytesMax)
    return bad(field + "." + key + " has " + std::to_string(value.as_string().size()) + " bytes; the most is " +
               std::to_string(kTokenBytesMax));
  return std::string(value.as_string());
}

/// Reads a required text field of exactly one character.
Result<std::string> read_character(const std::string& field, const Json& object, const char* key) {
  MC_TRY(text, read_text(field, object, key));
  if (text.empty() || unicode::decode_utf8(text).bytes != text.size())
    return bad(field + "." + key + " " + shown(object[key]) + " must be one character");
  return text;
}

Result<void> read_normalizer_step(const Json& step, TokenizerSpec& spec) {
  using Kind = NormalizerStep::Kind;
  static constexpr std::pair<std::string_view, unicode::NormalForm> kForms[] = {{"NFC", unicode::NormalForm::nfc},
                                                                                {"NFD", unicode::NormalForm::nfd},
                                                                                {"NFKC", unicode::NormalForm::nfkc},
                                                                                {"NFKD", unicode::NormalForm::nfkd}};
  const std::string_view type = step["type"].as_string();
  NormalizerStep out;
  for (const auto& [name, form] : kForms)
    if (type == name) {
      out.form = form;
      spec.normalizer.push_back(out);
      return {};
    }
  if (type == "Lowercase") {
    out.kind = Kind::lowercase;
  } else if (type == "StripAccents") {
    out.kind = Kind::strip_accents;
  } else if (type == "Nmt") {
    out.kind = Kind::nmt;
  } else if (type == "Precompiled") {
    auto map = step["precompiled_charsmap"].is_string() ? decode_base64(step["precompiled_charsmap"].as_string())
                                                        : std::nullopt;
    if (!map) return bad("normalizer.precompiled_charsmap must be base64");
    out.kind = Kind::charsmap;
    out.content = std::move(*map);
  } else if (type == "Strip") {
    MC_TRY(left, read_flag("normalizer", step, "strip_left", true));
    MC_TRY(right, read_flag("normalizer", step, "strip_right", true));
    out.kind = Kind::strip;
    out.left = left;
    out.right = right;
  } else if (type == "Prepend") {
    MC_TRY(content, read_text("normalizer", step, "prepend"));
    out.kind = Kind::prepend;
    out.content = std::move(content);
  } else if (type == "Replace") {
    MC_TRY(pattern, read_pattern("normalizer", step["pattern"]));
    MC_TRY(content, read_text("normalizer", step, "content"));
    out.kind = Kind::replace;
    out.pattern = std::move(pattern);
    if (!step["pattern"]["Regex"].is_string()) out.literal_bytes = step["pattern"]["String"].as_string().size();
    out.content = std::move(content);
  } else {
    return unsupported("normalizer.type", step["type"],
                       "NFC NFD NFKC NFKD Lowercase Strip StripAccents Prepend Replace Precompiled Nmt Sequence");
  }
  spec.normalizer.push_back(std::move(out));
  return {};
}

Result<void> read_normalizer(const Json& node, TokenizerSpec& spec) {
  MC_TRY(steps, flatten("normalizer", node, "normalizers"));
  for (const Json* step : steps) MC_CHECK(read_normalizer_step(*step, spec));
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

// The patterns of the pre-tokenizers that stand for a Split.
constexpr const char* kPunctuationPattern = R"([\p{P}$+<=>^`|~])";
// Whitespace has the \w of Rust's regex, which is unicode::is_word().
constexpr const char* kWhitespacePattern = R"([\p{L}\p{M}\p{Nl}\p{Nd}\p{Pc}\x{200c}\x{200d}\x{24b6}-\x{24e9})"
                                           R"(\x{1f130}-\x{1f149}\x{1f150}-\x{1f169}\x{1f170}-\x{1f189}]+)"
                                           R"(|[^\s\p{L}\p{M}\p{Nl}\p{Nd}\p{Pc}\x{200c}\x{200d}\x{24b6}-\x{24e9})"
                                           R"(\x{1f130}-\x{1f149}\x{1f150}-\x{1f169}\x{1f170}-\x{1f189}]+)";

constexpr const char* kMetaspaceMark = "\u2581";

Result<PrependScheme> read_prepend_scheme(const std::string& field, const Json& step) {
  const Json& value = step["prepend_scheme"];
  if (value.is_null()) {  // the older spelling
    MC_TRY(prepends, read_flag(field, step, "add_prefix_space", true));
    return prepends ? PrependScheme::always : PrependScheme::never;
  }
  static constexpr std::pair<std::string_view, PrependScheme> kNames[] = {
      {"never", PrependScheme::never}, {"first", PrependScheme::first}, {"always", PrependScheme::always}};
  for (const auto& [name, scheme] : kNames)
    if (value == Json(name)) return scheme;
  return unsupported(field + ".prepend_scheme", value, "never first always");
}

Result<PreStep> read_metaspace(const Json& step) {
  PreStep out{.kind = PreStep::Kind::metaspace, .mark = kMetaspaceMark};
  if (!step["replacement"].is_null()) {
    MC_TRY(mark, read_character("pre_tokenizer", step, "replacement"));
    out.mark = std::move(mark);
  }
  MC_TRY(prepend, read_prepend_scheme("pre_tokenizer", step));
  MC_TRY(split, read_flag("pre_tokenizer", step, "split", true));
  out.prepend = prepend;
  out.split = split;
  return out;
}

PreStep split_by(std::string pattern, SplitBehavior behavior, bool invert = false) {
  return {.pattern = std::move(pattern), .behavior = behavior, .invert = invert};
}

/// Adds one pre-tokenizer; ByteLevel is left to the caller.
Result<void> read_pre_step(const Json& step, TokenizerSpec& spec) {
  const std::string_view type = step["type"].as_string();
  if (type == "Split") {
    MC_TRY(pattern, read_pattern("pre_tokenizer", step["pattern"]));
    MC_TRY(behavior, read_behavior(step["behavior"], SplitBehavior::isolated));
    MC_TRY(invert, read_flag("pre_tokenizer", step, "invert", false));
    spec.pre.push_back(split_by(std::move(pattern), behavior, invert));
  } else if (type == "Digits") {
    MC_TRY(individual, read_flag("pre_tokenizer", step, "individual_digits", false));
    spec.pre.push_back(split_by("\\p{N}", individual ? SplitBehavior::isolated : SplitBehavior::contiguous));
  } else if (type == "Punctuation") {
    MC_TRY(behavior, read_behavior(step["behavior"], SplitBehavior::isolated));
    spec.pre.push_back(split_by(kPunctuationPattern, behavior));
  } else if (type == "Whitespace") {
    spec.pre.push_back(split_by(kWhitespacePattern, SplitBehavior::removed, true));
  } else if (type == "WhitespaceSplit") {
    spec.pre.push_back(split_by("\\s", SplitBehavior::removed));
  } else if (type == "BertPreTokenizer") {
    spec.pre.push_back(split_by("\\s", SplitBehavior::removed));
    spec.pre.push_back(split_by(kPunctuationPattern, SplitBehavior::isolated));
  } else if (type == "CharDelimiterSplit") {
    MC_TRY(delimiter, read_character("pre_tokenizer", step, "delimiter"));
    spec.pre.push_back(split_by(Regex::quote(delimiter), SplitBehavior::removed));
  } else if (type == "Metaspace") {
    MC_TRY(metaspace, read_metaspace(step));
    spec.pre.push_back(std::move(metaspace));
  } else {
    return unsupported("pre_tokenizer.type", step["type"],
                       "ByteLevel Metaspace Split Digits Punctuation Whitespace WhitespaceSplit BertPreTokenizer "
                       "CharDelimiterSplit Sequence");
  }
  return {};
}

Result<void> read_pre_tokenizer(const Json& node, TokenizerSpec& spec) {
  MC_TRY(steps, flatten("pre_tokenizer", node, "pretokenizers"));
  for (size_t i = 0; i < steps.size(); ++i) {
    const Json& step = *steps[i];
    if (step["type"].as_string() != "ByteLevel") {
      MC_CHECK(read_pre_step(step, spec));
      continue;
    }
    // A step behind ByteLevel would work on the byte alphabet's spelling, not on text.
    if (i + 1 != steps.size())
      return unsupported("pre_tokenizer.type after ByteLevel", (*steps[i + 1])["type"], "ByteLevel as the last one");
    MC_TRY(add_prefix_space, read_flag("pre_tokenizer", step, "add_prefix_space", true));
    MC_TRY(use_regex, read_flag("pre_tokenizer", step, "use_regex", true));
    spec.byte_level = true;
    if (add_prefix_space) spec.pre.push_back({.kind = PreStep::Kind::prefix_space});
    if (use_regex) spec.pre.push_back(split_by(kGpt2Pattern, SplitBehavior::isolated));
  }
  // A piece is the first one when it begins at the start of the original text.
  const bool first = std::any_of(spec.pre.begin(), spec.pre.end(), [](const PreStep& step) {
    return step.kind == PreStep::Kind::metaspace && step.prepend == PrependScheme::first;
  });
  const bool deletes = std::any_of(spec.normalizer.begin(), spec.normalizer.end(), [](const NormalizerStep& step) {
    using Kind = NormalizerStep::Kind;
    return step.kind == Kind::strip || step.kind == Kind::strip_accents || step.kind == Kind::nmt ||
           step.kind == Kind::charsmap || (step.kind == Kind::replace && step.content.empty());
  });
  if (first && deletes)
    return unsupported("pre_tokenizer.prepend_scheme", Json("first"),
                       "always or never, where the normalizer may delete a text's first character");
  return {};
}

struct Around {
  std::vector<uint32_t> before, behind;
};

Result<Around> read_template(const Json& step) {
  const Json& single = step["single"];
  if (!single.is_array()) return wrong_kind("post_processor.single", single, "an array");
  Around out;
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
      (behind ? out.behind : out.before).push_back(id);
    }
  }
  if (!behind) return unsupported("post_processor.single", single, "the sequence A once");
  return out;
}

/// RobertaProcessing and BertProcessing: cls in front, sep behind, each as [token, id].
Result<Around> read_cls_sep(const Json& step) {
  Around out;
  const std::pair<const char*, std::vector<uint32_t>*> parts[] = {{"cls", &out.before}, {"sep", &out.behind}};
  for (const auto& [key, target] : parts) {
    const Json& pair = step[key];
    const std::string field = std::string("post_processor.") + key;
    if (!pair.is_array() || pair.size() != 2) return bad(field + " " + shown(pair) + " must be a token and its id");
    MC_TRY(id, read_id(field, pair[1]));
    target->push_back(id);
  }
  return out;
}

Result<void> read_post_processor(const Json& node, TokenizerSpec& spec) {
  MC_TRY(steps, flatten("post_processor", node, "processors"));
  bool seen = false;
  for (const Json* step : steps) {
    const std::string_view type = (*step)["type"].as_string();
    if (type == "ByteLevel") continue;  // it changes offsets, not ids
    const bool pair = type == "RobertaProcessing" || type == "BertProcessing";
    if ((type != "TemplateProcessing" && !pair) || seen)
      return unsupported("post_processor.type", (*step)["type"],
                         "ByteLevel, and once TemplateProcessing, RobertaProcessing or BertProcessing; Sequence");
    seen = true;
    MC_TRY(around, pair ? read_cls_sep(*step) : read_template(*step));
    spec.prefix = std::move(around.before);
    spec.suffix = std::move(around.behind);
  }
  return {};
}

Result<uint32_t> read_cut(const Json& step, const char* key) {
  const Json& value = step[key];
  if (!value.is_int() || value.as_int() < 0 || value.as_int() > static_cast<int64_t>(kTokenBytesMax))
    return bad(std::string("decoder.") + key + " " + shown(value) + " must be a count from 0 to " +
               std::to_string(kTokenBytesMax));
  return static_cast<uint32_t>(value.as_int());
}

Result<DecoderStep> read_decoder_step(const Json& step) {
  using Kind = DecoderStep::Kind;
  const std::string_view type = step["type"].as_string();
  DecoderStep out;
  if (type == "ByteLevel") {
    out.kind = Kind::byte_level;
  } else if (type == "ByteFallback") {
    out.kind = Kind::byte_fallback;
  } else if (type == "Fuse") {
    out.kind = Kind::fuse;
  } else if (type == "Replace") {
    MC_TRY(pattern, read_pattern("decoder", step["pattern"]));
    MC_TRY(content, read_text("decoder", step, "content"));
    out.kind = Kind::replace;
    out.pattern = std::move(pattern);
    out.content = std::move(content);
  } else if (type == "Strip") {
    MC_TRY(content, read_character("decoder", step, "content"));
    MC_TRY(start, read_cut(step, "start"));
    MC_TRY(stop, read_cut(step, "stop"));
    out.kind = Kind::strip;
    out.content = std::move(content);
    out.start = start;
    out.stop = stop;
  } else if (type == "Metaspace") {
    out.kind = Kind::metaspace;
    out.content = kMetaspaceMark;
    if (!step["replacement"].is_null()) {
      MC_TRY(mark, read_character("decoder", step, "replacement"));
      out.content = std::move(mark);
    }
    MC_TRY(prepend, read_prepend_scheme("decoder", step));
    out.prepend = prepend;
  } else {
    return unsupported("decoder.type", step["type"], "ByteLevel ByteFallback Fuse Replace Strip Metaspace Sequence");
  }
  return out;
}

/// Checks that a decoder step can work on a stream. It must work on single tokens, join them, or remove characters
/// from the front of the joined text.
Result<void> check_streams(const Json& step, const DecoderStep& read, bool joined, bool bytes_made) {
  using Kind = DecoderStep::Kind;
  if (read.kind == Kind::fuse || (!joined && !bytes_made)) return {};
  if (joined && read.kind == Kind::strip && read.stop == 0) return {};
  return unsupported("decoder.type after " + std::string(joined ? "the tokens are joined" : "ByteFallback"), step,
                     joined ? "Fuse, Strip with stop 0" : "Fuse");
}

Result<void> read_decoder(const Json& node, TokenizerSpec& spec) {
  using Kind = DecoderStep::Kind;
  MC_TRY(steps, flatten("decoder", node, "decoders"));
  bool joined = false, bytes_made = false;
  for (const Json* step : steps) {
    MC_TRY(read, read_decoder_step(*step));
    MC_CHECK(check_streams(*step, read, joined, bytes_made));
    if (joined && read.kind == Kind::strip && spec.decoder.back().kind == Kind::strip)
      return unsupported("decoder", node, "Strip once after Fuse");
    joined |= read.kind == Kind::fuse || read.kind == Kind::byte_level;
    bytes_made |= read.kind == Kind::byte_fallback;
    if (read.kind != Kind::fuse || spec.decoder.empty() || spec.decoder.back().kind != Kind::byte_level)
      spec.decoder.push_back(std::move(read));
  }
  if (steps.empty()) return unsupported("decoder", node, "ByteLevel, or a Sequence such as Replace ByteFallback Fuse");
  return {};
}

}  // namespace

Result<void> read_steps(const Json& root, TokenizerSpec& spec) {
  MC_CHECK(read_normalizer(root["normalizer"], spec));
  MC_CHECK(read_pre_tokenizer(root["pre_tokenizer"], spec));
  MC_CHECK(read_post_processor(root["post_processor"], spec));
  return read_decoder(root["decoder"], spec);
}

}  // namespace mc::text
