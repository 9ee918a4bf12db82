#include "gpu_trials.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "base/dtype.h"
#include "base/errors.h"
#include "base/rng.h"
#include "emulator.h"
#include "gpu/emulated.h"
#include "gpu/kernels/trial.h"
#include "gpu_findings.h"

namespace mc::bench {
namespace {

constexpr int kRounds = 4;
constexpr size_t kInWords = size_t{gpu::kTrialIn} * gpu::kTrialThreads;
constexpr size_t kCtaWords = size_t{gpu::kTrialOut} * gpu::kTrialThreads, kOutWords = 2 * kCtaWords;
/// Corners of the boxes: inside, behind the last row, before the first column, before the first row.
constexpr std::pair<int32_t, int32_t> kBoxes[kRounds] = {{0, 0}, {0, 90}, {-8, 30}, {16, -3}};

/// Input words of a trial.
enum class Words : uint8_t {
  any,     // all bits
  finite,  // floats without NaN
  small,   // pairs of bf16, whole numbers from -8 to 8: sums of their products are exact
};
/// When two output words agree.
enum class Equal : uint8_t {
  bits,
  floats,       // two NaN agree
  approximate,  // within 2^-21 of the value, or both below the smallest normal number
};

/// How a trial is launched, and what it needs.
struct Setting {
  gpu::LaunchShape shape = {.threads = gpu::kTrialThreads, .dynamic_shared = gpu::kTrialShared};
  int launches = 1;                                          // each beside the one before
  bool hopper = false;                                       // of sm_90a, with tensor maps
  bool writes_f32 = false;                                   // the tensor that it writes has elements of f32
  gpu::emu::Instruction idle = gpu::emu::Instruction::none;  // its absence shows nothing: others do the same
};
constexpr Setting on_grid(uint32_t x, uint32_t y = 1, uint32_t z = 1) {
  Setting out;
  out.shape.grid[0] = x, out.shape.grid[1] = y, out.shape.grid[2] = z;
  return out;
}
/// `ctas` CTAs on sm_90a.
constexpr Setting on_hopper(uint32_t ctas = 1, gpu::emu::Instruction idle = gpu::emu::Instruction::none) {
  Setting out = on_grid(ctas);
  out.hopper = true, out.idle = idle;
  return out;
}
/// With a tensor of f32 that it writes.
constexpr Setting on_f32() {
  Setting out = on_hopper();
  out.writes_f32 = true;
  return out;
}
/// Several warpgroups. The emulator does not count the registers that a thread uses, so it misses none.
constexpr Setting in_groups() {
  Setting out = on_hopper(1, gpu::emu::Instruction::setmaxnreg_inc);
  out.shape.threads = gpu::kTrialGroups * gpu::kTrialThreads;
  return out;
}
/// Launched again before the first grid has ended. A grid that does not let the next one start early breaks no rule.
constexpr Setting twice() {
  Setting out = on_hopper(1, gpu::emu::Instruction::griddep_launch);
  out.launches = 2;
  return out;
}
constexpr Setting kOnHopper = on_hopper();

struct Trial {
  std::string_view instruction, section, kernel;
  Words words = Words::any;
  Equal equal = Equal::bits;
  Setting setting;
};

/// From what moves bytes inside a warp to what needs all of it: an error is found where it first shows.
constexpr Trial kTrials[] = {
    {"ldmatrix", "9.7.14.5.15", "trial_ldmatrix"},
    {"mma.m16n8k16", "9.7.14.5.8", "trial_mma", Words::small},
    {"shfl.bfly, vote.ballot", "9.7.9.6", "trial_shuffle"},
    {"shfl.idx", "9.7.9.6", "trial_shuffle_from"},
    {"popc, bfind", "9.7.1.14, 9.7.1.16", "trial_bits"},
    {"%tid, %ctaid", "10", "trial_place", Words::any, Equal::bits,
     on_grid(gpu::kTrialGrid[0], gpu::kTrialGrid[1], gpu::kTrialGrid[2])},
    {"ld.shared, st.shared", "9.7.9.8, 9.7.9.12", "trial_shared"},
    {"cvt.rn.bf16x2", "9.7.9.21", "trial_pack", Words::finite},
    {"max, add, div, mul, fma, sqrt", "9.7.3", "trial_numbers", Words::any, Equal::floats},
    {"ex2.approx", "9.7.3.20", "trial_exp2", Words::any, Equal::approximate},
    {"cp.async", "9.7.9.25.3", "trial_cp_async"},
    {"atom, red", "9.7.13.6", "trial_atomics"},
    {"st.release, ld.acquire", "8.9", "trial_message", Words::any, Equal::bits, on_grid(2)},
    {"bar.sync, bar.arrive", "9.7.13.1", "trial_barriers"},
    {"mbarrier", "9.7.13.15", "trial_mbarrier", Words::any, Equal::bits, kOnHopper},
    {"cp.async.mbarrier.arrive", "9.7.13.15.17", "trial_cp_async_arrive", Words::any, Equal::bits, kOnHopper},
    {"cp.reduce.async.bulk.tensor", "9.7.9.27.1.4", "trial_reduce_box", Words::any, Equal::bits, on_f32()},
    {"stmatrix", "9.7.14.5.16", "trial_stmatrix", Words::any, Equal::bits, kOnHopper},
    {"cp.async.bulk.tensor, load", "9.7.9.27.1.2", "trial_load_box", Words::any, Equal::bits, kOnHopper},
    {"cp.async.bulk.tensor, store", "9.7.9.27.1.3", "trial_store_box", Words::any, Equal::bits, kOnHopper},
    {"wgmma, A in shared memory", "9.7.15.5", "trial_wgmma_shared", Words::small, Equal::bits, kOnHopper},
    {"wgmma n8 to n48", "9.7.15.5", "trial_wgmma_columns", Words::small, Equal::bits, kOnHopper},
    {"wgmma n8 to n48, A M-major", "9.7.15.5", "trial_wgmma_transposed", Words::small, Equal::bits, kOnHopper},
    {"wgmma n64, A M-major", "9.7.15.5", "trial_wgmma_transposed_64", Words::small, Equal::bits, kOnHopper},
    {"wgmma.wait_group of two groups", "9.7.15.7", "trial_wgmma_groups", Words::small, Equal::bits, kOnHopper},
    {"wgmma n64, A in registers", "9.7.15.5", "trial_wgmma_registers_64", Words::small, Equal::bits, kOnHopper},
    {"wgmma n64, A in registers, B K-major", "9.7.15.5", "trial_wgmma_registers_k", Words::small, Equal::bits,
     kOnHopper},
    {"wgmma n128, A in registers", "9.7.15.5", "trial_wgmma_registers_128", Words::small, Equal::bits, kOnHopper},
    {"setmaxnreg", "9.7.19.5", "trial_registers", Words::any, Equal::bits, in_groups()},
    {"griddepcontrol", "9.7.13.13", "trial_dependents", Words::any, Equal::bits, twice()},
    {"mapa, barrier.cluster", "9.7.13.3", "trial_cluster", Words::any, Equal::bits,
     on_hopper(2, gpu::emu::Instruction::mbarrier_wait)},
    {"multicast", "9.7.9.27.1.2", "trial_multicast", Words::any, Equal::bits, on_hopper(2)},
};

uint32_t draw(Words words, Rng& rng) {
  auto bits = static_cast<uint32_t>(rng.next());
  if (words == Words::finite && std::isnan(std::bit_cast<float>(bits))) bits ^= 1u << 30;
  if (words != Words::small) return bits;
  const auto half = [&] { return uint32_t{f32_to_bf16(static_cast<float>(rng.between(-8, 8)))}; };
  const uint32_t low = half();
  return half() << 16 | low;
}

bool agree(Equal equal, uint32_t got, uint32_t want) {
  if (got == want) return true;
  const float a = std::bit_cast<float>(got), b = std::bit_cast<float>(want);
  if (equal == Equal::floats) return std::isnan(a) && std::isnan(b);
  return equal == Equal::approximate && std::abs(a - b) <= std::max(std::abs(b) * 0x1p-21f, 0x1p-126f);
}

/// The memory of the trials on one device.
class TrialMemory {
 public:
  static Result<TrialMemory> open(gpu::Device& device);
  Result<std::vector<uint32_t>> run(const Trial& trial, std::span<const uint32_t> in, std::pair<int32_t, int32_t> box);

 private:
  explicit TrialMemory(gpu::Device& device) : device_(&device) {}
  static gpu::TensorBox rows(uint64_t address, uint64_t count) {
    return {.base = address, .dims = {64, count, 1, 1}, .strides = {2, 128, 1 << 16, 1 << 16}, .box = {64, 64, 1, 1}};
  }
  static gpu::TensorBox rows_of_f32(uint64_t address, uint64_t count) {
    gpu::TensorBox out = rows(address, count);
    out.element = gpu::TensorElement::f32;
    out.dims[0] = out.box[0] = 32, out.strides[0] = 4;
    return out;
  }

  gpu::Device* device_;
  gpu::DeviceBuffer in_, out_;
  gpu::EncodedMap in_map_, out_map_, f32_map_;
};

Result<TrialMemory> TrialMemory::open(gpu::Device& device) {
  TrialMemory made(device);
  MC_TRY(in, gpu::DeviceBuffer::make(device, kInWords * 4, "input of the trials"));
  MC_TRY(out, gpu::DeviceBuffer::make(device, kOutWords * 4, "output of the trials"));
  made.in_ = std::move(in), made.out_ = std::move(out);
  if (device.capability() != 90) return made;
  MC_TRY(in_map, device.encode(rows(made.in_.address(), kInWords / 32)));
  MC_TRY(out_map, device.encode(rows(made.out_.address(), gpu::kTrialOutRows)));
  MC_TRY(f32_map, device.encode(rows_of_f32(made.out_.address(), gpu::kTrialOutRows)));
  made.in_map_ = in_map, made.out_map_ = out_map, made.f32_map_ = f32_map;
  return made;
}

Result<std::vector<uint32_t>> TrialMemory::run(const Trial& trial, std::span<const uint32_t> in,
                                               std::pair<int32_t, int32_t> box) {
  std::vector<uint32_t> out(kOutWords);
  MC_CHECK(device_->write(in_.address(), std::as_bytes(in)));
  MC_CHECK(device_->write(out_.address(), std::as_bytes(std::span(out))));
  const struct {
    gpu::TrialArgs args;
    alignas(64) gpu::EncodedMap in_map, out_map;
  } params{{gpu::device_pointer<const uint32_t>(in_.address()), gpu::device_pointer<uint32_t>(out_.address()),
            box.first, box.second},
           in_map_,
           trial.setting.writes_f32 ? f32_map_ : out_map_};
  const auto bytes = gpu::bytes_of(params);
  gpu::LaunchShape shape = trial.setting.shape;
  for (int i = 0; i < trial.setting.launches; ++i, shape.order = gpu::LaunchOrder::programmatic)
    MC_CHECK(device_->launch(trial.kernel, shape, trial.setting.hopper ? bytes : bytes.first(sizeof(gpu::TrialArgs))));
  MC_CHECK(device_->read(out_.address(), std::as_writable_bytes(std::span(out))));
  return out;
}

/// Words that differ, and the first of them.
struct Differences {
  size_t count = 0;
  std::string first;
};

void compare(const Trial& trial, std::span<const uint32_t> got, std::span<const uint32_t> want, Differences& out) {
  for (size_t i = 0; i < want.size(); ++i) {
    if (agree(trial.equal, got[i], want[i])) continue;
    char text[96];
    std::snprintf(text, sizeof text, "CTA %zu, thread %zu, word %zu: 0x%08x, the emulator has 0x%08x", i / kCtaWords,
                  i % gpu::kTrialThreads, i % kCtaWords / gpu::kTrialThreads, got[i], want[i]);
    if (out.count++ == 0) out.first = text;
  }
}

/// Whether the absence of an instruction changes nothing that a run can show: it gives way, or repeats the order that
/// another one makes.
bool is_idle(const Trial& trial, gpu::emu::Instruction instruction) {
  using gpu::emu::Instruction;
  return instruction == trial.setting.idle || instruction == Instruction::nanosleep ||
         instruction == Instruction::fence_gpu;
}

Result<Differences> try_one(const Trial& trial, uint64_t seed, TrialMemory& tried, Emulator* rehearsed,
                            TrialMemory& expected) {
  Differences out;
  Rng rng = Rng(seed).fork(trial.kernel);
  for (int round = 0; round < kRounds; ++round) {
    std::vector<uint32_t> in(kInWords);
    for (uint32_t& word : in) word = draw(trial.words, rng);
    if (rehearsed != nullptr)
      rehearsed->driver->gpu().set_options(
          {.seed = seed + static_cast<uint64_t>(round), .policy = static_cast<gpu::emu::Policy>(1 + round % 2)});
    MC_TRY(want, expected.run(trial, in, kBoxes[round]));
    MC_TRY(got, tried.run(trial, in, kBoxes[round]));
    compare(trial, got, want, out);
  }
  return out;
}

/// Leaves out or falsifies each call of a trial on one of two emulators. The names of those that neither break a rule
/// nor change the output.
Result<std::string> mutate_one(const Trial& trial, uint64_t seed, Emulator& changed, TrialMemory& expected,
                               Rows& rows) {
  std::vector<gpu::emu::Site> sites;
  MC_TRY(tried, TrialMemory::open(*changed.device));
  std::vector<uint32_t> in(kInWords);
  Rng rng = Rng(seed).fork(trial.kernel);
  for (uint32_t& word : in) word = draw(trial.words, rng);
  MC_TRY(want, expected.run(trial, in, kBoxes[0]));
  changed.driver->gpu().set_options({.seed = seed, .sites = &sites});
  MC_CHECK(tried.run(trial, in, kBoxes[0]));
  std::sort(sites.begin(), sites.end());
  sites.erase(std::unique(sites.begin(), sites.end()), sites.end());
  std::string missed;
  for (const gpu::emu::Site& site : sites) {
    if (is_idle(trial, site.instruction)) continue;
    const gpu::emu::Mutation mutation{.site = site};
    changed.driver->gpu().set_options({.seed = seed, .steps_max = 1'000'000, .mutation = &mutation});
    Differences found;
    const auto got = tried.run(trial, in, kBoxes[0]);
    if (got) compare(trial, *got, want, found);
    const auto rule = changed.driver->gpu().broken_rule();
    const Finding finding = rule ? Finding(*rule) : found.count > 0 ? Finding::result() : Finding::none();
    const bool is_caught = finding != Finding::none();
    const std::string name = std::string(trial.kernel) + " without " + std::string(to_string(site.instruction)) +
                             " at " + site.file + ":" + std::to_string(site.line);
    if (!is_caught) missed += "; " + name;
    Json row = Json::object({{"type", "mutant"}, {"mutant", name}, {"kernel", std::string(trial.kernel)}});
    row.set("reported", finding.name()).set("caught", is_caught ? 1 : 0).set("of", 1);
    MC_CHECK(rows.add(std::move(row), {name, std::string(finding.name()), is_caught ? "1 of 1" : "0 of 1"}));
  }
  return missed;
}

}  // namespace

Result<std::string> mutate_trials(uint64_t seed, Rows& rows) {
  MC_TRY(reference, Emulator::open());
  MC_TRY(expected, TrialMemory::open(*reference.device));
  std::string missed;
  for (const Trial& trial : kTrials) {
    MC_TRY(changed, Emulator::open());
    MC_TRY(unseen, mutate_one(trial, seed, changed, expected, rows));
    missed += unseen;
  }
  return missed;
}

Table trial_table() {
  return Table({"instruction", "section", "runs", "differ"});
}

Result<void> try_instructions(gpu::Device* device, uint64_t seed, Rows& rows) {
  MC_TRY(reference, Emulator::open());
  MC_TRY(expected, TrialMemory::open(*reference.device));
  MC_TRY(second, Emulator::open());
  gpu::Device& tested = device != nullptr ? *device : *second.device;
  MC_TRY(tried, TrialMemory::open(tested));
  for (const Trial& trial : kTrials)
    rows.expect({std::string(trial.instruction), std::string(trial.section), std::to_string(kRounds), "0"});
  std::string wrong;
  for (const Trial& trial : kTrials) {
    Json row = Json::object({{"type", "instruction"}, {"instruction", std::string(trial.instruction)}});
    row.set("section", std::string(trial.section)).set("kernel", std::string(trial.kernel));
    std::string runs = "-", differ = "-";
    if (!trial.setting.hopper || tested.capability() == 90) {
      MC_TRY(found, try_one(trial, seed, tried, device == nullptr ? &second : nullptr, expected));
      row.set("runs", kRounds).set("differences", found.count);
      runs = std::to_string(kRounds), differ = std::to_string(found.count);
      if (found.count > 0) {
        row.set("first", found.first);
        wrong += "; " + std::string(trial.instruction) + ": " + found.first;
      }
    }
    MC_CHECK(rows.add(std::move(row), {std::string(trial.instruction), std::string(trial.section), runs, differ}));
  }
  MC_CHECK(rows.finish());
  if (wrong.empty()) return {};
  return user_error(err::kWrongAnswer, "instructions differ from the emulator: " + wrong.substr(2), {},
                    "correct the wrapper in lib/gpu/ptx, or the rule of lib/gpu/emu");
}

}  // namespace mc::bench
