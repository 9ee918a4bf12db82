// The synthetic workload of `serve`: lengths from flags, arrivals from a gamma process (burstiness 1 is
// Poisson, larger is more even, as in vLLM), a share of every prompt common to all.

#include <cmath>
#include <limits>

#include "base/cli_flags.h"
#include "base/errors.h"
#include "base/rng.h"
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

}  // namespace flag

namespace {

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
  const bool even = args.text(flag::kBurstiness) == "inf";
  const double burstiness = even ? 0 : args.number(flag::kBurstiness);
  if (!even && !(burstiness >= 1e-3 && burstiness <= 1e6))
    return user_error(err::kBadValue, "--burstiness must be 0.001 to 1000000, or inf", "--burstiness");
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
    const uint32_t common = std::min(shared, r.input_tokens);
    tokens += r.input_tokens;
    repeated += i > 0 ? common : 0;
    if (common > 0) r.prompt.push_back({fnv1a("shared prefix"), common});
    if (r.input_tokens > common)
      r.prompt.push_back({fnv1a("request") + (uint64_t{i} + 1) * 0x9e3779b97f4a7c15ull, r.input_tokens - common});
    plan.requests.push_back(std::move(r));
    if (std::isfinite(rate_per_s)) at_s += (even ? 1 : gamma_gap(gaps, burstiness)) / rate_per_s;
  }
  plan.facts.set("input_len", input).set("output_len", output).set("range_ratio", ratio);
  plan.facts.set("prefix_share", prefix);
  plan.facts.set("ideal_token_hit", static_cast<double>(repeated) / static_cast<double>(tokens));
  plan.facts.set("burstiness", even ? std::numeric_limits<double>::infinity() : burstiness);
  return plan;
}

}  // namespace

const Workload kSyntheticWorkload{
    .name = "synthetic", .help = "random prompts of given lengths, Poisson or gamma arrivals", .plan = plan_synthetic};

}  // namespace mc::bench
