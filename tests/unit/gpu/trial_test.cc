// Trials of instructions (gpu/kernels/trial.h): their results beside expectations that are written here from the PTX
// ISA 9.0, without the code of the emulator. `mc-bench gpu --instructions` compares a chip with the emulator; these
// tests compare the emulator with the text of the ISA. Each trial runs under every policy.
#include "gpu/kernels/trial.h"

#include <bit>

#include "unit/gpu/device_bench.h"

using namespace mc;
using namespace mc::gpu;

namespace {

constexpr uint32_t kLanes = kTrialThreads;
constexpr size_t kInWords = size_t{kTrialIn} * kLanes, kOutWords = size_t{2} * kTrialOut * kLanes;

LaunchShape one_cta() {
  return {.threads = kTrialThreads, .dynamic_shared = kTrialShared};
}

/// How a trial runs.
struct How {
  LaunchShape shape = one_cta();
  int launches = 1;       // each may start beside the one before
  bool has_maps = false;  // of sm_90a: `in` as rows of bf16, and kTrialOutRows rows of `out`, of f32
  bool is_small = false;  // pairs of bf16, whole numbers from -8 to 8
  int32_t column = 0, row = 0;
};

/// A run of a trial under one schedule: its input words and what its threads put out.
class Run {
 public:
  Run(std::string_view kernel, emu::Policy policy, const How& how)
      : bench_({.seed = test::seed(), .policy = policy}), in_(kInWords), out_(kOutWords) {
    Rng rng(test::seed());
    const auto half = [&] { return uint32_t{f32_to_bf16(static_cast<float>(rng.between(-8, 8)))}; };
    for (uint32_t& word : in_) word = how.is_small ? half() << 16 | half() : static_cast<uint32_t>(rng.next());
    const TrialArgs args{.in = bench_.put(in_), .out = bench_.put(out_), .column = how.column, .row = how.row};
    const struct {
      TrialArgs args;
      alignas(64) EncodedMap in_map, out_map;
    } params{args, map(args.in, kInWords / 32, TensorElement::bf16), map(args.out, kTrialOutRows, TensorElement::f32)};
    const auto bytes = bytes_of(params);
    LaunchShape shape = how.shape;
    for (int i = 0; i < how.launches; ++i, shape.order = LaunchOrder::programmatic)
      REQUIRE_OK(bench_.device->launch(kernel, shape, how.has_maps ? bytes : bytes.first(sizeof(TrialArgs))));
    out_ = bench_.get(args.out, kOutWords);
  }
  uint32_t in(size_t i, uint32_t thread) const { return in_[i * kLanes + thread]; }
  uint32_t out(size_t i, uint32_t thread) const { return out_[i * kLanes + thread]; }
  uint32_t in_word(size_t at) const { return in_[at]; }
  /// Element (row, column) of the rows of 64 bf16.
  float element(uint32_t row, uint32_t column) const {
    return bf16_to_f32(static_cast<bf16_t>(in_[row * 32 + column / 2] >> column % 2 * 16));
  }

 private:
  EncodedMap map(const uint32_t* at, uint64_t rows, TensorElement element) {
    const uint32_t columns = element == TensorElement::f32 ? 32 : 64;
    auto out = bench_.device->encode({.base = reinterpret_cast<uint64_t>(at),
                                      .dims = {columns, rows, 1, 1},
                                      .strides = {128 / columns, 128, 1 << 16, 1 << 16},
                                      .box = {columns, 64, 1, 1},
                                      .element = element});
    REQUIRE_OK(out);
    return *out;
  }

  tested::Bench bench_;
  std::vector<uint32_t> in_, out_;
};

/// Runs a trial under each policy and compares word i of each thread with want(run, i, thread).
template <class Want>
void check(std::string_view kernel, size_t words, Want&& want, const How& how = {}) {
  CAPTURE(test::seed());
  for (int policy = 0; policy < emu::kPolicies; ++policy) {
    const Run run(kernel, static_cast<emu::Policy>(policy), how);
    size_t wrong = 0;
    for (size_t i = 0; i < words; ++i)
      for (uint32_t thread = 0; thread < kLanes; ++thread) {
        if (run.out(i, thread) == want(run, i, thread) || ++wrong > 1) continue;
        INFO("policy ", policy, ", word ", i, ", thread ", thread);
        CHECK(run.out(i, thread) == want(run, i, thread));
      }
    CHECK(wrong == 0);
  }
}

uint32_t count_bits(uint32_t word) {
  uint32_t out = 0;
  for (; word != 0; word /= 2) out += word % 2;
  return out;
}
uint32_t first_bit(uint32_t word) {
  uint32_t out = 0;
  for (; word % 2 == 0; word /= 2) ++out;
  return out;
}

}  // namespace

TEST_CASE("gpu/trial: shfl.idx gives the value of the lane that each lane names, modulo 32 (9.7.9.6)") {
  check("trial_shuffle_from", 5, [](const Run& run, size_t i, uint32_t thread) {
    const uint32_t warp = thread - thread % 32, value = run.in(0, thread), lane = run.in(1, thread) % 32;
    const uint32_t from[] = {warp + lane, warp + lane, warp + 21, warp + value % 32, warp + value % 32};
    return run.in(i == 3 ? 1 : 0, from[i]);  // word 3 is the low half of a pair
  });
}

TEST_CASE("gpu/trial: popc counts bits, and bfind of the reversed word finds the lowest one (9.7.1.14, 9.7.1.16)") {
  check("trial_bits", 11, [](const Run& run, size_t i, uint32_t thread) {
    const uint32_t many = run.in(0, thread), one = uint32_t{1} << run.in(1, thread) % 32;
    const uint32_t few = many & run.in(1, thread) & run.in(2, thread) & run.in(3, thread);
    const uint32_t words[] = {many, few, one, ~one, many << 24 | one, 0};
    const uint32_t word = words[i / 2];
    return i % 2 == 0 ? count_bits(word) : first_bit(word | 0x80000000u);
  });
}

TEST_CASE("gpu/trial: %tid and %ctaid name each thread of a grid of three dimensions once (10)") {
  How how;
  std::copy(std::begin(kTrialGrid), std::end(kTrialGrid), how.shape.grid);
  check(
      "trial_place", size_t{2} * 3 * 4,
      [](const Run& run, size_t i, uint32_t thread) {
        const auto cta = static_cast<uint32_t>(i);
        return run.in(0, thread) ^ (cta % 2 | cta / 2 % 3 << 8 | cta / 6 << 16 | thread << 24);
      },
      how);
}

TEST_CASE("gpu/trial: ld and st of shared memory keep the bits of floats, and st.v4 clears 16 bytes (9.7.9.8)") {
  check("trial_shared", 6, [](const Run& run, size_t i, uint32_t thread) {
    if (i < 2) return run.in(0, thread ^ (i == 0 ? 37 : 91));
    const size_t word = (i - 2) * kLanes + thread;  // of the table of 16 bytes a thread
    return word / 4 % 3 == 0 ? 0 : run.in(1 + word / kLanes, static_cast<uint32_t>(word % kLanes));
  });
}

TEST_CASE("gpu/trial: cp.async copies 0, 4, 8 and 16 bytes, and two groups are there before the others (9.7.9.25.3)") {
  check("trial_cp_async", 18, [](const Run& run, size_t i, uint32_t thread) {
    const size_t word = i < 16 ? i * kLanes + thread : ((i - 16) * kLanes + thread) * 4;
    constexpr size_t kWords[] = {0, 1, 2, 4};  // of four that a copy brings
    const bool is_copied = word % 4 < kWords[word / 4 / kLanes];
    return is_copied ? run.in(word / kLanes, static_cast<uint32_t>(word % kLanes)) : 0;
  });
}

TEST_CASE("gpu/trial: atomics sum what all threads bring, and give the value before (9.7.13.6)") {
  check("trial_atomics", 9, [](const Run& run, size_t i, uint32_t thread) {
    uint32_t bits = 0, sum = 0, shifted = 0, small = 0;
    for (uint32_t t = 0; t < kLanes; ++t) {
      const uint32_t value = run.in(0, t);
      bits |= value & uint32_t{1} << value % 32;
      sum += value, shifted += value >> 7, small += value & 255;
    }
    const uint32_t value = run.in(0, thread), before = run.in(1, thread);
    const uint32_t sums[] = {sum, shifted, std::bit_cast<uint32_t>(static_cast<float>(small))};
    const uint32_t want[] = {bits, sum, thread < 3 ? sums[thread] : 0, 0, before, before | value, 0, value, value + 7};
    return want[i];
  });
}

TEST_CASE("gpu/trial: barriers of warps and bar.warp.sync of some lanes hand on what was written before (9.7.13)") {
  check("trial_barriers", 4, [](const Run& run, size_t i, uint32_t thread) -> uint32_t {
    if (thread < 64) return 0;
    const auto value = [&](uint32_t of) { return run.in(0, of ^ 64 ^ 17); };
    if (i == 0) return value(thread);
    if (i == 1) return value(thread ^ 33) + (thread ^ 33);
    if (i == 2) return value(thread ^ 3) ^ (thread ^ 3);
    return thread % 32 < 16 ? value(thread ^ 5) + 1 : 0;
  });
}

TEST_CASE("gpu/trial: copies arrive at mbarriers, counted in advance or beside their thread (9.7.13.15.17)") {
  check("trial_cp_async_arrive", 8, [](const Run& run, size_t i, uint32_t thread) { return run.in(i, thread); },
        {.has_maps = true});
}

TEST_CASE("gpu/trial: boxes are added to a tensor of f32, where rows behind its end are left out (9.7.9.27.1.4)") {
  constexpr std::pair<int32_t, int32_t> kCorners[] = {{0, 0}, {16, 30}, {0, 58}};
  for (const auto& [column, row] : kCorners) {
    INFO("column ", column, ", row ", row);
    // The sum of the two boxes at an element of the tensor, whose 16-byte pieces lie swizzled in shared memory.
    const auto sum = [&](const Run& run, uint32_t at) {
      const int64_t r = int64_t{at} / 32 - row, c = at % 32 - int64_t{column};
      if (r < 0 || r >= 64 || c < 0) return uint32_t{0};
      const auto byte = static_cast<uint32_t>(r * 128 + c * 4);
      const uint32_t word = (byte ^ (byte / 128 % 8 * 16)) / 4;
      const uint32_t first = run.in_word(word) % 256, second = run.in_word(16 * kLanes + word) % 256;
      return std::bit_cast<uint32_t>(static_cast<float>(first + second));
    };
    check("trial_reduce_box", 16,
          [&](const Run& run, size_t i, uint32_t thread) {
            const auto at = static_cast<uint32_t>(i * kLanes + thread);
            if (at < kTrialOutRows * 32) return sum(run, at);
            return thread == 0 ? sum(run, static_cast<uint32_t>(row * 32 + column)) : 0;
          },
          {.has_maps = true, .column = column, .row = row});
  }
}

namespace {

/// Word v of a thread's accumulator of 64 rows: element (row, column) of the product, by the figure of
/// section 9.7.15.5. `transposed`: the product has rows 0 to 63 of the input as columns. `first`: row of B's first
/// column.
uint32_t product_word(const Run& run, uint32_t thread, uint32_t v, bool transposed, uint32_t first) {
  const uint32_t row = thread / 32 * 16 + thread % 32 / 4 + (v & 2) * 4, column = v / 4 * 8 + thread % 4 * 2 + v % 2;
  float sum = 0;
  for (uint32_t k = 0; k < 64; ++k)
    sum += (transposed ? run.element(k, row) : run.element(row, k)) * run.element(first + column, k);
  return std::bit_cast<uint32_t>(sum + 0.f);
}

}  // namespace

TEST_CASE("gpu/trial: wgmma multiplies by each number of columns, and by A as it lies or transposed (9.7.15.5)") {
  const How how{.has_maps = true, .is_small = true};
  for (const bool transposed : {false, true})
    check(
        transposed ? "trial_wgmma_transposed" : "trial_wgmma_columns", 64,
        [&](const Run& run, size_t i, uint32_t thread) {
          constexpr uint32_t kFirst[] = {0, 4, 12, 24, 40};  // words of 8, 16, 24, 32 and 48 columns
          size_t form = std::size(kFirst) - 1;
          while (kFirst[form] > i) --form;
          return product_word(run, thread, static_cast<uint32_t>(i) - kFirst[form], transposed, 64);
        },
        how);
  check(
      "trial_wgmma_transposed_64", 32,
      [](const Run& run, size_t i, uint32_t thread) {
        return product_word(run, thread, static_cast<uint32_t>(i), true, 64);
      },
      how);
}

TEST_CASE("gpu/trial: a group of wgmma is there when a later one may be unfinished (9.7.15.7)") {
  check("trial_wgmma_groups", 48,
        [](const Run& run, size_t i, uint32_t thread) {
          const auto word = static_cast<uint32_t>(i);
          if (word < 32) return product_word(run, thread, word % 16, false, 64 + word / 16 * 32);
          return product_word(run, thread, word % 8, false, 64 + (word - 32) / 8 * 16);
        },
        {.has_maps = true, .is_small = true});
}

TEST_CASE("gpu/trial: threads keep 180 numbers in registers that setmaxnreg gave them (9.7.19.5)") {
  How how{.has_maps = true};
  how.shape.threads = kTrialGroups * kLanes;
  check(
      "trial_registers", size_t{2} * kTrialGroups,
      [](const Run& run, size_t i, uint32_t thread) {
        const auto group = static_cast<uint32_t>(i) / 2;
        if (group == 0) return i == 0 ? run.in(0, thread) + 1 : 0;
        uint32_t sum = 0;
        for (uint32_t n = 0; n < kTrialKept; ++n) {
          const uint32_t number = i % 2 == 0 ? n : kTrialKept - 1 - n;
          sum = sum * 31 + run.in(number % kTrialIn, thread ^ (1 + number % 31)) + number * group;
        }
        return sum;
      },
      how);
}

TEST_CASE("gpu/trial: a grid that starts beside the one before it reads what that wrote (9.7.13.13)") {
  const auto want = [](const Run& run, size_t, uint32_t thread) { return run.in(0, thread) * 32; };
  check("trial_dependents", 1, want, {.launches = 2, .has_maps = true});
}
