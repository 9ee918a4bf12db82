// `mc-bench grammar`: the time of a token's mask under a grammar (response_format, tool_choice), on one thread, with
// the tokens of a model or with a synthetic vocabulary of any size.

#include "grammar/grammar.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "base/exit.h"
#include "base/rng.h"
#include "host/engine.h"
#include "model/find.h"
#include "product/flags.h"
#include "rows.h"
#include "text/text.h"
#include "verbs.h"

namespace mc::bench {
namespace {

constexpr Flag kSyntheticTokens{.name = "vocab",
                                .kind = FlagKind::count,
                                .value = "N",
                                .fallback = "150000",
                                .help = "tokens of the synthetic vocabulary, used without -m; 1,000 to 1,000,000",
                                .check = flags::check_between<1'000, 1'000'000>};
constexpr Flag kAnswers{.name = "answers",
                        .letter = 'r',
                        .kind = FlagKind::count,
                        .value = "N",
                        .fallback = "20",
                        .help = "answers drawn under each grammar, 1 to 10000",
                        .check = flags::check_between<1, 10'000>};
constexpr auto kGrammarFlagTable = flags::join(
    flags::list(&kSyntheticTokens, &kAnswers, &flags::kModel, &flags::kSeed, &kFormat, &flags::kOutput, &flags::kQuiet),
    flags::kEveryRun);

constexpr size_t kAnswerTokens = 200;

struct Named {
  const char* name;
  const char* grammar;
};
constexpr Named kGrammars[] = {
    {"any object", R"({"json":"object"})"},
    {"schema", R"({"schema":{"type":"object","properties":{"name":{"type":"string","maxLength":80},
      "age":{"type":"integer","minimum":0,"maximum":150},"tags":{"type":"array","items":{"type":"string"}},
      "kind":{"enum":["small","medium","large"]},"parts":{"type":"array","items":{"$ref":"#"},"maxItems":4}},
      "required":["name","age","tags"],"additionalProperties":false}})"},
    {"tool call", R"({"seq":[{"text":"<tool_call>\n{\"name\": \"search\", \"arguments\": "},
      {"schema":{"type":"object","properties":{"query":{"type":"string"},"limit":{"type":"integer"}},
      "required":["query"],"additionalProperties":false}},{"text":"}\n</tool_call>"}]})"},
    {"reasoning", R"({"seq":[{"until":"</think>"},{"blanks":true},{"json":"object"}]})"},
};

/// Bytes, runs of blanks, numbers, pieces of code with quotes and brackets, and words of several scripts with and
/// without a blank in front: the shares of a byte-level vocabulary.
std::vector<std::string> synthetic_tokens(size_t count, Rng& rng) {
  std::set<std::string> seen;
  std::vector<std::string> out;
  const auto add = [&](std::string text) {
    if (out.size() < count && seen.insert(text).second) out.push_back(std::move(text));
  };
  for (int byte = 0; byte < 256; ++byte) add(std::string(1, static_cast<char>(byte)));
  for (size_t size = 2; size <= 64; ++size) add(std::string(size, ' ')), add(std::string(size / 2, '\n'));
  for (int number = 10; number < 1000; ++number) add(std::to_string(number));
  static constexpr std::string_view kMarks = "\"'{}[]():;,.<>/\\=+-*_#!?&|%$@~`";
  static constexpr std::string_view kLetters = "eeeeetttaaooiinnsshhrrddllcumwfgypbvkjxqz";
  const auto word = [&](size_t most) {
    std::string text;
    for (uint64_t i = 0, size = 2 + rng.below(most); i < size; ++i) text += kLetters[rng.below(kLetters.size())];
    return text;
  };
  while (out.size() < count) {
    std::string text = rng.below(2) ? " " : "";
    switch (rng.below(10)) {
      case 0:
        for (uint64_t i = 0, size = 2 + rng.below(4); i < size; ++i) text += kMarks[rng.below(kMarks.size())];
        break;
      case 1: text += kMarks[rng.below(kMarks.size())] + word(6); break;
      case 2: text += word(5) + kMarks[rng.below(kMarks.size())]; break;
      case 3:
      case 4:
        for (uint64_t i = 0, size = 1 + rng.below(3); i < size; ++i) {
          const uint64_t code = 0x4E00 + rng.below(0x5000);
          for (const uint64_t byte : {0xE0 | code >> 12, 0x80 | (code >> 6 & 63), 0x80 | (code & 63)})
            text += static_cast<char>(byte);
        }
        break;
      default: text += word(9);
    }
    add(std::move(text));
  }
  return out;
}

Result<grammar::Vocabulary> vocabulary_of(const cli::Args& args, Rng& rng, std::string& name) {
  if (!args.present(flags::kModel)) {
    const auto texts = synthetic_tokens(args.count(kSyntheticTokens), rng);
    name = "synthetic";
    return grammar::Vocabulary::build(texts, std::vector<bool>(texts.size()));
  }
  std::string directory = args.text(flags::kModel);
  if (directory == "mc-tiny") {
    MC_TRY(found, model::find_model(directory));
    directory = std::move(found);
  }
  MC_TRY(tokenizer, text::Tokenizer::open(directory));
  std::vector<std::string> texts(tokenizer.vocab_size());
  std::vector<bool> special(texts.size());
  for (uint32_t id = 0; id < texts.size(); ++id)
    texts[id] = tokenizer.token_bytes(id), special[id] = tokenizer.is_special(id);
  name = host::served_name(directory);
  return grammar::Vocabulary::build(texts, special);
}

struct MaskTimes {
  std::vector<double> mask_us;
  double sum_us() const {
    double sum = 0;
    for (const double us : mask_us) sum += us;
    return sum;
  }
  /// The ceil(share * N)-th smallest.
  double at(double share) const {
    const auto rank = static_cast<size_t>(std::ceil(share * static_cast<double>(mask_us.size())));
    return mask_us[std::max<size_t>(rank, 1) - 1];
  }
};

/// Draws answers from the masks, a random allowed token at each step.
void draw(grammar::Masks& masks, Rng& rng, size_t answers, MaskTimes& out) {
  const size_t words = (masks.vocabulary().size() + 63) / 64;
  std::vector<uint64_t> mask(words);
  for (size_t i = 0; i < answers; ++i) {
    grammar::Matcher matcher(masks);
    for (size_t step = 0; step < kAnswerTokens && !matcher.is_over(); ++step) {
      const TimePoint began = steady_now();
      matcher.fill(mask);
      out.mask_us.push_back(1e6 * to_seconds(steady_now() - began));
      uint32_t token = 0;
      for (size_t tries = 0; tries < words; ++tries) {  // a random word of the mask that allows something
        const size_t at = (rng.below(words) + tries) % words;
        if (mask[at] == 0) continue;
        std::vector<uint32_t> ids;
        for (uint32_t bit = 0; bit < 64; ++bit)
          if (mask[at] >> bit & 1) ids.push_back(static_cast<uint32_t>(at * 64 + bit));
        token = ids[rng.below(ids.size())];
        break;
      }
      if (!grammar::is_allowed(mask, token))
        for (token = 0; token < masks.vocabulary().size() && !grammar::is_allowed(mask, token);) ++token;
      if (!matcher.accept(token)) break;
    }
  }
}

}  // namespace

const cli::FlagList kGrammarFlags = kGrammarFlagTable;

Result<int> measure_grammars(const cli::Args& args) {
  MC_TRY(rows, Rows::open(args, "mc.bench.grammar.v1",
                          Table({"grammar", "masks", "mean us", "p50 us", "p99 us", "longest us", "compile us"}),
                          {.list = "grammars"}));
  Rng rng(args.count(flags::kSeed));
  std::string name;
  const TimePoint began = steady_now();
  MC_TRY(vocabulary, vocabulary_of(args, rng, name));
  const double build_ms = 1e3 * to_seconds(steady_now() - began);
  rows->fact("vocabulary", name);
  rows->fact("tokens", vocabulary.size());
  rows->fact("build_ms", build_ms);
  MC_CHECK(rows->text(name + ": " + thousands(vocabulary.size()) + " tokens, read in " + fixed(build_ms, 0) +
                      " ms; one thread\n"));
  for (const Named& named : kGrammars) rows->expect({named.name, "1,000,000", "1000.0", "1000.0", "1000.0", "10000.0"});
  grammar::MaskStore shared;
  for (const Named& named : kGrammars) {
    const TimePoint start = steady_now();
    MC_TRY(compiled, grammar::Grammar::compile(named.grammar));
    const double compile_us = 1e6 * to_seconds(steady_now() - start);
    MC_CHECK(vocabulary.check(*compiled));
    grammar::Masks masks(compiled, vocabulary, shared);
    MaskTimes times;
    draw(masks, rng, args.count(kAnswers), times);
    std::sort(times.mask_us.begin(), times.mask_us.end());
    const double mean = times.sum_us() / static_cast<double>(times.mask_us.size());
    MC_CHECK(rows->add(Json::object({{"type", "point"},
                                     {"grammar", named.name},
                                     {"masks", times.mask_us.size()},
                                     {"mean_us", mean},
                                     {"p50_us", times.at(0.5)},
                                     {"p99_us", times.at(0.99)},
                                     {"longest_us", times.at(1)},
                                     {"compile_us", compile_us}}),
                       {named.name, thousands(times.mask_us.size()), fixed(mean, 1), fixed(times.at(0.5), 1),
                        fixed(times.at(0.99), 1), fixed(times.at(1), 1), fixed(compile_us, 0)}));
  }
  MC_CHECK(rows->finish());
  return kExitOk;
}

}  // namespace mc::bench
