// `mc-bench recall`: does a model still find what stands in its context when attention is sparse? Two tasks
// with an exact answer, after the passkey test of Mohtashami and Jaggi (arXiv:2305.16300) and the key-value
// lists of Liu et al. (arXiv:2307.03172), under full attention, MoBA in all layers, and MoBA with the last
// layers full (the hybrid of the MoBA paper, section 3.3). Prompts come from --seed alone, so that the three
// see the same ones.

#include <algorithm>

#include "attn/attn.h"
#include "base/errors.h"
#include "base/rng.h"
#include "host/choice_flags.h"
#include "host/daemon_flags.h"
#include "host/engine.h"
#include "model/generate.h"
#include "product/flags.h"
#include "rows.h"
#include "text/text.h"
#include "verbs.h"

namespace mc::bench {
namespace {

constexpr Flag kLengths{.name = "length",
                        .letter = 'p',
                        .kind = FlagKind::sweep_counts,
                        .value = "N,N",
                        .fallback = "1024,2048,4096",
                        .help = "tokens of a prompt"};
constexpr Flag kCount{.name = "count",
                      .letter = 'r',
                      .kind = FlagKind::count,
                      .value = "N",
                      .fallback = "20",
                      .help = "prompts of each task and length"};
constexpr Flag kMobaBlock{.name = "moba-block",
                          .kind = FlagKind::count,
                          .value = "N",
                          .fallback = "0",
                          .help = "tokens of a MoBA block; 0 is the model's, or 64"};
constexpr Flag kTopK{.name = "top-k",
                     .kind = FlagKind::count,
                     .value = "N",
                     .fallback = "0",
                     .help = "blocks a token attends to; 0 is the model's, or 3"};
constexpr Flag kFullLast{.name = "full-last",
                         .kind = FlagKind::count,
                         .value = "N",
                         .fallback = "0",
                         .help = "full layers at the end of the hybrid plan; 0 is the model's number, or 1"};

constexpr auto kRecallFlagTable =
    flags::join(flags::list(&kLengths, &kCount, &kMobaBlock, &kTopK, &kFullLast, &flags::kModel, &flags::kDtype,
                            &flags::kWeightDtype, &flags::kKvDtype, &flags::kAttention, &flags::kBlockTokens,
                            &flags::kThreads, &flags::kKernels, &flags::kSeed, &kFormat, &flags::kOutput,
                            &flags::kQuiet),
                flags::kEveryRun);

struct Question {
  std::vector<uint32_t> prompt;
  std::string answer;  // it counts when the text goes on with it
};

std::string five_digits(Rng& rng) {
  std::string out;
  for (int i = 0; i < 5; ++i) out += static_cast<char>('0' + rng.below(10));
  return out;
}

/// Makes prompts of exactly a number of tokens: as many as asked for or a few more, cut behind their first (BOS).
/// Lengths that are whole blocks are the hard ones: the answer then begins in a block of its own, and the question
/// is found like any other place.
class Questions {
 public:
  explicit Questions(const text::Tokenizer& tokenizer) : tokenizer_(tokenizer) {
    // Keys are words that the model knows as one token.
    for (uint32_t id = 0; id < tokenizer.vocab_size(); ++id) {
      const std::string_view text = tokenizer.token_bytes(id);
      const auto is_letter = [](char c) { return c >= 'a' && c <= 'z'; };
      if (text.size() >= 4 && text[0] == ' ' && std::all_of(text.begin() + 1, text.end(), is_letter))
        words_.emplace_back(text.substr(1));
    }
  }

  Result<Question> passkey(Rng& rng, size_t tokens) const {
    static constexpr std::string_view kFiller[] = {"The grass is green. ", "The sky is blue. ", "The sun is yellow. ",
                                                   "Here we go. ", "There and back again. "};
    const std::string number = five_digits(rng);
    const std::string needle = "The pass key is " + number + ". Remember it. ";
    const double place = rng.uniform();
    Question out{{}, " " + number + "."};
    size_t sentences = kCutMost;
    while (out.prompt.size() < tokens) {
      sentences += 1 + (tokens - out.prompt.size()) / 8;
      const size_t at = kCutMost + static_cast<size_t>(place * static_cast<double>(sentences - kCutMost));
      std::string text;
      for (size_t i = 0; i <= sentences; ++i) {
        if (i == at) text += needle;
        if (i < sentences) text += kFiller[i % std::size(kFiller)];
      }
      MC_TRY(ids, tokenizer_.encode(text + "\nWhat is the pass key? The pass key is"));
      out.prompt = std::move(ids);
    }
    std::string first;
    for (size_t i = 0; i < kCutMost; ++i) first += kFiller[i % std::size(kFiller)];
    MC_CHECK(cut(out.prompt, tokens, first));
    return out;
  }

  /// Shorter than `tokens` when the words run out.
  Result<Question> key_value(Rng& rng, size_t tokens) const {
    std::vector<std::string> keys = words_;
    std::vector<std::string> lines, names, values;
    const double place = rng.uniform();
    Question out;
    do {
      for (size_t more = 1 + (tokens - out.prompt.size()) / 12; more > 0 && !keys.empty(); --more) {
        std::swap(keys[rng.below(keys.size())], keys.back());
        names.push_back(keys.back());
        values.push_back(five_digits(rng));
        lines.push_back(names.back() + ": " + values.back() + "\n");
        keys.pop_back();
      }
      if (lines.size() <= kCutMost)
        return user_error(err::kBadValue, "no pair fits " + std::to_string(tokens) + " tokens", "--length");
      const size_t at = kCutMost + static_cast<size_t>(place * static_cast<double>(lines.size() - kCutMost));
      std::string text;
      for (const std::string& line : lines) text += line;
      MC_TRY(ids, tokenizer_.encode(text + "\nRecall:\n" + names[at] + ":"));
      out = {std::move(ids), " " + values[at] + "\n"};
    } while (out.prompt.size() < tokens && !keys.empty());
    std::string first;
    for (size_t i = 0; i < kCutMost; ++i) first += lines[i];
    MC_CHECK(cut(out.prompt, tokens, first));
    return out;
  }

 private:
  static constexpr size_t kCutMost = 3;  // sentences or lines that may be cut; nothing asked for is in them

  /// To exactly `tokens`, after the first token, inside of `first`: what the text begins with and nobody asks for.
  Result<void> cut(std::vector<uint32_t>& prompt, size_t tokens, const std::string& first) const {
    if (prompt.size() <= tokens) return {};
    MC_TRY(ids, tokenizer_.encode(first));
    const size_t excess = prompt.size() - tokens;
    if (excess + 2 > ids.size())  // the first token stays, and the last may reach into what follows
      return user_error(err::kBadValue,
                        "a prompt of " + std::to_string(tokens) + " tokens would cut " + std::to_string(excess) +
                            " of the " + std::to_string(ids.size()) + " in front of what is asked for",
                        "--length");
    prompt.erase(prompt.begin() + 1, prompt.begin() + 1 + static_cast<std::ptrdiff_t>(excess));
    return {};
  }

  const text::Tokenizer& tokenizer_;
  std::vector<std::string> words_;
};

struct NamedPlan {
  const char* name;
  attn::Plan plan;
};

Result<std::vector<NamedPlan>> plans_of(const cli::Args& args, const model::ModelConfig& config,
                                        uint32_t block_tokens) {
  attn::Mode moba{attn::ModeKind::moba, 64, 3};
  int32_t full_last = 1;
  if (config.attention && config.attention->mode.kind == attn::ModeKind::moba) {
    moba = config.attention->mode;
    full_last = config.attention->full_last;
  }
  if (args.count(kMobaBlock) > 0) moba.block = static_cast<int32_t>(args.count(kMobaBlock));
  if (args.count(kTopK) > 0) moba.top_k = static_cast<int32_t>(args.count(kTopK));
  if (args.count(kFullLast) > 0) full_last = static_cast<int32_t>(args.count(kFullLast));
  const auto layers = static_cast<int32_t>(config.layers);
  std::vector<NamedPlan> plans = {{"full", {attn::Mode{}, 0, layers}}};
  for (const auto& [name, full] : {std::pair{"moba", 0}, {"hybrid", std::min(full_last, layers)}}) {
    const attn::PlanText asked{.automatic = false, .mode = moba, .full_last = full};
    MC_TRY(plan, attn::resolve(asked, std::nullopt, layers, static_cast<int32_t>(block_tokens)));
    plans.push_back({name, plan});
  }
  return plans;
}

Result<bool> answers(model::Runner& runner, const text::Tokenizer& tokenizer, const Question& question,
                     const attn::Plan& plan) {
  model::GenerateRequest request;
  MC_TRY(answer, tokenizer.encode(question.answer, {.add_special = false}));
  request.prompt = question.prompt;
  request.max_tokens = static_cast<int32_t>(answer.size() + 2);  // another way to cut the answer may be longer
  request.sampling.temperature = 0;
  request.prefill_plan = request.decode_plan = plan;
  text::Detokenizer detokenizer(tokenizer, true, text::TextStart::before);
  std::string text;
  request.on_token = [&](const ops::Sampled& sampled) {
    text += detokenizer.push(sampled.token);
    return text.size() < question.answer.size();
  };
  MC_TRY(generated, model::generate(runner, request, SystemClock::instance()));
  return text.starts_with(question.answer);
}

}  // namespace

const cli::FlagList kRecallFlags = kRecallFlagTable;

Result<int> measure_recall(const cli::Args& args) {
  MC_TRY(rows, Rows::open(args, "mc.bench.recall.v1", Table({"task", "tokens", "full", "moba", "hybrid"})));
  MC_TRY(engine, host::open_engine(args));
  const model::ModelConfig& config = engine.model->config();
  MC_TRY(tokenizer, text::Tokenizer::open(engine.directory));
  const std::vector<uint64_t> lengths = args.sweep(kLengths);
  for (uint64_t length : lengths)
    if (length < 128 || length + 16 > config.max_positions)
      return user_error(
          err::kBadValue,
          "--length " + std::to_string(length) + "; it must be 128 to " + std::to_string(config.max_positions - 16),
          "--length");
  MC_TRY(plans, plans_of(args, config, engine.block_tokens));
  MC_TRY(runner, model::Runner::open(*engine.model, *engine.parallel,
                                     {.block_tokens = engine.block_tokens, .kernels = args.text(flags::kKernels)}));
  const uint64_t count = std::clamp<uint64_t>(args.count(kCount), 1, 10'000);
  const Questions questions(tokenizer);
  rows->fact("model", engine.served_name);
  rows->fact("dtype", to_string(engine.model->dtype()));
  rows->fact("weight_dtype", engine.model->weight_dtype());
  const std::string widest = "100.0 % (" + std::to_string(count) + " of " + std::to_string(count) + ")";
  rows->expect({"key-value", "", widest, widest, widest});
  for (const char* task : {"passkey", "key-value"}) {
    for (uint64_t length : lengths) {
      Rng rng(args.count(flags::kSeed) + length);
      std::vector<uint64_t> right(plans.size(), 0);
      for (uint64_t i = 0; i < count; ++i) {
        MC_TRY(question, task[0] == 'p' ? questions.passkey(rng, length) : questions.key_value(rng, length));
        for (size_t p = 0; p < plans.size(); ++p) {
          MC_TRY(good, answers(runner, tokenizer, question, plans[p].plan));
          right[p] += good;
        }
      }
      std::vector<std::string> row = {task, std::to_string(length)};
      std::vector<Json> points;
      for (size_t p = 0; p < plans.size(); ++p) {
        const double share = static_cast<double>(right[p]) / static_cast<double>(count);
        Json point = Json::object({{"type", "point"}, {"task", task}, {"tokens", length}, {"mode", plans[p].name}});
        point.set("attention", attn::to_string(plans[p].plan)).set("prompts", count);
        point.set("correct", right[p]).set("share", share);
        points.push_back(std::move(point));
        row.push_back(fixed(100 * share, 1) + " % (" + std::to_string(right[p]) + " of " + std::to_string(count) + ")");
      }
      MC_CHECK(rows->add(std::move(points), std::move(row)));
      note(args, std::string(task) + " at " + std::to_string(length) + " tokens done");
    }
  }
  MC_CHECK(rows->finish());
  return 0;
}

}  // namespace mc::bench
