// `mc-bench ops`: the operators besides attention, each type of weights and each variant this CPU can run, on the same
// shapes. Before anything is timed a variant's result is held against the definition in double; then all take turns,
// so that a drift of the machine favours none. Rates are told as shares of what the machine can do, measured right
// before.

#include <algorithm>
#include <cstdio>
#include <memory>

#include "attn/attn.h"
#include "base/errors.h"
#include "host/engine.h"
#include "mem/mem.h"
#include "ops_case.h"
#include "print.h"
#include "product/flags.h"
#include "rows.h"
#include "verbs.h"
#include "xfer_against.h"

namespace mc::bench {
namespace {

constexpr Flag kOps{.name = "op",
                    .kind = FlagKind::list,
                    .value = "OP,OP",
                    .fallback = "all",
                    .help = "prefill, decode (products), rms_norm, rope, silu_mul, or all"};
constexpr Flag kOpsVariants{.name = "kernels",
                            .kind = FlagKind::list,
                            .value = "V,V",
                            .fallback = "all",
                            .help = "variants that take turns; all: those that this CPU has",
                            .choices = "all|auto",
                            .table = names_of<ops::variants>};
constexpr Flag kOpsDtypes{.name = "dtype",
                          .kind = FlagKind::list,
                          .value = "T,T",
                          .fallback = "all",
                          .help = "types of weights: bf16, f32, int8, int4, fp8_e4m3, or all"};
constexpr Flag kOpsRows{.name = "rows",
                        .kind = FlagKind::sweep_counts,
                        .value = "N,N",
                        .fallback = "1,4,16,512",
                        .help = "rows of a call: prefill takes multiples of 64, decode smaller numbers"};
constexpr Flag kSizes{.name = "size",
                      .kind = FlagKind::list,
                      .value = "KxN,KxN",
                      .fallback = "2048x2048",
                      .help = "inputs and outputs of a matrix: 2048x2048,896x4864"};

constexpr auto kOpsFlagTable =
    flags::join(flags::list(&kOps, &kOpsVariants, &kOpsDtypes, &kOpsRows, &kSizes, &kRepeats, &flags::kThreads,
                            &flags::kSeed, &kFormat, &flags::kOutput, &flags::kQuiet),
                flags::kEveryRun);

constexpr uint64_t kSideMax = 1 << 20;
constexpr Duration kTurn = 10ms;           // calls of one turn go on for so long
constexpr double kSlowCallSeconds = 0.25;  // a call that takes longer, as of ref, is timed once

struct OpsContender {
  std::unique_ptr<ops::Matmul> matmul;
  std::string kernels;
  std::vector<double> seconds;  // of a call, by turns
  double error = 0;
  bool slow = false;  // timed once
};

struct Size {
  size_t inputs, outputs;
};

/// The settings and the output that all measurements share.
struct Run {
  const cli::Args& args;
  Parallel& parallel;
  attn::MachinePeak peak;
  std::vector<OpsContender> contenders;
  Rows& rows;
  int wrong = 0;  // points with an error beyond their limit
};

bool has(const std::vector<std::string>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

/// The values of `flag`, each one of `known`; "all" is all of them.
Result<std::vector<std::string>> read_names(const Flag& flag, const std::vector<std::string>& asked,
                                            const std::vector<std::string>& known) {
  if (has(asked, "all")) return known;
  for (const std::string& name : asked) {
    if (has(known, name)) continue;
    std::string listed;
    for (const std::string& one : known) listed += ", " + one;
    return user_error(err::kBadValue, "'" + name + "' is not known here; there is all" + listed,
                      "--" + std::string(flag.name));
  }
  return asked;
}

Result<std::vector<Size>> read_sizes(const cli::Args& args) {
  std::vector<Size> sizes;
  for (const std::string& text : args.list(kSizes)) {
    const size_t cross = text.find('x');
    const auto inputs = parse_u64(text.substr(0, cross), 2, kSideMax);
    const auto outputs = parse_u64(cross == std::string::npos ? "" : text.substr(cross + 1), 1, kSideMax);
    if (!inputs || !outputs)
      return user_error(err::kBadValue, "'" + text + "' is not inputs x outputs, at most 1048576 each", "--size",
                        "write 2048x2048");
    sizes.push_back({*inputs, *outputs});
  }
  return sizes;
}

Result<std::vector<OpsContender>> open_contenders(const cli::Args& args, Parallel& parallel) {
  std::vector<std::string> known;
  for (const ops::Kernels* kernels : ops::variants())
    if (kernels->supported()) known.emplace_back(kernels->name);
  std::vector<std::string> asked = args.list(kOpsVariants);
  std::replace(asked.begin(), asked.end(), std::string("auto"), std::string(ops::best_kernels().name));
  MC_TRY(names, read_names(kOpsVariants, asked, known));
  std::vector<OpsContender> contenders;
  for (const std::string& name : names) {
    MC_TRY(kernels, ops::kernels_named(name));
    contenders.push_back({std::make_unique<ops::Matmul>(*kernels, parallel), name, {}});
  }
  return contenders;
}

/// Seconds of a call: the mean of a turn, in which products walk on from matrix to matrix.
double take_turn(Operands& operands, ops::Matmul& matmul) {
  const Clock& clock = SystemClock::instance();
  const TimePoint began = clock.now();
  int64_t calls = 0;
  Duration passed{0};
  for (; passed < kTurn; passed = clock.now() - began, ++calls) operands.op->run(operands, matmul);
  return to_seconds(passed) / static_cast<double>(calls);
}

/// Which instruction bounds a point: of 8-bit weights only those of fp8 are ever made bf16, for tiles.
std::string_view bounding_rate(const Operands& operands, const ops::Kernels& kernels) {
  if (!operands.op->product) return "";
  const ops::PackedMatrix& weights = operands.matrices->first();
  const bool rows = operands.rows < ops::kTileRows;
  return attn::bounding_rate(kernels.name, weights.is_fp8() && rows ? Dtype::f32 : weights.dtype());
}

Json describe(const Operands& o, std::string_view dtype, const OpsContender& c, const OpsContender* ref,
              const Run& run) {
  const double seconds = summarise(c.seconds).median;
  const double error_max = o.op->error_max(o, c.matmul->kernels());
  Json out = Json::object({{"type", "point"}, {"op", o.op->name}, {"dtype", dtype}, {"kernels", c.kernels}});
  out.set("rows", o.rows).set("inputs", o.inputs).set("outputs", o.outputs).set("repeats", c.seconds.size());
  out.set("median_s", seconds).set("best_s", *std::min_element(c.seconds.begin(), c.seconds.end()));
  if (o.op->product) {
    const std::string_view instruction = bounding_rate(o, c.matmul->kernels());
    const double own = run.peak.rate(instruction);
    out.set("matrices", o.matrices->size()).set("flop", o.flop()).set("flop_per_s", o.flop() / seconds);
    out.set("instruction", instruction).set("peak_share", own > 0 ? o.flop() / seconds / own : 0.0);
  }
  if (const double bytes = o.bytes(), limit = run.peak.read_bytes_per_s; bytes > 0) {
    out.set("bytes", bytes).set("bytes_per_s", bytes / seconds);
    out.set("read_share", limit > 0 ? bytes / seconds / limit : 0.0);
  }
  out.set("error", c.error).set("error_max", error_max);
  if (ref != nullptr) out.set("speedup", summarise(ref->seconds).median / seconds);
  return out;
}

std::vector<std::string> ops_cells(const Json& p) {
  const auto text = [&](const char* key) { return std::string(p[key].as_string()); };
  const auto some = [&](const char* key, double scale, int decimals) {
    return p.find(key) == nullptr ? std::string("-") : fixed(p[key].as_double() * scale, decimals);
  };
  char error[32];
  std::snprintf(error, sizeof error, "%.1e", p["error"].as_double());
  return {text("op") + " " + text("dtype"),
          p["rows"].dump(),
          p["inputs"].dump() + "x" + p["outputs"].dump(),
          text("kernels"),
          some("median_s", 1e6, 2),
          some("flop_per_s", 1e-9, 1),
          some("peak_share", 100, 0),
          some("bytes_per_s", 1e-9, 1),
          some("read_share", 100, 0),
          some("speedup", 1, 1),
          error};
}

/// All contenders on one operator and shape: checked, then by turns. ref computes one tile of a prefill, and its time
/// is told for all: each of its rows costs the same, and the rest would take longer than everything else together.
Result<void> measure(Run& run, const Operator& op, std::string_view dtype, size_t rows, Size size,
                     WalkedMatrices* matrices) {
  const size_t inputs = op.inputs(size.inputs, size.outputs), outputs = op.outputs(size.inputs, size.outputs);
  const size_t ref_rows = op.product ? std::min(rows, ops::kTileRows) : rows;
  const uint64_t seed = run.args.count(flags::kSeed);
  Operands operands(op, rows, inputs, outputs, matrices, run.parallel, seed);
  Operands ref_operands(op, ref_rows, inputs, outputs, matrices, run.parallel, seed);
  const OpsContender* ref = nullptr;
  for (OpsContender& c : run.contenders)
    if (c.kernels == ops::variants()[0]->name) ref = &c;
  for (OpsContender& c : run.contenders) {
    Operands& own = &c == ref ? ref_operands : operands;
    const TimePoint began = SystemClock::instance().now();
    c.error = own.check(*c.matmul);  // and scratch grows, code is read
    const double passed = to_seconds(SystemClock::instance().now() - began);
    c.seconds = {passed * static_cast<double>(rows) / static_cast<double>(own.rows)};
    c.slow = passed > kSlowCallSeconds;
    if (!c.slow) c.seconds.clear();
  }
  for (uint64_t turn = 0; turn < run.args.count(kRepeats); ++turn)
    for (OpsContender& c : run.contenders) {
      Operands& own = &c == ref ? ref_operands : operands;
      if (c.slow) continue;
      c.seconds.push_back(take_turn(own, *c.matmul) * static_cast<double>(rows) / static_cast<double>(own.rows));
    }
  for (const OpsContender& c : run.contenders) {
    Json row = describe(operands, dtype, c, ref, run);
    if (c.error > row["error_max"].as_double()) ++run.wrong;
    std::vector<std::string> text = ops_cells(row);
    MC_CHECK(run.rows.add(std::move(row), std::move(text)));
  }
  return {};
}

Result<void> check_room(std::string_view dtype, Size size, size_t rows) {
  const size_t free = mem::available_bytes();
  // One row has at most: gate, up, their product, and both again in the layout of the kernels.
  const size_t needed = WalkedMatrices::bytes(dtype, size.inputs, size.outputs) +
                        rows * (size.inputs + 3 * size.outputs) * 2 * sizeof(float);
  if (needed <= free / 10 * 9) return {};
  return user_error(err::kNotEnoughMemory,
                    std::to_string(size.inputs) + "x" + std::to_string(size.outputs) + " with " + std::to_string(rows) +
                        " rows needs " + human_bytes(needed) + "; " + human_bytes(free) + " are free",
                    "--size", "ask for smaller matrices or fewer rows");
}

/// Operators asked for that take some of the rows.
Result<std::vector<const Operator*>> read_operators(const cli::Args& args, const std::vector<uint64_t>& rows) {
  std::vector<std::string> known;
  for (const Operator& op : operators()) known.emplace_back(op.name);
  MC_TRY(names, read_names(kOps, args.list(kOps), known));
  for (const uint64_t count : rows)
    if (count < 1 || count > kSideMax || (count > ops::kTileRows && count % ops::kTileRows != 0))
      return out_of_range(kOpsRows, std::to_string(count), "1 to 64, or a multiple of 64 up to 1048576");
  std::vector<const Operator*> chosen;
  for (const Operator& op : operators())
    if (has(names, op.name) && std::any_of(rows.begin(), rows.end(), op.takes)) chosen.push_back(&op);
  if (chosen.empty())
    return user_error(err::kBadValue, "prefill takes 64 rows or multiples of it, decode what is less", "--rows");
  return chosen;
}

/// Every operator chosen on one size; matrices are made once for all rows.
Result<void> measure_size(Run& run, Size size, const std::vector<const Operator*>& chosen,
                          const std::vector<std::string>& dtypes) {
  const auto walk = [&](bool product, std::string_view dtype, WalkedMatrices* matrices) -> Result<void> {
    for (const Operator* op : chosen)
      for (const uint64_t rows : run.args.sweep(kOpsRows))
        if (op->product == product && op->takes(rows)) MC_CHECK(measure(run, *op, dtype, rows, size, matrices));
    return {};
  };
  for (const std::string& dtype : dtypes) {
    if (std::none_of(chosen.begin(), chosen.end(), [](const Operator* op) { return op->product; })) break;
    MC_TRY(matrices,
           WalkedMatrices::open(dtype, size.inputs, size.outputs, run.parallel, run.args.count(flags::kSeed)));
    for (OpsContender& c : run.contenders) MC_CHECK(c.matmul->prepare(matrices.first()));
    MC_CHECK(walk(true, dtype, &matrices));
  }
  return walk(false, "f32", nullptr);
}

}  // namespace

const cli::FlagList kOpsFlags = kOpsFlagTable;

Result<int> measure_operators(const cli::Args& args) {
  const std::vector<uint64_t> rows = args.sweep(kOpsRows);
  MC_TRY(chosen, read_operators(args, rows));
  MC_TRY(dtypes, read_names(kOpsDtypes, args.list(kOpsDtypes), {weight_dtypes().begin(), weight_dtypes().end()}));
  MC_TRY(sizes, read_sizes(args));
  for (const Size size : sizes)
    for (const std::string& dtype : dtypes)
      MC_CHECK(check_room(dtype, size, *std::max_element(rows.begin(), rows.end())));
  MC_TRY(table, Rows::open(args, "mc.bench.ops.v1",
                           Table({"op", "rows", "KxN", "kernels", "us", "GFLOP/s", "% of peak", "GB/s", "% of read",
                                  "x ref", "error"})));
  Parallel parallel(host::thread_count(args));
  MC_TRY(contenders, open_contenders(args, parallel));
  Run run{args, parallel, attn::measure_peak(parallel), std::move(contenders), *table};
  std::string line =
      std::to_string(run.peak.threads) + " threads; " + fixed(run.peak.read_bytes_per_s / 1e9, 1) + " GB/s read";
  Json rates = Json::object({});
  for (const attn::PeakRate& rate : run.peak.rates) {
    line += ", " + rate.name + " " + fixed(rate.flop_per_s / 1e9, 1) + " GFLOP/s";
    rates.set(rate.name, rate.flop_per_s);
  }
  MC_CHECK(table->text(line + "\n"));
  table->fact("threads", run.peak.threads);
  table->fact("peak_read_bytes_per_s", run.peak.read_bytes_per_s);
  table->fact("peak_rates", std::move(rates));
  for (const Operator* op : chosen)
    for (const std::string& dtype : dtypes)
      for (const OpsContender& c : run.contenders)
        table->expect({std::string(op->name) + " " + dtype, "", "", c.kernels});
  for (const Size size : sizes) MC_CHECK(measure_size(run, size, chosen, dtypes));
  if (run.wrong > 0) note(args, std::to_string(run.wrong) + " points have an error beyond what their sums may have");
  table->fact("wrong", run.wrong);
  MC_CHECK(table->finish());
  return run.wrong > 0 ? kExitFailed : kExitOk;
}

}  // namespace mc::bench
