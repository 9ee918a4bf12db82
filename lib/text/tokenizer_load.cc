// The loader of a Tokenizer. It reads the files of a model folder, adds the configuration files' tokens to those of
// the tokenizer's own file, and builds the tables.
#include <algorithm>
#include <filesystem>

#include "base/errors.h"
#include "base/model_file.h"
#include "text/bpe.h"
#include "text/byte_level.h"
#include "text/spec_ranks.h"
#include "text/tokenizer_tables.h"
#include "text/unigram.h"

namespace mc::text {
namespace {

constexpr size_t kFileBytesMax = size_t{256} << 20;

/// An absent file is empty.
Result<std::string> read_part(const std::string& path) {
  auto text = read_model_file(path, kFileBytesMax);
  if (!text && text.error().code == Code::not_found) return std::string();
  return text;
}

/// The name of the only *.tiktoken file in the folder.
Result<std::string> find_ranks(const std::string& folder) {
  std::vector<std::string> found;
  std::error_code error;
  for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end; at.increment(error))
    if (std::string name = at->path().filename().string(); name.ends_with(kRanksSuffix)) found.push_back(name);
  if (found.empty())
    return user_error(err::kModelIncomplete,
                      "text: there is no tokenizer.json, tekken.json or *.tiktoken in " + folder);
  std::sort(found.begin(), found.end());
  if (found.size() > 1)
    return user_error(err::kModelCorrupt, "text: " + folder + " has several rank files, " + found[0] + " and " +
                                              found[1] + "; keep the model's");
  return found[0];
}

/// Brings the configuration files' additions into the specification, as `transformers` does when it
/// loads the folder: further added tokens, tokens made special, and add_bos_token / add_eos_token,
/// which replace the post-processor when they are written down.
class ConfigMerger {
 public:
  ConfigMerger(const TokenizerConfig& config, TokenizerSpec& spec) : config_(config), spec_(spec) {
    vocab_.reserve(spec.vocab.size());
    uint32_t index = 0;
    for (const VocabEntry& entry : spec.vocab) {
      (void)vocab_.insert(entry.text, entry.id);
      note(entry.id, index++);
    }
    index = 0;
    for (const AddedToken& token : spec.added) {
      (void)added_.insert(token.content, index++);
      note(token.id, kAdded);
    }
  }

  Result<void> run() {
    for (const AddedToken& token : config_.added) MC_CHECK(add(token));
    for (const std::string& name : config_.additional_special_tokens) make_special(name);
    make_special(config_.bos_token);
    make_special(config_.eos_token);
    if (config_.add_bos_token || config_.add_eos_token) {
      const auto bos = id_of(config_.bos_token), eos = id_of(config_.eos_token);
      spec_.prefix.clear();
      spec_.suffix.clear();
      if (config_.add_bos_token.value_or(false) && bos) spec_.prefix.push_back(*bos);
      if (config_.add_eos_token.value_or(false) && eos) spec_.suffix.push_back(*eos);
    }
    for (const auto* ids : {&spec_.prefix, &spec_.suffix})
      for (uint32_t id : *ids)
        if (id >= owner_.size() || owner_[id] == kNobody)
          return Error{Code::invalid,
                       spec_.source + ": post_processor adds id " + std::to_string(id) + ", which no token has"};
    return {};
  }

  std::optional<uint32_t> id_of(const std::string& name) const {
    if (name.empty()) return std::nullopt;
    if (const auto index = added_.find(name)) return spec_.added[*index].id;
    return vocab_.find(name);
  }

 private:
  static constexpr uint32_t kNobody = UINT32_MAX, kAdded = UINT32_MAX - 1;  // else an index in spec.vocab

  void note(uint32_t id, uint32_t owner) {
    if (id >= owner_.size()) owner_.resize(id + 1, kNobody);
    owner_[id] = owner;
  }

  Result<void> add(const AddedToken& token) {
    if (added_.find(token.content)) return {};
    const auto in_vocab = vocab_.find(token.content);
    const bool taken = token.id < owner_.size() && owner_[token.id] != kNobody;
    if (in_vocab ? *in_vocab != token.id : taken)
      return Error{Code::invalid, "tokenizer_config.json: added_tokens_decoder says that id " +
                                      std::to_string(token.id) + " is " + token.content + "; " + spec_.source +
                                      " says otherwise"};
    if (added_.insert(token.content, static_cast<uint32_t>(spec_.added.size())) != StringTable::Insert::done)
      return Error{Code::invalid, "tokenizer_config.json: added_tokens_decoder holds crafted contents"};
    note(token.id, kAdded);
    spec_.added.push_back(token);
    return {};
  }

  void make_special(const std::string& name) {
    if (name.empty()) return;
    if (const auto index = added_.find(name)) {
      spec_.added[*index].special = true;
    } else if (const auto id = vocab_.find(name)) {
      if (added_.insert(name, static_cast<uint32_t>(spec_.added.size())) != StringTable::Insert::done) return;
      note(*id, kAdded);
      spec_.added.push_back({.content = name, .id = *id, .special = true});
    }
  }

  const TokenizerConfig& config_;
  TokenizerSpec& spec_;
  StringTable vocab_;            // text -> id
  StringTable added_;            // content -> index in spec.added
  std::vector<uint32_t> owner_;  // by id
};

/// The added tokens of one of the two passes, spelt as in the text of that pass.
Result<std::vector<AddedToken>> tokens_of_pass(const TokenizerSpec& spec, bool normalized,
                                               const Normalizer& normalizer) {
  std::vector<AddedToken> out;
  StringTable seen;
  for (AddedToken token : spec.added) {
    if (token.normalized != normalized) continue;
    if (normalized && !normalizer.empty()) {
      MC_TRY(content, normalizer.apply(token.content, kTokenBytesMax * 4));
      token.content = std::move(content);
    }
    if (token.content.empty() || seen.insert(token.content, 0) != StringTable::Insert::done) continue;
    out.push_back(std::move(token));
  }
  return out;
}

// By how much a step can shorten what it is given, in bytes; 0: without bound.
//   a form   first decomposes: a character is at most 3 times as long as its canonical decomposition (U+212A, K), 4
//            times as its compatible one (U+1D400, A). Composing then makes at most a third of that (three jamo of 3
//            bytes become one syllable of 3 bytes). Both were found over all characters; a test looks again.
//   lowercase  U+212A again
size_t shrinking(const NormalizerStep& step) {
  using Kind = NormalizerStep::Kind;
  switch (step.kind) {
    case Kind::prepend: return 1;
    case Kind::lowercase: return 3;
    case Kind::form:
      switch (step.form) {
        case unicode::NormalForm::nfd: return 3;
        case unicode::NormalForm::nfc: return 3 * 3;
        case unicode::NormalForm::nfkd: return 4;
        case unicode::NormalForm::nfkc: return 4 * 3;
      }
      return 0;
    case Kind::replace:
      if (step.literal_bytes == 0 || step.content.empty()) return 0;
      return (step.literal_bytes + step.content.size() - 1) / step.content.size();
    case Kind::strip:
    case Kind::nmt:
    case Kind::charsmap:
    case Kind::strip_accents: return 0;
  }
  return 0;
}

/// Most bytes of a text that one token can stand for: each token covers at most its own spelling of the normalised
/// text, each byte of that comes from at most shrinking() bytes of the step before, and nothing else is dropped. 0: no
/// bound is known.
size_t most_bytes_per_token(const TokenizerSpec& spec, const WordModel& model) {
  size_t most = 4;  // an unknown character
  for (const VocabEntry& entry : spec.vocab) {
    const auto bytes = spec.byte_level ? bytes_spelt(entry.text) : std::nullopt;
    most = std::max(most, bytes ? bytes->size() : entry.text.size());
  }
  for (const AddedToken& token : spec.added) {
    if (token.lstrip || token.rstrip) return 0;
    most = std::max(most, token.content.size());
  }
  const bool drops_unknown = spec.unk_token.empty() || spec.fuse_unk;
  if (drops_unknown && !model.has_all_bytes()) return 0;
  for (const PreStep& step : spec.pre)
    if (step.kind == PreStep::Kind::split && step.behavior == SplitBehavior::removed) return 0;
  for (const NormalizerStep& step : spec.normalizer) {
    const size_t times = shrinking(step);
    if (times == 0 || most > SIZE_MAX / 16 / times) return 0;
    most *= times;
  }
  return most;
}

Result<std::unique_ptr<const WordModel>> build_model(const TokenizerSpec& spec) {
  if (spec.unigram) {
    MC_TRY(unigram, Unigram::build(spec));
    return std::unique_ptr<const WordModel>(std::make_unique<Unigram>(std::move(unigram)));
  }
  MC_TRY(bpe, Bpe::build(spec));
  return std::unique_ptr<const WordModel>(std::make_unique<Bpe>(std::move(bpe)));
}

}  // namespace

Result<TokenizerFiles> read_tokenizer_files(const std::string& folder) {
  TokenizerFiles files;
  const struct {
    const char* name;
    std::string& text;
  } parts[] = {{"tokenizer.json", files.tokenizer},
               {"tekken.json", files.tekken},
               {"tiktoken.json", files.ranks_side},
               {"tokenizer_config.json", files.config},
               {"special_tokens_map.json", files.special_tokens_map},
               {"chat_template.jinja", files.chat_template}};
  // A folder may hold several forms of one tokenizer; only the first is read.
  std::error_code error;
  const bool has_json = std::filesystem::exists(folder + "/tokenizer.json", error);
  const bool has_tekken = !has_json && std::filesystem::exists(folder + "/tekken.json", error);
  for (const auto& part : parts) {
    if (&part.text == &files.tekken && !has_tekken) continue;
    MC_TRY(text, read_part(folder + "/" + part.name));
    part.text = std::move(text);
  }
  if (has_json || has_tekken) return files;
  MC_TRY(name, find_ranks(folder));
  files.ranks_name = std::move(name);
  MC_TRY(ranks, read_part(folder + "/" + files.ranks_name));
  files.ranks = std::move(ranks);
  return files;
}

Result<std::unique_ptr<const TokenizerTables>> load_tables(const TokenizerFiles& files) {
  MC_TRY(config, read_tokenizer_config(files));
  const bool has_json = !files.tokenizer.empty() || (files.tekken.empty() && files.ranks_name.empty());
  MC_TRY(spec, has_json                ? read_tokenizer_json(files.tokenizer)
               : !files.tekken.empty() ? read_tekken(files, config)
                                       : read_ranks(files, config));
  MC_TRY(tables, build_tables(std::move(spec), std::move(config)));
  return std::unique_ptr<const TokenizerTables>(std::move(tables));
}

Result<std::unique_ptr<TokenizerTables>> build_tables(TokenizerSpec spec, TokenizerConfig config) {
  ConfigMerger merger(config, spec);
  MC_CHECK(merger.run());
  MC_TRY(normalizer, Normalizer::build(spec));
  MC_TRY(raw, tokens_of_pass(spec, false, normalizer));
  MC_TRY(normalized, tokens_of_pass(spec, true, normalizer));
  MC_TRY(pre_tokenizer, PreTokenizer::build(spec));
  auto built = build_model(spec);
  if (!built) return within(spec.source, std::move(built).error());
  std::unique_ptr<const WordModel> model = std::move(*built);
  MC_TRY(decoder, Decoder::build(spec));
  auto named = Vocabulary::build(spec, decoder);
  if (!named) return within(spec.source, std::move(named).error());
  Vocabulary vocabulary = std::move(*named);
  const bool spell_words = spec.byte_level && !model->takes_bytes();
  const auto bos = merger.id_of(config.bos_token), eos = merger.id_of(config.eos_token);
  const size_t bytes_per_token = most_bytes_per_token(spec, *model);
  return std::make_unique<TokenizerTables>(
      TokenizerTables{.config = std::move(config),
                      .raw_tokens = AddedTokenMatcher(std::move(raw)),
                      .normalized_tokens = AddedTokenMatcher(std::move(normalized)),
                      .normalizer = std::move(normalizer),
                      .pre_tokenizer = std::move(pre_tokenizer),
                      .model = std::move(model),
                      .decoder = std::move(decoder),
                      .spell_words = spell_words,
                      .prefix = spec.prefix,
                      .suffix = spec.suffix,
                      .bos = bos,
                      .eos = eos,
                      .bytes_per_token = bytes_per_token,
                      .vocabulary = std::move(vocabulary)});
}

}  // namespace mc::text
