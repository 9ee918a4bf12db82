// The synthetic workload of `serve`: lengths from flags, arrivals from a gamma process (burstiness 1 is
// Poisson, larger is more even, as in vLLM), a share of every prompt common to all; or prompts from a file of texts.

#include <cmath>
#include <limits>

#include "base/choice.h"
#include "base/cli_flags.h"
#include "base/errors.h"
#include "base/json.h"
#include "base/rng.h"
#include "print.h"
#include "workload.h"

namespace mc::bench {
namespace flag {

constexpr Flag kNumPrompts{
    .name = "num-prompts", .kind = FlagKind::count, .value = "N", .fallback = "100", .help = "requests to send"};
constexpr Flag kInputLen{
    .name = "input-len", .kind = FlagKind::count, .value = "N", .fallback = "512", .help = "tokens of a prompt"};
constexpr Flag kOutputLen{
    .name = "output-len", .kind = FlagKind::count, .value = "N", .fallback = "64", .help = "tokens of an answer"};
constexpr Flag kRangeRatio{.name = "range-ratio",
                           .kind = FlagKind::number,
                           .value = "X",
                           .fallback = "0",
                           .help = "lengths vary evenly by this share in both directions, 0 to 1"};
constexpr Flag kPrefixShare{.name = "prefix-share",
                            .kind = FlagKind::number,
                            .value = "X",
                            .fallback = "0",
                            .help = "share of --input-len that is common to all prompts, 0 to 1"};
constexpr Flag kRequestRate{.name = "request-rate",
                            .kind = FlagKind::sweep_numbers,
                            .value = "R",
                            .fallback = "inf",
                            .help = "requests per second; inf sends all at once; 1-16*2 runs one after the other",
                            .choices = "inf"};
constexpr Flag kBurstiness{.name = "burstiness",
                           .kind = FlagKind::number,
                           .value = "X",
                           .fallback = "1",
                           .help = "shape of the gamma distributed gaps: 1 is Poisson, less is burstier, inf even",
                           .choices = "inf"};

constexpr Flag kDataset{
    .name = "dataset", .value = "FILE", .help = "prompts from a file: JSON lines with prompt or messages, or ShareGPT"};

}  // namespace flag

namespace {

constexpr size_t kDatasetBytesMax = size_t{1} << 30;

/// The prompt of an entry: `prompt`, the first of `messages`, or the first of ShareGPT's `conversations`.
std::string prompt_of(const Json& entry) {
  for (const std::string_view text : {entry["prompt"].as_string(), entry["messages"][0]["content"].as_string(),
                                      entry["conversations"][0]["value"].as_string()})
    if (!text.empty()) return std::string(text);
  return {};
}

Result<std::vector<std::string>> read_dataset(const std::string& path) {
  MC_TRY(bytes, read_input(path, kDatasetBytesMax));
  std::vector<std::string> texts;
  const auto bad = [&](size_t entry, const std::string& why) {
    return user_error(err::kBadValue, path + ": entry " + std::to_string(entry) + " " + why, "--dataset",
                      "each entry has prompt, messages or conversations");
  };
  const auto add = [&](const Json& entry) -> Result<void> {
    texts.push_back(prompt_of(entry));
    if (texts.back().empty()) return bad(texts.size(), "has no prompt");
    return {};
  };
  if (bytes.find_first_not_of(" \t\r\n") == bytes.find('[')) {  // ShareGPT is one array
    auto all = Json::parse(bytes);
    if (!all) return bad(1, "is not JSON: " + all.error().what);
    for (const Json& entry : all->items()) MC_CHECK(add(entry));
  } else {
    std::string_view rest = bytes;
    while (!rest.empty()) {
      const std::string_view line = rest.substr(0, rest.find('\n'));
      rest.remove_prefix(std::min(line.size() + 1, rest.size()));
      if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
      auto entry = Json::parse(line);
      if (!entry) return bad(texts.size() + 1, "is not JSON: " + entry.error().what);
      MC_CHECK(add(*entry));
    }
  }
  if (texts.empty()) return bad(1, "is missing: the file is empty");
  return texts;
}

/// The texts of --dataset, which has lengths and prefixes of its own; none without it.
Result<std::vector<std::string>> texts_of(const cli::Args& args) {
  if (!args.present(flag::kDataset)) return std::vector<std::string>();
  for (const Flag* flag : {&flag::kInputLen, &flag::kPrefixShare})
    if (args.given(*flag))
      return user_error(err::kUsage, "--" + std::string(flag->name) + " is of random prompts, not of --dataset",
                        "--" + std::string(flag->name));
  return read_dataset(args.text(flag::kDataset));
}

/// Gamma of mean 1 (Marsaglia and Tsang, ACM TOMS 26, 2000; below 1 by their boost).
double gamma_gap(Rng& rng, double shape) {
  if (shape == 1) return rng.exponential(1);
  const double a = shape < 1 ? shape + 1 : shape;
  const double d = a - 1.0 / 3, c = 1 / std::sqrt(9 * d);
  for (;;) {
    const double x = rng.normal();
    const double v = (1 + c * x) * (1 + c * x) * (1 + c * x);
    const double u = rng.uniform();
    if (v <= 0 || u == 0 || std::log(u) >= 0.5 * x * x + d - d * v + d * std::log(v)) continue;
    const double boost = shape < 1 ? std::pow(1 - rng.uniform(), 1 / shape) : 1;
    return d * v * boost / shape;
  }
}

Result<double> share(const cli::Args& args, const Flag& flag) {
  const double value = args.number(flag);
  if (value >= 0 && value <= 1) return value;
  return user_error(err::kBadValue, "--" + std::string(flag.name) + " is " + args.text(flag) + "; it must be 0 to 1",
                    "--" + std::string(flag.name));
}

Result<uint32_t> length(const cli::Args& args, const Flag& flag, uint64_t high) {
  const uint64_t value = args.count(flag);
  if (value >= 1 && value <= high) return static_cast<uint32_t>(value);
  return user_error(
      err::kBadValue,
      "--" + std::string(flag.name) + " is " + args.text(flag) + "; it must be 1 to " + std::to_string(high),
      "--" + std::string(flag.name));
}

uint32_t vary(Rng& rng, uint32_t length, double ratio) {
  const auto spread = static_cast<int64_t>(length * ratio);
  return static_cast<uint32_t>(std::max<int64_t>(1, length + rng.between(-spread, spread)));
}

Result<Plan> plan_synthetic(const cli::Args& args, double rate_per_s) {
  MC_TRY(count, length(args, flag::kNumPrompts, 10'000'000));
  MC_TRY(input, length(args, flag::kInputLen, 1 << 22));
  MC_TRY(output, length(args, flag::kOutputLen, 1 << 22));
  MC_TRY(ratio, share(args, flag::kRangeRatio));
  MC_TRY(prefix, share(args, flag::kPrefixShare));
  MC_TRY(texts, texts_of(args));
  const bool even = is_word(args, flag::kBurstiness);
  const double burstiness = even ? 0 : args.number(flag::kBurstiness);
  if (!even && !(burstiness >= 1e-3 && burstiness <= 1e6))
    return out_of_range(flag::kBurstiness, args.text(flag::kBurstiness), "0.001 to 1000000, or inf");
  const uint64_t seed = args.count(flags::kSeed);
  Rng gaps = Rng(seed).fork("gaps"), lengths = Rng(seed).fork("lengths");
  const auto shared = static_cast<uint32_t>(std::lround(prefix * input));
  Plan plan;
  plan.rate_per_s = rate_per_s;
  double at_s = 0;
  uint64_t tokens = 0, repeated = 0;
  for (uint32_t i = 0; i < count; ++i) {
    PlannedRequest r;
    r.at = from_seconds(at_s);
    r.input_tokens = vary(lengths, input, ratio);
    r.output_tokens = vary(lengths, output, ratio);
    if (!texts.empty()) {
      r.text = texts[i % texts.size()];
      r.input_tokens = 0;  // the server counts them
    }
    const uint32_t common = std::min(shared, r.input_tokens);
    tokens += r.input_tokens;
    repeated += i > 0 ? common : 0;
    if (common > 0) r.prompt.push_back({fnv1a("shared prefix"), common});
    if (r.input_tokens > common)
      r.prompt.push_back({fnv1a("request") + (uint64_t{i} + 1) * 0x9e3779b97f4a7c15ull, r.input_tokens - common});
    plan.requests.push_back(std::move(r));
    if (std::isfinite(rate_per_s)) at_s += (even ? 1 : gamma_gap(gaps, burstiness)) / rate_per_s;
  }
  if (texts.empty()) {
    plan.facts.set("input_len", input).set("prefix_share", prefix);
    plan.facts.set("ideal_token_hit", static_cast<double>(repeated) / static_cast<double>(tokens));
  } else {
    plan.facts.set("dataset", args.text(flag::kDataset)).set("dataset_prompts", texts.size());
  }
  plan.facts.set("output_len", output).set("range_ratio", ratio);
  plan.facts.set("burstiness", even ? std::numeric_limits<double>::infinity() : burstiness);
  return plan;
}

}  // namespace

const Workload kSyntheticWorkload{
    .name = "synthetic", .help = "random prompts of given lengths, Poisson or gamma arrivals", .plan = plan_synthetic};

}  // namespace mc::bench
