// Trials of instructions (gpu/kernels/trial.h): their results beside expectations that are written here from the PTX
// ISA 9.0, without the code of the emulator. `mc-bench gpu --instructions` compares a chip with the emulator; these
// tests compare the emulator with the text of the ISA. Each trial runs under every policy.
#include "gpu/kernels/trial.h"

#include <bit>

#include "unit/gpu/device_bench.h"

using namespace mc;
using namespace mc::gpu;

namespace {

constexpr uint32_t kThreads = kTrialThreads;
constexpr size_t kInWords = size_t{kTrialIn} * kThreads, kOutWords = size_t{2} * kTrialOut * kThreads;

LaunchShape one_cta() {
  return {.threads = kTrialThreads, .dynamic_shared = kTrialShared};
}

/// A run of a trial under one schedule: its input words and what its threads put out.
class Run {
 public:
  Run(std::string_view kernel, emu::Policy policy, const LaunchShape& shape = one_cta())
      : bench_({.seed = test::seed(), .policy = policy}), in_(kInWords), out_(kOutWords) {
    Rng rng(test::seed());
    for (uint32_t& word : in_) word = static_cast<uint32_t>(rng.next());
    const TrialArgs args{.in = bench_.put(in_), .out = bench_.put(out_)};
    bench_.launch(kernel, shape, args);
    out_ = bench_.get(args.out, kOutWords);
  }
  uint32_t in(size_t i, uint32_t thread) const { return in_[i * kThreads + thread]; }
  uint32_t out(size_t i, uint32_t thread) const { return out_[i * kThreads + thread]; }

 private:
  tested::Bench bench_;
  std::vector<uint32_t> in_, out_;
};

/// Runs a trial under each policy and compares word i of each thread with want(run, i, thread).
template <class Want>
void check(std::string_view kernel, size_t words, Want&& want, const LaunchShape& shape = one_cta()) {
  CAPTURE(test::seed());
  for (int policy = 0; policy < emu::kPolicies; ++policy) {
    const Run run(kernel, static_cast<emu::Policy>(policy), shape);
    size_t wrong = 0;
    for (size_t i = 0; i < words; ++i)
      for (uint32_t thread = 0; thread < kThreads; ++thread) {
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
  LaunchShape shape = one_cta();
  std::copy(std::begin(kTrialGrid), std::end(kTrialGrid), shape.grid);
  check(
      "trial_place", size_t{2} * 3 * 4,
      [](const Run& run, size_t i, uint32_t thread) {
        const auto cta = static_cast<uint32_t>(i);
        return run.in(0, thread) ^ (cta % 2 | cta / 2 % 3 << 8 | cta / 6 << 16 | thread << 24);
      },
      shape);
}

TEST_CASE("gpu/trial: ld and st of shared memory keep the bits of floats, and st.v4 clears 16 bytes (9.7.9.8)") {
  check("trial_shared", 6, [](const Run& run, size_t i, uint32_t thread) {
    if (i < 2) return run.in(0, thread ^ (i == 0 ? 37 : 91));
    const size_t word = (i - 2) * kThreads + thread;  // of the table of 16 bytes a thread
    return word / 4 % 3 == 0 ? 0 : run.in(1 + word / kThreads, static_cast<uint32_t>(word % kThreads));
  });
}

TEST_CASE("gpu/trial: cp.async copies 0, 4, 8 and 16 bytes, and two groups are there before the others (9.7.9.25.3)") {
  check("trial_cp_async", 18, [](const Run& run, size_t i, uint32_t thread) {
    const size_t word = i < 16 ? i * kThreads + thread : ((i - 16) * kThreads + thread) * 4;
    constexpr size_t kWords[] = {0, 1, 2, 4};  // of four that a copy brings
    const bool is_copied = word % 4 < kWords[word / 4 / kThreads];
    return is_copied ? run.in(word / kThreads, static_cast<uint32_t>(word % kThreads)) : 0;
  });
}

TEST_CASE("gpu/trial: atomics sum what all threads bring, and give the value before (9.7.13.6)") {
  check("trial_atomics", 9, [](const Run& run, size_t i, uint32_t thread) {
    uint32_t bits = 0, sum = 0, shifted = 0, small = 0;
    for (uint32_t t = 0; t < kThreads; ++t) {
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
