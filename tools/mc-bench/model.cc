// `mc-bench model`: prefill and decode speed of a model in this process, as tokens per second and as a share
// of what the machine can do: arithmetic peak for prefill, memory bandwidth for decode (both measured right
// before, by lib/attn/peak). `inspect` prints what a model file holds instead. --save-cost fits the scheduler's cost
// model to the same measurements.

#include <algorithm>
#include <cmath>

#include "attn/attn.h"
#include "base/errors.h"
#include "base/fd.h"
#include "base/log.h"
#include "host/choice_flags.h"
#include "host/daemon_flags.h"
#include "host/engine.h"
#include "mem/mem.h"
#include "model/generate.h"
#include "model/runner.h"
#include "product/flags.h"
#include "rows.h"
#include "sched/sched.h"
#include "verbs.h"
#include "xfer/bench.h"

namespace mc::bench {
namespace {

constexpr Flag kPrompts{.name = "prompt",
                        .letter = 'p',
                        .kind = FlagKind::sweep_counts,
                        .value = "N,N",
                        .fallback = "128,512,2048",
                        .help = "tokens to prefill"};
constexpr Flag kTokens{.name = "tokens",
                       .letter = 'n',
                       .kind = FlagKind::count,
                       .value = "N",
                       .fallback = "32",
                       .help = "tokens to decode"};
constexpr Flag kDepths{.name = "depth",
                       .letter = 'd',
                       .kind = FlagKind::sweep_counts,
                       .value = "N,N",
                       .fallback = "0",
                       .help = "tokens of context before; rounded down to whole KV blocks"};
constexpr Flag kModelRepeats{.name = "repeats",
                             .letter = 'r',
                             .kind = FlagKind::count,
                             .value = "N",
                             .fallback = "5",
                             .help = "measurements of each point, 1 to 10000",
                             .check = flags::check_between<1, 10'000>};
constexpr Flag kRows{.name = "batch",
                     .letter = 'b',
                     .kind = FlagKind::sweep_counts,
                     .value = "N,N",
                     .fallback = "1",
                     .help = "requests of a decode step"};
constexpr Flag kSaveCost{
    .name = "save-cost", .value = "FILE", .help = "fit a cost profile and write it, for --cost of the workers"};

constexpr auto kModelFlagTable = flags::join(
    flags::list(&kPrompts, &kTokens, &kDepths, &kRows, &kModelRepeats, &kSaveCost, &flags::kModel, &flags::kDtype,
                &flags::kWeightDtype, &flags::kKvDtype, &flags::kAttention, &flags::kChunkTokens, &flags::kBlockTokens,
                &flags::kThreads, &flags::kKernels, &kFormat, &flags::kOutput, &flags::kQuiet),
    flags::kEveryRun);

constexpr uint64_t kModelTokensMax = 1 << 20;

struct Times {
  std::vector<double> seconds;
  double mean_rate(double tokens) const {
    double sum = 0;
    for (double s : seconds) sum += tokens / s;
    return sum / static_cast<double>(seconds.size());
  }
  double sd_rate(double tokens) const {
    const double mean = mean_rate(tokens);
    double squares = 0;
    for (double s : seconds) squares += (tokens / s - mean) * (tokens / s - mean);
    return std::sqrt(squares / static_cast<double>(seconds.size()));
  }
  double best() const { return *std::min_element(seconds.begin(), seconds.end()); }
};

/// The model, the machine's limits, and one sequence's pages.
class Bench {
 public:
  Bench(host::Engine& engine, model::Runner runner, model::LocalPages pages, size_t chunk)
      : engine_(engine),
        runner_(std::move(runner)),
        pages_(std::move(pages)),
        centroids_(runner_.layout()),
        chunk_(chunk) {
    ids_.resize(static_cast<size_t>(pages_.capacity_tokens()));
    for (size_t i = 0; i < ids_.size(); ++i) ids_[i] = static_cast<uint32_t>((i * 7919 + 3) % config().vocab);
  }
  const model::ModelConfig& config() const { return engine_.model->config(); }

  /// Computes tokens [start, start + count) in chunks; seconds.
  Result<double> prefill(int64_t start, int64_t count) {
    const TimePoint began = SystemClock::instance().now();
    for (int64_t at = start; at < start + count;) {
      const int64_t length = std::min<int64_t>(static_cast<int64_t>(chunk_), start + count - at);
      model::PrefillChunk chunk;
      chunk.tokens = std::span(ids_).subspan(static_cast<size_t>(at), static_cast<size_t>(length));
      chunk.start = at;
      chunk.pages = pages_.pages();
      chunk.plan = &engine_.prefill_plan;
      centroids_ = attn::CentroidIndex(runner_.layout());  // of KV that is written anew
      MC_CHECK(runner_.prefill(chunk));
      at += length;
    }
    return to_seconds(SystemClock::instance().now() - began);
  }

  /// `count` steps of `rows` rows from position `depth`; all rows read the same pages, and each appends to
  /// the same place, which costs what different places would. Seconds.
  Result<double> decode(int64_t depth, int64_t count, size_t rows) {
    logits_.resize(rows * config().vocab);
    const TimePoint began = SystemClock::instance().now();
    for (int64_t i = 0; i < count; ++i) {
      const model::DecodeRow row{ids_[0], depth + i, pages_.pages(), &engine_.decode_plan, &centroids_};
      const std::vector<model::DecodeRow> batch(rows, row);
      MC_CHECK(runner_.decode(batch, logits_));
    }
    return to_seconds(SystemClock::instance().now() - began);
  }

  /// Arithmetic of a prefill: two operations a weight and token, and attention.
  double prefill_flop(int64_t start, int64_t count) const {
    const auto& c = config();
    const double q = double{1} * c.heads * c.head_dim, kv = double{1} * c.kv_heads * c.head_dim;
    double weights = 0, attention = 0;
    for (uint32_t i = 0; i < c.layers; ++i) {
      weights += c.hidden * (q + 2 * kv) + q * c.hidden + 3.0 * c.hidden * static_cast<double>(c.active_inner(i));
      attention += attn::prefill_flop(engine_.prefill_plan.layer(static_cast<int32_t>(i)),
                                      static_cast<int32_t>(c.heads), static_cast<int32_t>(c.head_dim), start, count);
    }
    return 2 * weights * static_cast<double>(count) + attention;
  }
  /// Bytes a decode step must read: every weight but the embedding table once (of a mixture, the experts
  /// that so many rows choose when all are equally likely), and each row's K and V.
  double step_bytes(int64_t context, size_t rows) const {
    const auto& c = config();
    const double kv = attn::decode_bytes(runner_.layout(), context) * c.layers;
    const auto& m = c.mixture;
    double idle = 0;
    for (uint32_t i = 0; i < c.layers; ++i)
      for (const model::Mlp& expert : engine_.model->layers()[i].experts.routed)
        idle += static_cast<double>(expert.gate_up.bytes() + expert.down.bytes()) *
                std::pow(1 - static_cast<double>(m.per_token) / m.experts, static_cast<double>(rows));
    return static_cast<double>(engine_.model->weight_bytes() - engine_.model->embedding_bytes()) - idle +
           static_cast<double>(rows) * kv;
  }

 private:
  host::Engine& engine_;
  model::Runner runner_;
  model::LocalPages pages_;
  attn::CentroidIndex centroids_;
  size_t chunk_;
  std::vector<uint32_t> ids_;
  std::vector<float> logits_;
};

struct Points {
  std::vector<int64_t> prompts, depths;
  std::vector<uint64_t> rows;
  int64_t tokens = 0, repeats = 0, longest = 0;
};

Result<Points> read_points(const cli::Args& args, const model::ModelConfig& config, uint32_t block_tokens) {
  Points p;
  for (uint64_t n : args.sweep(kPrompts)) p.prompts.push_back(static_cast<int64_t>(std::min(n, kModelTokensMax)));
  for (uint64_t d : args.sweep(kDepths))
    p.depths.push_back(static_cast<int64_t>(std::min(d, kModelTokensMax) / block_tokens * block_tokens));
  for (uint64_t b : args.sweep(kRows)) {
    if (b < 1 || b > 256) return out_of_range(kRows, b, 1, 256);
    p.rows.push_back(b);
  }
  // A line needs two points: without them the fit would keep its defaults.
  if (args.present(kSaveCost) && p.prompts.size() * p.depths.size() < 2)
    p.prompts.insert(p.prompts.begin(), std::max<int64_t>(1, p.prompts.front() / 4));
  p.tokens = static_cast<int64_t>(std::min(args.count(kTokens), kModelTokensMax));
  p.repeats = static_cast<int64_t>(args.count(kModelRepeats));
  int64_t prompt = p.tokens;
  for (int64_t n : p.prompts) {
    if (n < 1) return out_of_range(kPrompts, std::to_string(n), "at least 1");
    prompt = std::max(prompt, n);
  }
  const int64_t deepest = *std::max_element(p.depths.begin(), p.depths.end());
  p.longest = deepest + prompt;
  if (p.longest > static_cast<int64_t>(config.max_positions)) {
    const char* flag = prompt > p.tokens ? "--prompt" : "--tokens";
    return user_error(err::kContextLength,
                      std::string(flag) + " " + std::to_string(prompt) +
                          (deepest > 0 ? " at --depth " + std::to_string(deepest) : std::string()) +
                          " exceeds the context of " + std::to_string(config.max_positions) + " tokens",
                      prompt > static_cast<int64_t>(config.max_positions) ? flag : "--depth");
  }
  return p;
}

struct Fit {
  std::vector<sched::PrefillSample> prefills;
  std::vector<sched::StepSample> steps;
};

Json row_json(std::string_view what, int64_t tokens, int64_t depth, uint64_t rows, const Times& times, double per_run,
              double work, double limit, const char* unit) {
  Json out = Json::object({{"type", "point"}, {"phase", what}, {"tokens", tokens}, {"depth", depth}, {"batch", rows}});
  out.set("repeats", times.seconds.size()).set("tokens_per_s", times.mean_rate(per_run));
  out.set("tokens_per_s_sd", times.sd_rate(per_run)).set("best_s", times.best());
  out.set(unit, work / times.best()).set("peak_share", limit > 0 ? work / times.best() / limit : 0.0);
  return out;
}

std::vector<std::string> row_text(const Json& r, const char* unit, double scale, const char* name) {
  const std::string label = std::string(r["phase"].as_string() == "prefill" ? "pp" : "tg") + r["tokens"].dump() +
                            (r["batch"].as_int() > 1 ? " x" + r["batch"].dump() : "") +
                            (r["depth"].as_int() > 0 ? " @ d" + r["depth"].dump() : "");
  return {label, fixed(r["tokens_per_s"].as_double(), 1) + " ± " + fixed(r["tokens_per_s_sd"].as_double(), 1),
          fixed(r[unit].as_double() / scale, 1) + name, fixed(100 * r["peak_share"].as_double(), 0)};
}

void state_facts(const host::Engine& engine, const std::string& kernels, Rows& rows) {
  rows.fact("model", engine.served_name);
  rows.fact("parameters", engine.model->parameters());
  rows.fact("weight_bytes", engine.model->weight_bytes());
  rows.fact("dtype", to_string(engine.model->dtype()));
  rows.fact("weight_dtype", engine.model->weight_dtype());
  rows.fact("attention", attn::to_string(engine.prefill_plan));
  rows.fact("kernels", kernels);
  rows.fact("threads", engine.parallel->threads());
}

/// Makes the columns wide enough for the deepest and longest points.
void expect_points(const Points& points, Rows& rows) {
  const auto deepest = std::to_string(*std::max_element(points.depths.begin(), points.depths.end()));
  for (const int64_t prompt : points.prompts)
    rows.expect(
        {"pp" + std::to_string(prompt) + (deepest == "0" ? "" : " @ d" + deepest), "1000.0 ± 100.0", "1000.0 GFLOP/s"});
}

/// The rate of reads between nodes of one host: memory to memory.
double copy_rate() {
  auto from = mem::HostBuffer::allocate(size_t{16} << 20), to = mem::HostBuffer::allocate(size_t{16} << 20);
  if (!from || !to) return sched::Cost{}.read_bytes_per_s;
  return xfer::bench_memcpy(from->bytes(), to->bytes(), size_t{1} << 20, 200ms);
}

Result<void> save_cost(const cli::Args& args, const host::Engine& engine, const Fit& fit, Rows& rows) {
  const model::ModelConfig& config = engine.model->config();
  sched::Profile profile;
  profile.name = profile.model = engine.served_name;
  profile.hardware = "this machine, " + std::to_string(engine.parallel->threads()) + " threads";
  profile.layers = config.layers;
  profile.kv_bytes_per_token = engine.model->kv_layout(engine.block_tokens).page_bytes() / engine.block_tokens;
  profile.activation_bytes_per_token = config.hidden * sizeof(float);
  profile.context_tokens = config.max_positions;
  profile.capacity.kv_tokens = mem::available_bytes() / std::max<uint64_t>(profile.kv_bytes_per_token, 1);
  profile.capacity.dram_bytes = mem::available_bytes() / 2;
  sched::Cost& cost = profile.cost;
  sched::fit_prefill(fit.prefills, cost);
  sched::fit_step(fit.steps, cost);
  profile.paths.net.bytes_per_s = profile.paths.load.bytes_per_s = profile.paths.store.bytes_per_s = copy_rate();
  double error = 0;
  for (const auto& s : fit.prefills) error += std::abs(cost.prefill(s.tokens, s.reused) - s.seconds) / s.seconds;
  double step_error = 0;
  for (const auto& s : fit.steps) step_error += std::abs(cost.step(s.rows, s.kv_tokens) - s.seconds) / s.seconds;
  Json out = Json::object({{"file", args.text(kSaveCost)}});
  out.set("prefill_mape", fit.prefills.empty() ? 0.0 : error / static_cast<double>(fit.prefills.size()));
  out.set("step_mape", fit.steps.empty() ? 0.0 : step_error / static_cast<double>(fit.steps.size()));
  profile.error.prefill_mape = out["prefill_mape"].as_double();
  profile.error.step_mape = out["step_mape"].as_double();
  const std::string text = "cost model written to " + args.text(kSaveCost) + "; mean error prefill " +
                           fixed(100 * profile.error.prefill_mape, 1) + " %, decode step " +
                           fixed(100 * profile.error.step_mape, 1) + " %\n";
  rows.fact("cost", std::move(out));
  if (auto done = profile.complete(); !done) return user_error(err::kInternal, done.error().what);
  MC_CHECK(write_output(args.text(kSaveCost), sched::format_profile(profile), kSaveCost));
  return rows.text(text);
}

Result<void> measure(const cli::Args& args, Bench& bench, const Points& points, double flop_limit, double byte_limit,
                     Rows& out, Fit& fit) {
  const auto emit = [&](Json row, const char* unit, double scale, const char* name) -> Result<void> {
    auto cells = row_text(row, unit, scale, name);
    return out.add(std::move(row), std::move(cells));
  };
  for (int64_t depth : points.depths) {
    if (depth > 0) MC_CHECK(bench.prefill(0, depth));
    for (int64_t count : points.prompts) {
      Times times;
      MC_CHECK(bench.prefill(depth, count));  // the first pass pays for cold caches
      for (int64_t r = 0; r < points.repeats; ++r) {
        MC_TRY(seconds, bench.prefill(depth, count));
        times.seconds.push_back(seconds);
      }
      fit.prefills.push_back({static_cast<double>(depth + count), static_cast<double>(depth), times.best()});
      MC_CHECK(emit(row_json("prefill", count, depth, 1, times, static_cast<double>(count),
                             bench.prefill_flop(depth, count), flop_limit, "flop_per_s"),
                    "flop_per_s", 1e9, " GFLOP/s"));
    }
    if (points.tokens == 0) continue;
    std::vector<uint64_t> rows = points.rows;
    // One row cannot tell a step's constant part from its rows.
    if (args.present(kSaveCost) && rows.size() < 2) rows = {1, 4, 16};
    for (uint64_t batch : rows) {
      Times times;
      MC_CHECK(bench.decode(depth, 1, batch));
      for (int64_t r = 0; r < points.repeats; ++r) {
        MC_TRY(seconds, bench.decode(depth, points.tokens, batch));
        times.seconds.push_back(seconds);
      }
      const double context = static_cast<double>(depth) + static_cast<double>(points.tokens) / 2;
      const double n = static_cast<double>(points.tokens), b = static_cast<double>(batch);
      fit.steps.push_back({b, b * context, times.best() / n});
      MC_CHECK(emit(row_json("decode", points.tokens, depth, batch, times, n * b,
                             n * bench.step_bytes(static_cast<int64_t>(context), batch), byte_limit, "bytes_per_s"),
                    "bytes_per_s", 1e9, " GB/s"));
    }
  }
  return {};
}

}  // namespace

const cli::FlagList kModelFlags = kModelFlagTable;

Result<int> measure_model(const cli::Args& args) {
  if (!args.positional("ACTION").empty()) {
    if (args.positional_one("ACTION") != "inspect")
      return user_error(err::kUsage, "model takes no '" + args.positional_one("ACTION") + "'; it knows inspect",
                        "ACTION");
    return inspect_model(args,
                         args.positional("FILE").empty() ? args.text(flags::kModel) : args.positional_one("FILE"));
  }
  MC_TRY(sink, Sink::open(args));
  MC_CHECK(check_output(args.text(kSaveCost), kSaveCost));
  const uint64_t chunk = args.count(flags::kChunkTokens), block = args.count(flags::kBlockTokens);
  if (chunk == 0 || chunk % block != 0 || chunk > kModelTokensMax)
    return user_error(err::kBadValue,
                      "--chunk-tokens is " + std::to_string(chunk) + "; it must be a multiple of --block-tokens, " +
                          std::to_string(block) + ", and at most " + std::to_string(kModelTokensMax),
                      "--chunk-tokens", "--chunk-tokens " + std::to_string(std::max(block, chunk / block * block)));
  MC_TRY(rows, Rows::open(args, "mc.bench.model.v1", Table({"point", "tokens/s", "work", "% of peak"})));
  MC_TRY(engine, host::open_engine(args));
  const auto& config = engine.model->config();
  MC_TRY(points, read_points(args, config, engine.block_tokens));
  const uint64_t rows_max = std::max<uint64_t>(16, *std::max_element(points.rows.begin(), points.rows.end()));
  MC_TRY(runner, model::Runner::open(*engine.model, *engine.parallel,
                                     {.block_tokens = engine.block_tokens,
                                      .max_chunk_tokens = static_cast<uint32_t>(chunk),
                                      .max_batch = static_cast<uint32_t>(rows_max),
                                      .kernels = args.text(flags::kKernels)}));
  const std::string kernels(runner.kernels().name);
  MC_TRY(pages, model::LocalPages::allocate(runner.layout(), points.longest + 1));
  const attn::MachinePeak peak = attn::measure_peak(*engine.parallel);
  const double named = peak.rate(attn::bounding_rate(kernels, engine.model->dtype()));
  const double flop_limit = named > 0 ? named : peak.best_flop_per_s();
  Bench bench(engine, std::move(runner), std::move(pages), chunk);
  state_facts(engine, kernels, *rows);
  rows->fact("chunk_tokens", chunk);
  rows->fact("peak_flop_per_s", flop_limit);
  rows->fact("peak_read_bytes_per_s", peak.read_bytes_per_s);
  expect_points(points, *rows);
  MC_CHECK(rows->text(engine.served_name + ": " + thousands(engine.model->parameters()) + " parameters, " +
                      std::string(to_string(engine.model->dtype())) + ", " + kernels + ", " +
                      std::to_string(engine.parallel->threads()) + " threads\nmachine peak " +
                      fixed(flop_limit / 1e9, 1) + " GFLOP/s, " + fixed(peak.read_bytes_per_s / 1e9, 1) +
                      " GB/s read\n"));
  Fit fit;
  MC_CHECK(measure(args, bench, points, flop_limit, peak.read_bytes_per_s, *rows, fit));
  if (args.present(kSaveCost)) MC_CHECK(save_cost(args, engine, fit, *rows));
  MC_CHECK(rows->finish());
  return 0;
}

}  // namespace mc::bench
