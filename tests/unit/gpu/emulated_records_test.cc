// Speed of the emulator that may not show: bodies of matrix products, reads that were checked, and records of memory.
#include <array>
#include <bit>
#include <cmath>
#include <deque>
#include <limits>
#include <new>

#include "base/rng.h"
#include "emulated.h"
#include "gpu/emu/product_rows.h"
#include "gpu/emu/streams.h"
#include "gpu/emu/zeroed.h"
#include "gpu/emulated.h"

#if defined(__SANITIZE_ADDRESS__)
extern "C" int __asan_address_is_poisoned(const volatile void* address);
#endif

namespace emulated_records_test {
namespace {

using namespace mc;
using namespace mc::gpu;
using namespace mc::gpu::tested;

float draw(Rng& rng) {
  constexpr float kOdd[] = {0.f, -0.f, std::numeric_limits<float>::infinity(), 1e-42f, 3e38f};
  return rng.chance(0.1) ? kOdd[rng.below(std::size(kOdd))] : static_cast<float>(rng.normal());
}

TEST_CASE("gpu/emulated_records: every body of a product has the bits of single products and sums in order") {
  Rng rng(1);
  for (const emu::MultiplyRows body : {emu::multiply_rows_avx2(), emu::multiply_rows_avx512()}) {
    if (body == nullptr) continue;
    for (const uint32_t n : {8u, 16u, 24u, 48u, 64u, 72u, 96u, 200u, 256u})
      for (const uint32_t rows : {1u, 3u, 4u, 7u, 16u}) {
        std::vector<float> a(16 * 16), b(16 * n), sums(16 * n);
        for (auto* numbers : {&a, &b, &sums})
          for (float& x : *numbers) x = draw(rng);
        std::vector<float> expected = sums;
        emu::ProductRows work;
        for (work.rows = 0; work.rows < rows; ++work.rows) {
          work.a[work.rows] = &a[work.rows * 16];
          work.sums[work.rows] = &sums[work.rows * n];
          for (uint32_t x = 0; x < n; ++x)
            for (uint32_t k = 0; k < 16; ++k) {
              const volatile float product = a[work.rows * 16 + k] * b[k * n + x];  // rounded, whatever the flags are
              expected[work.rows * n + x] += product;
            }
        }
        body(work, b.data(), n);
        for (size_t i = 0; i < sums.size(); ++i) {
          const bool both_nan = std::isnan(sums[i]) && std::isnan(expected[i]);
          if (!both_nan && std::bit_cast<uint32_t>(sums[i]) != std::bit_cast<uint32_t>(expected[i])) {
            CAPTURE(n);
            CAPTURE(rows);
            CAPTURE(i);
            CHECK(sums[i] == expected[i]);
            return;
          }
        }
      }
  }
}

TEST_CASE("gpu/emulated_records: a word that was read is checked again behind a write of another lane or CTA") {
  const auto reads_twice = [](bool in_one_cta) {
    return [=](const Args& args) {
      const bool writes = in_one_cta ? tid() == 31 : ptx::ctaid_x() == 1;
      ptx::load(args.out + 4);
      ptx::load(args.out + 4);
      if (writes) ptx::store(args.out + 4, 1u);
      ptx::warp_sync();
      ptx::load(args.out + 4);
    };
  };
  CHECK(run_body(reads_twice(true)).rule == "");  // the barrier of the warp orders them
  const auto without_order = [](const Args& args) {
    for (int i = 0; i < 3; ++i) {
      ptx::load(args.out + 4);
      if (tid() == 0 && i == 1) ptx::store(args.out + 4, 1u);
    }
  };
  CHECK(run_body(without_order).rule == "race");
  for (const emu::Policy policy : {emu::Policy::in_order, emu::Policy::random, emu::Policy::sticky})
    CHECK(run_body(reads_twice(false), {.policy = policy, .ctas = 2}).rule == "race");
}

TEST_CASE("gpu/emulated_records: bytes that nothing has written are 0xff for the host, also beside written ones") {
  emu::DeviceMemory memory;
  constexpr size_t kBytes = 300'000;
  const uint64_t address = memory.allocate(kBytes, "large");
  const std::vector<std::byte> one(1);
  memory.write(address + 65'536, one);
  memory.write(address + 200'000, one);
  std::vector<std::byte> read(kBytes);
  memory.read(address, read);
  size_t written = 0;
  for (size_t i = 0; i < kBytes; ++i) {
    if (read[i] == std::byte{0xff}) continue;
    ++written;
    CHECK((i == 65'536 || i == 200'000));
  }
  CHECK(written == 2);
}

/// Kernels "a", "b" and "c" that run one after another on memory of their own, with the options that an EmulatedGpu
/// gives them. A mutation of "b" leaves nothing out: its place is not in a kernel.
struct ThreeKernels {
  emu::DeviceMemory memory;
  EmulatedGpu gpu;
  emu::Mutation mutation;
  uint64_t out = memory.allocate(256, "out");

  ThreeKernels() {
    const std::vector<std::byte> zeros(256);
    memory.write(out, zeros);
    gpu.set_mutated("b");
    start();
  }
  void start() { gpu.set_options({.policy = emu::Policy::random, .mutation = &mutation}); }
  /// The rule that a launch of two CTAs of 64 threads breaks.
  std::string run(std::string_view name, const Body& body) {
    Args args{.out = reinterpret_cast<uint32_t*>(out)};
    const emu::Kernel kernel{name, 1024, sizeof args, 31,
                             [&](const std::byte* params) { body(*reinterpret_cast<const Args*>(params)); }};
    const emu::Launch launch{
        .grid = {2, 1, 1}, .block = 64, .dynamic_shared = 1024, .params = std::as_bytes(std::span(&args, 1))};
    const emu::Report report = emu::run(kernel, memory, launch, gpu.next_options(name));
    return std::string(report.failure ? to_string(report.failure->rule) : "");
  }
};

/// Warps write one word of shared memory without order.
void race_in_shared(const Args&) {
  if (tid() % 32 == 0) ptx::store_shared_u32(0, 1);
}
void nothing(const Args&) {}

TEST_CASE("gpu/emulated_records: a race in shared memory is found in the mutated kernel and those behind it alone") {
  ThreeKernels run;
  CHECK(run.run("a", race_in_shared) == "");
  CHECK(run.run("b", nothing) == "");
  CHECK(run.run("a", race_in_shared) == "race");
  CHECK(run.run("c", race_in_shared) == "race");
  run.start();
  CHECK(run.run("c", race_in_shared) == "");
  CHECK(run.run("b", race_in_shared) == "race");
}

TEST_CASE("gpu/emulated_records: the kernels before a mutated one keep their rules without a mutation") {
  ThreeKernels run;
  run.gpu.set_options({.policy = emu::Policy::random});
  CHECK(run.run("a", race_in_shared) == "race");
}

TEST_CASE("gpu/emulated_records: global memory is checked and recorded before the mutated kernel too") {
  const auto writes = [](const Args& a) {
    if (tid() == 0 && ptx::ctaid_x() == 0) ptx::store(a.out + 3, 1u);
  };
  const auto writes_in_two_ctas = [](const Args& a) {
    if (tid() == 0) ptx::store(a.out + 3, 1u);
  };
  ThreeKernels run;
  CHECK(run.run("a", writes_in_two_ctas) == "race");
  // Nothing orders what "b" reads behind the write of "a": the streams say so.
  struct NoOrder final : emu::GridOrder {
    bool ends_before(uint32_t) const override { return false; }
    std::string describe(uint32_t) const override { return "a"; }
  } none;
  for (const bool is_ordered : {true, false}) {
    ThreeKernels fresh;
    CHECK(fresh.run("a", writes) == "");
    if (!is_ordered) fresh.memory.set_order(&none);
    CHECK(fresh.run("b", [](const Args& a) { ptx::load(a.out + 3); }) == (is_ordered ? "" : "stream order"));
  }
}

/// Two streams over 8 words of device memory. The host waits for nothing.
struct TwoReaders {
  emu::DeviceMemory memory;
  emu::StreamQueues queues{memory};
  std::vector<std::byte> zeros = std::vector<std::byte>(32);
  uint64_t words = memory.allocate(32, "words");
  uint32_t first = queues.make_stream(), second = queues.make_stream();
  std::deque<std::vector<std::byte>> hosts;  // each copy has bytes of its own there

  TwoReaders() { memory.write(words, zeros); }
  void read(uint32_t stream, size_t word, size_t count) {
    hosts.emplace_back(count * 4);
    queues.submit(stream, emu::CopyOut{hosts.back().data(), words + word * 4, count * 4});
  }
  void write(uint32_t stream, size_t word, size_t count) {
    queues.submit(stream, emu::CopyIn{words + word * 4, zeros.data(), count * 4});
  }
  /// `stream` goes on behind what `other` has been given.
  void order(uint32_t stream, uint32_t other) {
    const uint32_t event = queues.make_event();
    queues.record(other, event);
    queues.wait(stream, event);
  }
  /// The byte at which no event orders two operations; empty: there is none.
  std::string found() {
    queues.finish_all();
    if (!queues.failure()) return "";
    const std::string& text = queues.failure()->text;
    const size_t at = text.find("at byte ");
    return at == std::string::npos ? text : text.substr(at + 8, text.find(',', at) - at - 8);
  }
};

TEST_CASE("gpu/emulated_records: each word that two streams read side by side keeps both readers") {
  for (const size_t word : {0u, 1u, 6u})
    for (const bool is_ordered : {false, true}) {
      TwoReaders run;
      run.read(run.first, 0, 8);
      run.read(run.second, 0, 8);
      if (is_ordered) run.order(run.second, run.first);
      run.write(run.second, word, 2);
      CHECK(run.found() == (is_ordered ? "" : std::to_string(word * 4)));
    }
}

TEST_CASE("gpu/emulated_records: a reader of one word alone is found among words with one reader") {
  for (const bool is_ordered : {false, true}) {
    TwoReaders run;
    run.read(run.first, 5, 1);
    run.read(run.second, 0, 8);
    if (is_ordered) run.order(run.second, run.first);
    run.write(run.second, 0, 8);
    CHECK(run.found() == (is_ordered ? "" : "20"));
  }
}

TEST_CASE("gpu/emulated_records: an array whose bytes are more than size_t counts is refused") {
  const size_t many = (SIZE_MAX >> 3) + 2;  // of 8 bytes: 8 more than 2^64
  CHECK_THROWS_AS(emu::ZeroedArray<uint64_t>{many}, std::bad_alloc);
}

#if defined(__SANITIZE_ADDRESS__)
TEST_CASE("gpu/emulated_records: AddressSanitizer sees the end of small and of large arrays") {
  for (const size_t bytes : {size_t{64}, size_t{1} << 20}) {
    emu::ZeroedArray<std::byte> array(bytes);
    CHECK(__asan_address_is_poisoned(array.data() + bytes - 1) == 0);
    CHECK(__asan_address_is_poisoned(array.data() + bytes) == 1);
  }
}
#endif

TEST_CASE("gpu/emulated_records: a CTA does not find what the one before it wrote to shared memory") {
  CHECK(run_body(
            [](const Args&) {
              const uint32_t at = ptx::dynamic_shared<16>();
              if (ptx::ctaid_x() == 0) ptx::store_shared_u32(at + tid() * 4, 1);
              ptx::load_shared_u32(at + tid() * 4);
            },
            {.ctas = 2})
            .rule == "uninitialised");
}

}  // namespace
}  // namespace emulated_records_test
