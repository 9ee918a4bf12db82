// `mc-bench gpu`: the GPU kernels against the reference of lib/attn. In the emulator (lib/gpu/emu) every case runs
// under several seeds and the three scheduling policies, and each run checks the chip's ordering rules. On a GPU a case
// runs once. With --speed the kernels are timed instead (gpu_speed.h).

#include <algorithm>
#include <map>
#include <optional>
#include <thread>
#include <tuple>

#include "attn_case.h"
#include "base/assert.h"
#include "base/errors.h"
#include "base/rng.h"
#include "base/units.h"
#include "gpu/devices.h"
#include "gpu/emulated.h"
#include "gpu/matmul.h"
#include "gpu_case.h"
#include "gpu_experts.h"
#include "gpu_flags.h"
#include "gpu_model.h"
#include "gpu_mutants.h"
#include "gpu_products.h"
#include "gpu_speed.h"
#include "gpu_steps.h"
#include "gpu_trials.h"
#include "host/engine.h"
#include "print.h"
#include "product/flags.h"
#include "rows.h"
#include "verbs.h"

namespace mc::bench {
namespace {

struct GpuPoint {
  GpuShape shape;
  std::string plan, kernel;
  uint64_t number = 0;  // for policies_of()
};

Json describe_gpu(const GpuPoint& point) {
  const GpuShape& s = point.shape;
  Json out = Json::object({{"type", "point"}, {"kernel", point.kernel}});
  out.set("attention", point.plan).set("tokens", s.tokens).set("q_heads", s.q_heads);
  out.set("kv_heads", s.layout.kv_heads).set("head_dim", s.layout.head_dim);
  if (s.layout.has_scales()) out.set("dtype", to_string(s.layout.dtype));
  return std::move(out.set("splits", s.splits).set("values", static_cast<int>(s.values)).set("seed", s.seed));
}

constexpr uint64_t kPolicies = gpu::emu::kPolicies;
/// The number of the first case of a kernel and head dimension: a multiple of kPolicies, so that three cases meet all
/// policies. It depends on the case, so that several calls with one case each meet several policies.
uint64_t first_number(const GpuPoint& point) {
  return kPolicies * (fnv1a(describe_gpu(point).dump()) % kPolicies);
}

/// All pairs of the sweeps over splits and over types of K and V.
std::vector<std::pair<uint64_t, Dtype>> splits_and_dtypes(const cli::Args& args) {
  std::vector<std::pair<uint64_t, Dtype>> out;
  for (const uint64_t splits : args.sweep(kGpuSplits))
    for (const std::string& name : args.list(kGpuDtypes)) out.emplace_back(splits, *dtype_from(name));
  return out;
}

Result<std::vector<GpuPoint>> read_points(const cli::Args& args) {
  std::vector<GpuPoint> points;
  const auto block = static_cast<uint32_t>(args.count(flags::kBlockTokens));
  MC_TRY(plans, read_plans(args.list(kGpuPlans), block));
  Rng rng(args.count(flags::kSeed));
  std::map<std::pair<std::string, uint64_t>, uint64_t> next;  // numbers, by kernel and head dimension
  for (const std::string& wanted : args.list(kGpuKernels)) {
    const auto kernel = std::find_if(std::begin(kGpuKernelNames), std::end(kGpuKernelNames),
                                     [&](const auto& row) { return row.first == wanted; });
    MC_ASSERT(kernel != std::end(kGpuKernelNames));  // --kernel has the table
    for (const auto& [name, mode] : plans)
      for (const uint64_t dim : args.sweep(kGpuDims))
        for (const auto& [splits, dtype] : splits_and_dtypes(args))
          for (const uint64_t tokens : args.sweep(kGpuTokens)) {
            const uint64_t most = args.on(kGpuSpeed) ? uint64_t{1} << 20 : 65536;
            if (tokens < 1 || tokens > most) return out_of_range(kGpuTokens, tokens, 1, most);
            if (splits < (args.on(kGpuSpeed) ? 0 : 1) || splits > 64) return out_of_range(kGpuSplits, splits, 1, 64);
            GpuShape shape{.kernel = kernel->second, .tokens = static_cast<int64_t>(tokens), .mode = mode};
            shape.layout = {.layers = 1,
                            .kv_heads = 1 + static_cast<uint32_t>(rng.below(2)),
                            .head_dim = static_cast<uint32_t>(dim),
                            .block_tokens = block,
                            .dtype = dtype};
            constexpr int32_t kGroups[] = {1, 2, 4, 7};
            shape.q_heads = static_cast<int32_t>(shape.layout.kv_heads) * kGroups[rng.below(4)];
            if (args.on(kGpuSpeed)) {
              MC_TRY(heads, read_heads(args.list(kGpuHeads).front()));
              shape.coherent = args.text(kGpuRouting) == "coherent";
              shape.q_heads = heads.first;
              shape.layout.kv_heads = heads.second;
            }
            shape.splits = static_cast<int32_t>(splits);
            shape.wave = args.bytes(kGpuWave);
            shape.values = static_cast<Values>(std::max<int64_t>(rng.between(-3, 3), 0));
            shape.seed = rng.next();
            shape.exact_choice = gpu::parse_device(args.text(kGpuDevice)).value().kind == gpu::DeviceKind::emu;
            points.push_back({shape, name, wanted});
            points.back().number = next.try_emplace({wanted, dim}, first_number(points.back())).first->second++;
          }
  }
  return points;
}

std::vector<std::string> gpu_cells(const Json& p) {
  const auto text = [&](const char* key) { return std::string(p[key].as_string()); };
  const auto some = [&](const char* key, int decimals) {
    return p.find(key) == nullptr ? std::string("-") : fixed(p[key].as_double(), decimals);
  };
  return {text("kernel") + " " + p["tokens"].dump(),
          text("attention"),
          p["q_heads"].dump() + "/" + p["kv_heads"].dump() + " d" + p["head_dim"].dump() + " x" + p["splits"].dump(),
          p.find("runs") == nullptr ? "-" : p["runs"].dump(),
          p.find("failure") != nullptr ? "FAILED" : some("error_share", 3),
          p.find("bank_conflicts") == nullptr ? "-" : p["bank_conflicts"].dump(),
          p.find("instructions") == nullptr ? "-" : thousands(static_cast<uint64_t>(p["instructions"].as_int())),
          some("seconds", 2)};
}

/// The error of a case, with the values that repeat it. An unsupported shape is the caller's.
Error unsound(const Json& row, Error error) {
  if (error.code == Code::unsupported) return as_user_error(err::kBadValue, std::move(error));
  error.next = "this is a fault of the programs: report it with these lines, which repeat it";
  return as_user_error(err::kWrongAnswer, within(row.dump(), std::move(error)));
}

/// The emulator, as a device and as a driver whose seeds and mutations are set.
struct Emulation {
  std::shared_ptr<gpu::EmulatedDriver> driver;
  std::unique_ptr<gpu::Device> device;

  static Result<Emulation> open() {
    Emulation out{std::make_shared<gpu::EmulatedDriver>(), nullptr};
    MC_TRY(device, gpu::Device::open(out.driver, 0));
    out.device = std::move(device);
    return out;
  }
};

/// The runs of one case, and the largest error among them.
struct GpuRuns {
  double worst = 0;
  uint64_t runs = 0;
};

/// The policies of the case, or mutant, of that number: all, or one by turns. The turn also moves on every third
/// number, so that a list of three lengths meets every policy with each of them.
std::vector<gpu::emu::Policy> policies_of(uint64_t number, const cli::Args& args) {
  if (args.count(kGpuSchedules) == 0) return {static_cast<gpu::emu::Policy>((number + number / kPolicies) % kPolicies)};
  std::vector<gpu::emu::Policy> out;
  for (uint64_t policy = 0; policy < kPolicies; ++policy) out.push_back(static_cast<gpu::emu::Policy>(policy));
  return out;
}

/// All schedules of one case. The error is the first broken rule or wrong result, with what repeats it.
Result<GpuRuns> run_schedules(GpuCase& made, uint64_t number, gpu::EmulatedGpu& emulated, const cli::Args& args) {
  GpuRuns out;
  for (uint64_t schedule = 0; schedule < std::max(args.count(kGpuSchedules), uint64_t{1}); ++schedule)
    for (const gpu::emu::Policy policy : policies_of(number, args)) {
      emulated.set_options(
          {.seed = args.count(flags::kSeed) + schedule, .policy = policy, .checks = !args.on(kGpuChecks)});
      MC_TRY(share, made.run());
      out.worst = std::max(out.worst, share);
      ++out.runs;
    }
  return out;
}

/// Runs a case, on `device` or, without one, in an emulator of its own, and adds the figures to `row`.
Result<void> run_case(const GpuPoint& point, const cli::Args& args, gpu::Device* device, Parallel& parallel,
                      Json& row) {
  GpuRuns runs;
  if (device == nullptr) {
    MC_TRY(emulation, Emulation::open());
    MC_TRY(made, GpuCase::open(point.shape, parallel, *emulation.device));
    MC_TRY(done, run_schedules(*made, point.number, emulation.driver->gpu(), args));
    runs = done;
    const gpu::emu::Counters& counters = emulation.driver->gpu().counters();
    row.set("instructions", counters.instructions);
    row.set("matrix_products", counters.matrix_products).set("multiply_adds", counters.multiply_adds);
    row.set("copied_bytes", counters.async_bytes).set("stored_bytes", counters.stored_bytes);
    row.set("bank_conflicts", counters.bank_conflicts);
  } else {
    MC_TRY(made, GpuCase::open(point.shape, parallel, *device));
    MC_TRY(share, made->run());
    runs = {share, 1};
    row.set("ties", made->ties());
  }
  row.set("runs", runs.runs).set("error_share", runs.worst);
  if (const auto policies = policies_of(point.number, args); device == nullptr && policies.size() == 1)
    row.set("policy", std::string(to_string(policies.front())));
  if (point.shape.bits_of()) row.set("bits_of", point.shape.bits_name());
  if (runs.worst <= 1) return {};
  return Error{Code::corrupt, "the result has an error of " + fixed(runs.worst, 2) + " times its bound"};
}

/// Adds the row of a case, also of one that failed. The error is the case's.
Result<void> run_point(const GpuPoint& point, const cli::Args& args, gpu::Device* device, Parallel& parallel,
                       Rows& rows) {
  const TimePoint began = steady_now();
  Json row = describe_gpu(point);
  Result<void> done = run_case(point, args, device, parallel, row);
  row.set("seconds", to_seconds(steady_now() - began));
  if (!done) {
    done = unsound(row, std::move(done).error());
    row.set("failure", done.error().what);
  }
  std::vector<std::string> text = gpu_cells(row);
  MC_CHECK(rows.add(std::move(row), std::move(text)));
  return done;
}

/// The case that mutants of one kernel run on.
Result<std::unique_ptr<GpuCase>> open_mutant_case(gpu::AttentionKernel kernel, const GpuRun& run, Parallel& parallel,
                                                  gpu::Device& device) {
  MC_TRY(plans, read_plans({std::string(run.attention)}, 64));
  GpuShape shape{.kernel = kernel, .tokens = run.tokens, .q_heads = 2, .mode = plans.front().second, .seed = 1};
  shape.layout = {.layers = 1, .kv_heads = 1, .head_dim = 64, .block_tokens = 64, .dtype = run.dtype};
  shape.splits = run.splits;
  return GpuCase::open(shape, parallel, device);
}

/// The device, the case and the table of the runs of a mutant.
struct MutantRuns {
  gpu::EmulatedGpu& emulated;
  GpuCase& made;
  const cli::Args& args;
  Rows& rows;
  using Sites = std::map<std::string_view, std::vector<gpu::emu::Site>>;
  Sites& sites;    // by the kernel's name
  uint64_t& next;  // number of the next mutant

  gpu::emu::Options options() const {
    return {.seed = args.count(flags::kSeed), .checks = !args.on(kGpuChecks), .steps_max = 300'000'000};
  }
  /// Runs under one schedule of each policy, or of its own. True when each run has one of the findings; empty: any.
  Result<bool> run(const std::string& name, std::string_view entry, gpu::emu::Options wanted, Findings expected);
  Finding finding_of(const Result<double>& share) const {
    if (share) return *share > 1 ? Finding::result() : Finding::none();
    if (made.wrong() == GpuCase::Wrong::choice) return Finding::result();
    if (made.wrong() == GpuCase::Wrong::bits) return Finding::bits();
    const auto rule = emulated.broken_rule();
    return rule ? Finding(*rule) : Finding::none();
  }
};

Result<bool> MutantRuns::run(const std::string& name, std::string_view entry, gpu::emu::Options wanted,
                             Findings expected) {
  emulated.set_mutated(entry);
  int caught = 0;
  Findings reported;
  const std::vector<gpu::emu::Policy> policies = policies_of(next++, args);
  const int of = static_cast<int>(policies.size());
  for (const gpu::emu::Policy policy : policies) {
    wanted.policy = policy;
    emulated.set_options(wanted);
    const Finding finding = finding_of(made.run());
    caught += (expected.empty() ? finding != Finding::none() : expected.has(finding)) ? 1 : 0;
    reported.add(finding);
  }
  Json row = Json::object({{"type", "mutant"}, {"mutant", name}});
  row.set("kernel", std::string(entry)).set("reported", reported.text()).set("caught", caught).set("of", of);
  MC_CHECK(rows.add(row, {name, reported.text(), std::to_string(caught) + " of " + std::to_string(of)}));
  return caught == of;
}

/// The places that a sound run of the kernel passes.
Result<std::vector<gpu::emu::Site>> sites_of(MutantRuns& runs, std::string_view entry) {
  std::vector<gpu::emu::Site>& sites = runs.sites[entry];
  if (!sites.empty()) return sites;
  gpu::emu::Options options = runs.options();
  options.sites = &sites;
  runs.emulated.set_mutated(entry);
  runs.emulated.set_options(options);
  MC_TRY(share, runs.made.run());
  if (share > 1)
    return Error{Code::corrupt,
                 std::string(entry) + ": the sound kernel's result is wrong, so no mutant can be judged"};
  std::sort(sites.begin(), sites.end());
  sites.erase(std::unique(sites.begin(), sites.end()), sites.end());
  return sites;
}

/// The cases that mutants run on: those of one kernel and one shape share a case and its expected result.
class MutantCases {
 public:
  MutantCases(const cli::Args& args, Parallel& parallel, Rows& rows) : args_(args), parallel_(parallel), rows_(rows) {}

  Result<MutantRuns> of(gpu::AttentionKernel kernel, const GpuRun& run) {
    const std::tuple key(kernel, run.attention, run.splits, run.tokens, run.dtype);
    auto found = cases_.find(key);
    if (found == cases_.end()) {
      MC_TRY(emulation, Emulation::open());
      MC_TRY(made, open_mutant_case(kernel, run, parallel_, *emulation.device));
      found = cases_.emplace(key, Case{std::move(emulation), std::move(made), {}}).first;
    }
    Case& one = found->second;
    return MutantRuns{one.emulation.driver->gpu(), *one.made, args_, rows_, one.sites, next_};
  }

 private:
  struct Case {
    Emulation emulation;
    std::unique_ptr<GpuCase> made;
    MutantRuns::Sites sites;
  };
  const cli::Args& args_;
  Parallel& parallel_;
  Rows& rows_;
  std::map<std::tuple<gpu::AttentionKernel, std::string_view, int, int, Dtype>, Case> cases_;
  uint64_t next_ = 0;
};

/// One mutant of the table.
Result<bool> run_mutant(const GpuMutant& mutant, MutantCases& cases) {
  MC_TRY(runs, cases.of(mutant.kernel, mutant.run));
  gpu::emu::Options options = runs.options();
  options.fault = static_cast<uint8_t>(mutant.fault);
  gpu::emu::Mutation mutation;
  if (mutant.fault == gpu::Fault::none) {
    MC_TRY(sites, sites_of(runs, mutant.entry));
    MC_TRY(found, mutate(mutant, sites));
    mutation = found;
    options.mutation = &mutation;
  }
  return runs.run(std::string(mutant.name), mutant.entry, options, mutant.rules);
}

/// Leaves out each call of an instruction that does nothing but order others, one at a time. The names of those whose
/// absence nothing reported.
Result<std::string> sweep_mutants(gpu::AttentionKernel kernel, std::string_view entry, const GpuRun& run,
                                  MutantCases& cases) {
  MC_TRY(runs, cases.of(kernel, run));
  MC_TRY(sites, sites_of(runs, entry));
  std::string missed;
  for (const gpu::emu::Site& site : sites) {
    if (!is_synchronisation(site.instruction)) continue;
    const gpu::emu::Mutation mutation{.site = site};
    gpu::emu::Options options = runs.options();
    options.mutation = &mutation;
    const std::string name = std::string(entry) + " without " + std::string(to_string(site.instruction)) + " at " +
                             site.file + ":" + std::to_string(site.line);
    MC_TRY(caught, runs.run(name, entry, options, {}));
    if (!caught) missed += "; " + name;
  }
  return missed;
}

ExpertsOptions experts_options(const cli::Args& args) {
  return {.seed = args.count(flags::kSeed),
          .schedules = std::max(args.count(kGpuSchedules), uint64_t{1}),
          .checks = !args.on(kGpuChecks)};
}

Result<int> run_mutants(const cli::Args& args) {
  const auto is_chosen = [&](gpu::AttentionKernel kernel) {
    const std::vector<std::string> names = args.list(kGpuKernels);
    return std::any_of(std::begin(kGpuKernelNames), std::end(kGpuKernelNames), [&](const auto& row) {
      return row.second == kernel && std::find(names.begin(), names.end(), row.first) != names.end();
    });
  };
  if (std::ranges::none_of(gpu_sweeps(), [&](const GpuSweep& sweep) { return is_chosen(sweep.kernel); }))
    return bad_value(kGpuKernels, "mixed has the kernels of the others, and no mutants of its own");
  MC_TRY(rows, Rows::open(args, "mc.bench.gpu.v1", Table({"mutant", "reported", "caught"})));
  Parallel parallel(1);
  MutantCases cases(args, parallel, *rows);
  bool all_chosen = true;
  std::string missed;
  for (const GpuMutant& mutant : gpu_mutants())
    if (is_chosen(mutant.kernel)) rows->expect({std::string(mutant.name), "in-flight,race", "3 of 3"});
  for (const GpuMutant& mutant : gpu_mutants()) {
    if (!is_chosen(mutant.kernel)) continue;
    MC_TRY(caught, run_mutant(mutant, cases));
    if (!caught) missed += "; " + std::string(mutant.name);
  }
  for (const GpuSweep& sweep : gpu_sweeps()) {
    all_chosen = all_chosen && is_chosen(sweep.kernel);
    if (!is_chosen(sweep.kernel)) continue;
    MC_TRY(unseen, sweep_mutants(sweep.kernel, sweep.entry, sweep.run, cases));
    missed += unseen;
  }
  if (all_chosen) {
    MC_TRY(unseen, mutate_experts(experts_options(args), *rows));
    MC_TRY(unseen_trials, mutate_trials(args.count(flags::kSeed), *rows));
    missed += unseen + unseen_trials;
  }
  MC_CHECK(rows->finish());
  if (!missed.empty())
    return user_error(err::kWrongAnswer, "the emulator missed mutants, or named another rule: " + missed.substr(2), {},
                      "correct the rule of lib/gpu/emu, or the mutant");
  return 0;
}

}  // namespace

const cli::FlagList kGpuFlags = kGpuFlagTable;

namespace {

/// The peak of bf16 matrix products in operations a second; 0 when the device has no clock.
double matrix_peak(const gpu::Device& device) {
  const double per_clock = device.capability() == 90 ? 4096 : 2048;  // of one multiprocessor
  return per_clock * device.facts().processors * device.facts().clock_khz * 1e3;
}

Json describe_speed(const GpuPoint& point, uint64_t batch) {
  Json out = describe_gpu(point);
  out.set("routing", point.shape.coherent ? "coherent" : "random");
  return std::move(out.set("type", "speed").set("batch", batch));
}

std::vector<std::string> speed_cells(const Json& p) {
  const auto some = [&](const char* key, double scale, int decimals) {
    return p.find(key) == nullptr ? std::string("-") : fixed(p[key].as_double() * scale, decimals);
  };
  const bool is_coherent = p["routing"].as_string() == "coherent";
  return {std::string(p["kernel"].as_string()) + " " + p["tokens"].dump() + " x " + p["batch"].dump(),
          std::string(p["attention"].as_string()) + (is_coherent ? ", coherent" : ""),
          p["q_heads"].dump() + "/" + p["kv_heads"].dump() + " d" + p["head_dim"].dump(),
          some("seconds", 1e3, 3),
          some("bytes_per_second", 1e-9, 0),
          some("flops", 1e-12, 1),
          some("peak_share", 100, 1)};
}

/// Times one point, or runs it once where time means nothing.
Result<Json> time_point(const GpuPoint& point, uint64_t batch, double copies, Parallel& parallel, gpu::Device& device) {
  Json row = describe_speed(point, batch);
  MC_TRY(made, GpuSpeed::open(point.shape, static_cast<int32_t>(batch), parallel, device));
  if (point.shape.decode() && point.shape.mode.kind == attn::ModeKind::moba && point.shape.mode.top_k > 1) {
    MC_TRY(blocks, made->blocks_of_group());
    row.set("group_blocks", blocks);
  }
  if (copies == 0) {
    MC_CHECK(made->run());
    return row;
  }
  MC_TRY(seconds, made->time());
  const double bytes = made->bytes() / seconds, flops = made->flops() / seconds;
  row.set("seconds", seconds).set("bytes_per_second", bytes).set("flops", flops);
  // Decode is bound by memory, prefill by products.
  const double peak = point.shape.decode() ? copies : matrix_peak(device);
  if (peak > 0) row.set("peak_share", (point.shape.decode() ? bytes : flops) / peak);
  return row;
}

Result<int> measure_speed(const cli::Args& args) {
  MC_TRY(rows, Rows::open(args, "mc.bench.gpu.v1",
                          Table({"case", "attention", "heads", "ms", "GB/s", "TFLOP/s", "% of peak"})));
  Parallel parallel(1);
  MC_TRY(points, read_points(args));
  MC_TRY(choice, gpu::parse_device(args.text(kGpuDevice)));
  MC_TRY(device, gpu::open_device(choice));
  double copies = 0;
  if (choice.kind == gpu::DeviceKind::cuda) {
    MC_TRY(rate, copy_rate(*device));
    copies = rate;
  }
  rows->fact("copy_bytes_per_second", copies);
  rows->fact("matrix_peak", matrix_peak(*device));
  const std::vector<uint64_t> batches = args.sweep(kGpuBatch);
  for (const GpuPoint& point : points)
    for (const uint64_t batch : batches) rows->expect(speed_cells(describe_speed(point, batch)));
  for (const GpuPoint& point : points)
    for (const uint64_t batch : batches) {
      if (batch < 1 || batch > 1024) return out_of_range(kGpuBatch, batch, 1, 1024);
      MC_TRY(row, time_point(point, batch, copies, parallel, *device));
      std::vector<std::string> cells = speed_cells(row);
      MC_CHECK(rows->add(std::move(row), std::move(cells)));
    }
  MC_CHECK(rows->finish());
  return 0;
}

/// The device of --device; null: the emulator.
Result<std::unique_ptr<gpu::Device>> open_gpu(const cli::Args& args) {
  MC_TRY(choice, gpu::parse_device(args.text(kGpuDevice)));
  if (choice.kind != gpu::DeviceKind::cuda) return std::unique_ptr<gpu::Device>();
  return gpu::open_device(choice);
}

Result<int> run_trials(const cli::Args& args) {
  MC_TRY(rows, Rows::open(args, "mc.bench.gpu.v1", trial_table()));
  MC_TRY(device, open_gpu(args));
  MC_CHECK(try_instructions(device.get(), args.count(flags::kSeed), *rows));
  return 0;
}

Result<int> run_model(const cli::Args& args, std::span<const uint64_t> batches) {
  MC_TRY(rows, Rows::open(args, "mc.bench.gpu.v1", model_speed_table()));
  MC_TRY(choice, gpu::parse_device(args.text(kGpuDevice)));
  MC_TRY(device, gpu::open_device(choice, args.count(flags::kSeed)));
  MC_CHECK(device->load_kernels());
  MC_CHECK(device->choose_matmul(gpu::MatmulChoice::automatic));
  ModelSpeedOptions options{.shape = args.text(kGpuShape),
                            .batches = batches,
                            .is_timed = choice.kind == gpu::DeviceKind::cuda,
                            .matrix_peak = matrix_peak(*device)};
  if (options.is_timed) {
    MC_TRY(rate, copy_rate(*device));
    options.copy_rate = rate;
  }
  rows->fact("matrix_products", gpu::matmul_text(*device));
  rows->fact("copy_bytes_per_second", options.copy_rate);
  rows->fact("matrix_peak", options.matrix_peak);
  const auto done = time_model(*device, options, *rows);
  MC_CHECK(rows->finish());
  MC_CHECK(done);
  return 0;
}

Result<int> run_steps(const cli::Args& args) {
  const std::vector<uint64_t> batches = args.sweep(kGpuBatch);
  for (const uint64_t batch : batches)
    if (batch < 1 || batch > 1024) return out_of_range(kGpuBatch, batch, 1, 1024);
  if (args.text(kGpuShape) != "mc-tiny") return run_model(args, batches);
  MC_TRY(rows, Rows::open(args, "mc.bench.gpu.v1", steps_table()));
  MC_TRY(choice, gpu::parse_device(args.text(kGpuDevice)));
  MC_TRY(device, gpu::open_device(choice, args.count(flags::kSeed)));
  MC_CHECK(device->load_kernels());
  const bool is_timed = choice.kind == gpu::DeviceKind::cuda;
  const auto done = time_steps(*device, {.batches = batches, .steps = is_timed ? 200 : 3, .is_timed = is_timed}, *rows);
  MC_CHECK(rows->finish());
  MC_CHECK(done);
  return 0;
}

Result<int> run_products(const cli::Args& args) {
  MC_TRY(rows, Rows::open(args, "mc.bench.gpu.v1", products_table()));
  MC_TRY(choice, gpu::parse_device(args.text(kGpuDevice)));
  MC_TRY(device, gpu::open_device(choice, args.count(flags::kSeed)));
  MC_CHECK(device->load_kernels());
  auto chosen = device->choose_matmul(gpu::MatmulChoice::cublaslt);
  rows->fact("cublaslt", chosen ? gpu::matmul_text(*device) : "not used: " + chosen.error().what);
  const auto done = check_products(*device,
                                   {.seed = args.count(flags::kSeed),
                                    .is_timed = choice.kind == gpu::DeviceKind::cuda,
                                    .peak = matrix_peak(*device)},
                                   *rows);
  MC_CHECK(rows->finish());
  MC_CHECK(done);
  return 0;
}

Result<int> run_experts(const cli::Args& args) {
  MC_TRY(rows, Rows::open(args, "mc.bench.gpu.v1", experts_table()));
  MC_TRY(device, open_gpu(args));
  const auto done = check_experts(device.get(), experts_options(args), *rows);
  MC_CHECK(rows->finish());
  MC_CHECK(done);
  return 0;
}

}  // namespace

Result<int> check_gpu(const cli::Args& args) {
  if (args.on(kGpuMutants)) return run_mutants(args);
  if (args.on(kGpuSpeed)) return measure_speed(args);
  if (args.on(kGpuInstructions)) return run_trials(args);
  if (args.on(kGpuExperts)) return run_experts(args);
  if (args.on(kGpuProducts)) return run_products(args);
  if (args.on(kGpuSteps)) return run_steps(args);
  MC_TRY(rows, Rows::open(args, "mc.bench.gpu.v1",
                          Table({"case", "attention", "heads", "runs", "error", "conflicts", "instructions", "s"})));
  MC_TRY(points, read_points(args));
  MC_TRY(device, open_gpu(args));
  Parallel parallel(device ? std::thread::hardware_concurrency() : 1);
  for (const GpuPoint& point : points) rows->expect(gpu_cells(describe_gpu(point)));
  std::optional<Error> first;
  for (const GpuPoint& point : points) {
    auto done = run_point(point, args, device.get(), parallel, *rows);
    if (!done && !first) first = std::move(done).error();
    // A GPU goes on after a wrong result, but not after a fault; the emulator's first report is the one to read.
    if (first && (!device || device->failure())) break;
  }
  MC_CHECK(rows->finish());
  if (first) return *std::move(first);
  return 0;
}

}  // namespace mc::bench
