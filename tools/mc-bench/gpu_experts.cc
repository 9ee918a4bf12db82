#include "gpu_experts.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/dtype.h"
#include "base/errors.h"
#include "base/rng.h"
#include "emulator.h"
#include "gpu/emulated.h"
#include "gpu/mixture.h"
#include "gpu_findings.h"
#include "gpu_mutants.h"

namespace mc::bench {
namespace {

using gpu::Fault;
using gpu::emu::Instruction;

/// The scores that a case draws.
enum class ScoreKind : uint8_t {
  drawn,
  tied,        // the first three experts have equal scores
  one_expert,  // expert 1 has the largest score for every row
};

struct ExpertsCase {
  std::string_view name;
  size_t rows;
  gpu::MixtureShape shape;
  ScoreKind choice = ScoreKind::drawn;
};

// Widths of 136 = 2 * 64 + 8 take three steps of a product, the last one not full.
constexpr ExpertsCase kExpertsCases[] = {
    {"one row", 1, {5, 2, true, 72, 24, 0}},
    {"experts with equal scores", 6, {4, 2, false, 72, 8, 16}, ScoreKind::tied},
    {"all rows to one expert", 19, {3, 1, false, 72, 8, 0}, ScoreKind::one_expert},
    {"every expert for every row", 5, {3, 3, true, 72, 8, 8}},
    {"more experts than lanes, some idle", 3, {40, 4, true, 72, 8, 0}},
    {"more rows than a tile of 64", 70, {2, 2, false, 136, 8, 8}},
    {"tiles of 16 that are not full", 37, {3, 2, true, 136, 16, 0}},
};
/// The cases of mutants, with tiles of 16 and of 64 rows.
constexpr ExpertsCase kMutatedCases[] = {
    {"", 18, {5, 2, true, 136, 8, 8}, ScoreKind::tied},
    {"", 34, {2, 2, false, 136, 8, 0}},
};

/// One mixture: its inputs, and the expected result with its bound.
class MixtureCase {
 public:
  MixtureCase(const ExpertsCase& one, uint64_t seed) : case_(one) { fill(seed); }
  /// Returns x after the mixture was added. Errors are those of the device.
  Result<std::vector<float>> run(gpu::Device& device) const;
  /// The largest error as a share of its bound.
  double share(const std::vector<float>& got) const;

 private:
  size_t hidden() const { return case_.shape.hidden; }
  void fill(uint64_t seed);
  void expect();
  void expect_row(size_t row);
  struct Answer {
    std::vector<double> value, error;  // [hidden]
  };
  Answer ask(const float* in, const std::vector<float>& gate_up, const std::vector<float>& down, size_t expert,
             size_t inner) const;

  ExpertsCase case_;
  std::vector<float> in_, router_, gate_up_, down_, shared_gate_up_, shared_down_, x_;  // all but x_ are bf16 numbers
  std::vector<double> expected_, bound_;
};

/// Inputs and the router have eighths up to 1, so scores are exact in f32 and the choice is the reference's.
void MixtureCase::fill(uint64_t seed) {
  const gpu::MixtureShape& s = case_.shape;
  Rng rng = Rng(seed).fork("experts").fork(case_.name);
  const auto eighths = [&](size_t count) {
    std::vector<float> out(count);
    for (float& one : out) one = static_cast<float>(rng.between(-8, 8)) / 8;
    return out;
  };
  const auto weights = [&](size_t count, size_t columns) {
    std::vector<float> out(count);
    for (float& one : out) one = bf16_to_f32(f32_to_bf16(static_cast<float>(rng.normal() / std::sqrt(columns))));
    return out;
  };
  in_ = eighths(case_.rows * hidden());
  router_ = eighths((s.experts + (s.shared_inner > 0 ? 1 : 0)) * hidden());
  for (size_t i = 0; i < hidden() && case_.choice == ScoreKind::tied; ++i)
    router_[hidden() + i] = router_[2 * hidden() + i] = router_[i];
  for (size_t row = 0; row < case_.rows && case_.choice == ScoreKind::one_expert; ++row) in_[row * hidden()] = 1;
  if (case_.choice == ScoreKind::one_expert)
    for (size_t expert = 0; expert < s.experts; ++expert) router_[expert * hidden()] = expert == 1 ? 64.0f : -64.0f;
  gate_up_ = weights(s.experts * 2 * s.inner * hidden(), hidden());
  down_ = weights(s.experts * hidden() * s.inner, s.inner);
  shared_gate_up_ = weights(2 * s.shared_inner * hidden(), hidden());
  shared_down_ = weights(hidden() * s.shared_inner, std::max<size_t>(s.shared_inner, 1));
  x_.resize(case_.rows * hidden());
  for (float& one : x_) one = static_cast<float>(rng.normal());
  expect();
}

/// down(silu(gate x) * up x) with the bound of its error: `inner` + 2 roundings of f32 sums, and one of bf16.
MixtureCase::Answer MixtureCase::ask(const float* in, const std::vector<float>& gate_up, const std::vector<float>& down,
                                     size_t expert, size_t inner) const {
  const auto product = [](const float* a, const float* b, size_t count) {
    double sum = 0, size = 0;
    for (size_t i = 0; i < count; ++i) {
      sum += double{a[i]} * b[i];
      size += std::abs(double{a[i]} * b[i]);
    }
    return std::pair(sum, static_cast<double>(count + 2) * 0x1p-24 * size);
  };
  std::vector<double> active(inner), active_error(inner);
  for (size_t i = 0; i < inner; ++i) {
    const float* rows = gate_up.data() + expert * 2 * inner * hidden();
    const auto [gate, gate_error] = product(rows + i * hidden(), in, hidden());
    const auto [up, up_error] = product(rows + (inner + i) * hidden(), in, hidden());
    const double soft = gate / (1 + std::exp(-gate));
    active[i] = soft * up;
    // silu rises by at most 1.1, and its own roundings and those of the product are below 2^-20.
    active_error[i] =
        1.1 * gate_error * std::abs(up) + std::abs(soft) * up_error + (0x1p-8 + 0x1p-20) * std::abs(active[i]) + 1e-30;
  }
  Answer out{std::vector<double>(hidden()), std::vector<double>(hidden())};
  for (size_t column = 0; column < hidden(); ++column) {
    const float* row = down.data() + (expert * hidden() + column) * inner;
    for (size_t i = 0; i < inner; ++i) {
      out.value[column] += row[i] * active[i];
      out.error[column] +=
          std::abs(row[i]) * (active_error[i] + static_cast<double>(inner + 2) * 0x1p-24 * std::abs(active[i]));
    }
  }
  return out;
}

void MixtureCase::expect_row(size_t row) {
  const gpu::MixtureShape& s = case_.shape;
  const float* in = in_.data() + row * hidden();
  const auto score = [&](size_t expert) {
    double sum = 0;
    for (size_t i = 0; i < hidden(); ++i) sum += double{in[i]} * router_[expert * hidden() + i];
    return sum;
  };
  std::vector<std::pair<double, size_t>> order;
  for (size_t expert = 0; expert < s.experts; ++expert) order.emplace_back(-score(expert), expert);
  std::sort(order.begin(), order.end());
  const double best = -order[0].first;
  double sum = 0;
  for (size_t i = 0; i < (s.normalise ? s.per_token : s.experts); ++i) sum += std::exp(-order[i].first - best);
  const auto add = [&](const Answer& answer, double share, double share_error) {
    for (size_t column = 0; column < hidden(); ++column) {
      const double part = share * answer.value[column];
      expected_[row * hidden() + column] += part;
      bound_[row * hidden() + column] +=
          share * answer.error[column] + std::abs(part) * (share_error + (s.per_token + 4) * 0x1p-24);
    }
  };
  for (size_t i = 0; i < s.per_token; ++i) {
    const double below = best + order[i].first;  // the exponent is -below: its rounding grows with it
    add(ask(in, gate_up_, down_, order[i].second, s.inner), std::exp(-below) / sum,
        (static_cast<double>(s.experts) + 8 + 4 * below) * 0x1p-22);
  }
  if (s.shared_inner == 0) return;
  const double gate = score(s.experts);
  add(ask(in, shared_gate_up_, shared_down_, 0, s.shared_inner), 1 / (1 + std::exp(-gate)),
      (8 + 4 * std::abs(gate)) * 0x1p-22);
}

void MixtureCase::expect() {
  expected_.assign(x_.begin(), x_.end());
  bound_.resize(x_.size());
  for (size_t row = 0; row < case_.rows; ++row) expect_row(row);
  for (size_t i = 0; i < x_.size(); ++i) bound_[i] += (std::abs(x_[i]) + std::abs(expected_[i])) * 0x1p-23;
}

Result<std::vector<float>> MixtureCase::run(gpu::Device& device) const {
  std::vector<gpu::DeviceBuffer> buffers;
  const auto put = [&](std::span<const std::byte> bytes, std::string_view what) -> Result<uint64_t> {
    if (bytes.empty()) return uint64_t{0};
    MC_TRY(buffer, gpu::DeviceBuffer::make(device, bytes.size(), what));
    MC_CHECK(device.write(buffer.address(), bytes));
    buffers.push_back(std::move(buffer));
    return buffers.back().address();
  };
  const auto put_bf16 = [&](const std::vector<float>& values, std::string_view what) {
    std::vector<uint16_t> halves(values.size());
    std::transform(values.begin(), values.end(), halves.begin(), f32_to_bf16);
    return put(std::as_bytes(std::span(halves)), what);
  };
  MC_TRY(mixture, gpu::Mixture::open(device, case_.shape, case_.rows));
  MC_TRY(in, put_bf16(in_, "rows"));
  MC_TRY(router, put_bf16(router_, "router"));
  MC_TRY(gate_up, put_bf16(gate_up_, "gate and up"));
  MC_TRY(down, put_bf16(down_, "down"));
  MC_TRY(shared_gate_up, put_bf16(shared_gate_up_, "gate and up of the shared expert"));
  MC_TRY(shared_down, put_bf16(shared_down_, "down of the shared expert"));
  MC_TRY(x, put(std::as_bytes(std::span(x_)), "sums"));
  MC_CHECK(mixture.add({router, gate_up, down, shared_gate_up, shared_down}, in, x, case_.rows));
  std::vector<float> out(x_.size());
  MC_CHECK(device.read(x, std::as_writable_bytes(std::span(out))));
  return out;
}

double MixtureCase::share(const std::vector<float>& got) const {
  double worst = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double share = std::abs(got[i] - expected_[i]) / bound_[i];
    worst = share <= worst ? worst : share;  // NaN is the worst
  }
  return worst;
}

// ---- cases ----

struct ExpertsRuns {
  uint64_t count = 0;
  double worst = 0;
};

Result<ExpertsRuns> run_mixture(const MixtureCase& mixed, gpu::Device* device, const ExpertsOptions& options) {
  if (device != nullptr) {
    MC_TRY(got, mixed.run(*device));
    return ExpertsRuns{1, mixed.share(got)};
  }
  ExpertsRuns out;
  for (uint64_t schedule = 0; schedule < options.schedules; ++schedule)
    for (int policy = 0; policy < gpu::emu::kPolicies; ++policy) {
      MC_TRY(emulator, Emulator::open());
      emulator.driver->gpu().set_options(
          {.seed = options.seed + schedule, .policy = static_cast<gpu::emu::Policy>(policy), .checks = options.checks});
      MC_TRY(got, mixed.run(*emulator.device));
      const double share = mixed.share(got);
      out.worst = share <= out.worst ? out.worst : share;
      ++out.count;
    }
  return out;
}

// ---- mutants ----

/// An error of a kernel's logic, or of one call of an instruction.
struct ExpertsMutant {
  std::string_view name, entry;
  Fault fault = Fault::none;
  Instruction instruction = Instruction::none;
  std::string_view function;
  int nth = 1;
  gpu::emu::Mutation::Edit edit = gpu::emu::Mutation::Edit::skip;
  uint32_t argument = 0;
};
using Edit = gpu::emu::Mutation::Edit;
constexpr ExpertsMutant kExpertsMutants[] = {
    {"router: ties go to the higher expert", "route_rows", Fault::ties_to_higher},
    {"router: shares are the softmax over all scores", "route_rows", Fault::shares_of_all},
    {"groups: rows do not count those of other warps", "group_rows", Fault::group_unordered},
    {"groups: lanes disagree about a barrier", "group_rows", Fault::none, Instruction::bar_sync, "group_rows", 4,
     Edit::skip_lane},
    {"groups: one warp skips a barrier", "group_rows", Fault::none, Instruction::bar_sync, "group_rows", 2,
     Edit::skip_warp},
    {"expert product of 16 rows: the neighbour's weights", "expert_product_16", Fault::neighbours_weights},
    {"expert product of 16 rows: the last row is lost", "expert_product_16", Fault::tile_loses_row},
    {"expert product of 16 rows: waits for all but two groups", "expert_product_16", Fault::none,
     Instruction::cp_async_wait, "multiply", 1, Edit::argument, 2},
    {"expert product of 16 rows: columns after the last are not zeroed", "expert_product_16", Fault::none,
     Instruction::cp_async, "load_rows", 1, Edit::argument, 16},
    {"expert product of 64 rows: the neighbour's weights", "expert_product_64", Fault::neighbours_weights},
    {"expert product of 64 rows: the last row is lost", "expert_product_64", Fault::tile_loses_row},
    {"expert product of 64 rows: w is read transposed", "expert_product_64", Fault::none, Instruction::ldmatrix,
     "multiply", 2, Edit::transposed},
};

/// Runs one mutant under each of `policies`, and adds its row. False: a run reported nothing.
Result<bool> run_experts_mutant(const std::string& name, std::string_view entry, gpu::emu::Options wanted, int policies,
                                const MixtureCase& mixed, const std::vector<float>& sound, Rows& rows) {
  int caught = 0;
  Findings reported;
  for (int policy = 0; policy < policies; ++policy) {
    MC_TRY(emulator, Emulator::open());
    wanted.policy = static_cast<gpu::emu::Policy>(policy);
    emulator.driver->gpu().set_mutated(entry);
    emulator.driver->gpu().set_options(wanted);
    const auto got = mixed.run(*emulator.device);
    const auto rule = emulator.driver->gpu().broken_rule();
    const Finding finding = !got && rule ? Finding(*rule) : got && *got != sound ? Finding::result() : Finding::none();
    caught += finding != Finding::none() ? 1 : 0;
    reported.add(finding);
  }
  Json row = Json::object({{"type", "mutant"}, {"mutant", name}, {"kernel", std::string(entry)}});
  row.set("reported", reported.text()).set("caught", caught).set("of", policies);
  MC_CHECK(
      rows.add(std::move(row), {name, reported.text(), std::to_string(caught) + " of " + std::to_string(policies)}));
  return caught == policies;
}

/// A case of mutants with the result of the sound kernels.
struct SoundMixture {
  MixtureCase mixed;
  std::vector<float> result;

  static Result<SoundMixture> run(const ExpertsCase& one, uint64_t seed) {
    MC_TRY(emulator, Emulator::open());
    MixtureCase mixed(one, seed);
    MC_TRY(result, mixed.run(*emulator.device));
    if (mixed.share(result) > 1)
      return Error{Code::corrupt, "the sound kernels' result is wrong, so no mutant can be judged"};
    return SoundMixture{std::move(mixed), std::move(result)};
  }
};

/// The places that a kernel passes.
Result<std::vector<gpu::emu::Site>> sites_of_experts(std::string_view entry, const MixtureCase& mixed) {
  std::vector<gpu::emu::Site> sites;
  MC_TRY(emulator, Emulator::open());
  emulator.driver->gpu().set_mutated(entry);
  emulator.driver->gpu().set_options({.sites = &sites});
  MC_CHECK(mixed.run(*emulator.device));
  std::sort(sites.begin(), sites.end());
  sites.erase(std::unique(sites.begin(), sites.end()), sites.end());
  return sites;
}

/// The mutants of one kernel: those of the table, and each call of an instruction left out.
Result<std::string> mutate_experts_kernel(std::string_view entry, const SoundMixture& sound,
                                          const ExpertsOptions& options, Rows& rows) {
  MC_TRY(sites, sites_of_experts(entry, sound.mixed));
  const gpu::emu::Options plain{.seed = options.seed, .checks = options.checks, .steps_max = 300'000'000};
  std::string missed;
  const auto run = [&](const std::string& name, gpu::emu::Options wanted, int policies) -> Result<void> {
    MC_TRY(caught, run_experts_mutant(name, entry, wanted, policies, sound.mixed, sound.result, rows));
    if (!caught) missed += "; " + name;
    return {};
  };
  for (const ExpertsMutant& mutant : kExpertsMutants) {
    if (mutant.entry != entry) continue;
    gpu::emu::Options wanted = plain;
    gpu::emu::Mutation mutation;
    wanted.fault = static_cast<uint8_t>(mutant.fault);
    if (mutant.fault == Fault::none) {
      const GpuMutant place{.name = mutant.name,
                            .entry = entry,
                            .instruction = mutant.instruction,
                            .function = mutant.function,
                            .nth = mutant.nth,
                            .edit = mutant.edit,
                            .argument = mutant.argument};
      MC_TRY(found, mutate(place, sites));
      mutation = found;
      wanted.mutation = &mutation;
    }
    MC_CHECK(run(std::string(mutant.name), wanted, gpu::emu::kPolicies));
  }
  for (const gpu::emu::Site& site : sites) {
    if (site.instruction == Instruction::exit) continue;
    const gpu::emu::Mutation mutation{.site = site};
    gpu::emu::Options wanted = plain;
    wanted.mutation = &mutation;
    const std::string name = std::string(entry) + " without " + std::string(to_string(site.instruction)) + " at " +
                             site.file + ":" + std::to_string(site.line);
    MC_CHECK(run(name, wanted, is_synchronisation(site.instruction) ? gpu::emu::kPolicies : 1));
  }
  return missed;
}

std::vector<std::string> experts_cells(const Json& row) {
  const auto number = [&](const char* key) { return row[key].dump(); };
  return {std::string(row["case"].as_string()), number("rows"), number("per_token") + " of " + number("experts"),
          row.find("runs") == nullptr ? "-" : number("runs"),
          row.find("failure") != nullptr       ? "FAILED"
          : row.find("error_share") == nullptr ? "-"
                                               : fixed(row["error_share"].as_double(), 3)};
}

Json describe_mixture(const ExpertsCase& one) {
  Json row = Json::object({{"type", "experts"}, {"case", std::string(one.name)}, {"rows", one.rows}});
  row.set("experts", one.shape.experts).set("per_token", one.shape.per_token).set("hidden", one.shape.hidden);
  return std::move(row.set("inner", one.shape.inner).set("shared_inner", one.shape.shared_inner));
}

}  // namespace

Table experts_table() {
  return Table({"experts", "rows", "chosen", "runs", "error"});
}

Result<void> check_experts(gpu::Device* device, const ExpertsOptions& options, Rows& rows) {
  for (const ExpertsCase& one : kExpertsCases) rows.expect(experts_cells(describe_mixture(one)));
  std::string wrong;
  for (const ExpertsCase& one : kExpertsCases) {
    Json row = describe_mixture(one);
    const auto runs = run_mixture(MixtureCase(one, options.seed), device, options);
    std::string failure = runs ? "" : runs.error().what;
    if (runs) {
      row.set("runs", runs->count).set("error_share", runs->worst);
      if (!(runs->worst <= 1)) failure = "the result has an error of " + fixed(runs->worst, 2) + " times its bound";
    }
    if (!failure.empty()) {
      row.set("failure", failure);
      wrong += "; " + std::string(one.name) + ": " + failure;
    }
    std::vector<std::string> cells = experts_cells(row);
    MC_CHECK(rows.add(std::move(row), std::move(cells)));
    if (device != nullptr && device->failure()) break;
  }
  if (wrong.empty()) return {};
  return user_error(err::kWrongAnswer, "mixtures of experts: " + wrong.substr(2), {},
                    "this is a fault of the programs: report it with these lines, which repeat it");
}

Result<std::string> mutate_experts(const ExpertsOptions& options, Rows& rows) {
  std::string missed;
  MC_TRY(narrow, SoundMixture::run(kMutatedCases[0], options.seed));
  MC_TRY(wide, SoundMixture::run(kMutatedCases[1], options.seed));
  for (const std::string_view entry :
       {"route_rows", "group_rows", "expert_product_16", "expert_product_64", "combine_experts"}) {
    MC_TRY(unseen, mutate_experts_kernel(entry, entry == "expert_product_64" ? wide : narrow, options, rows));
    missed += unseen;
  }
  return missed;
}

}  // namespace mc::bench
