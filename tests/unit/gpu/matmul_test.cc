// Products by cuBLASLt on the emulated host: against sums in double, the bits of rows, the choice of what computes, and
// what happens where the library is missing, refuses or has no workspace.
#include "gpu/matmul.h"

#include <cmath>
#include <optional>
#include <vector>

#include "base/dtype.h"
#include "base/errors.h"
#include "base/rng.h"
#include "gpu/emulated.h"
#include "gpu/gpu.h"
#include "gpu/launch_graphs.h"
#include "gpu/libcublaslt.h"
#include "gpu/mlp.h"
#include "test.h"

using namespace mc;
using namespace mc::gpu;

namespace matmul_test {
namespace {

/// A device of the emulated host, and buffers on it.
struct Bench {
  std::shared_ptr<EmulatedDriver> driver;
  std::unique_ptr<Device> device;
  std::vector<DeviceBuffer> buffers;

  explicit Bench(MatmulChoice choice, const EmulatedHost& host = {}) : driver(std::make_shared<EmulatedDriver>(host)) {
    auto opened = Device::open(driver, 0);
    REQUIRE_OK(opened);
    device = std::move(*opened);
    REQUIRE_OK(device->choose_matmul(choice));
  }
  template <class T>
  uint64_t put(const std::vector<T>& values) {
    auto buffer = DeviceBuffer::make(*device, values.size() * sizeof(T), "test");
    REQUIRE_OK(buffer);
    REQUIRE_OK(device->write(buffer->address(), std::as_bytes(std::span(values))));
    buffers.push_back(std::move(*buffer));
    return buffers.back().address();
  }
  Result<std::vector<float>> get(uint64_t at, size_t count) {
    std::vector<float> out(count);
    MC_CHECK(device->read(at, std::as_writable_bytes(std::span(out))));
    return out;
  }
  Matmul::Report report() const { return device->matmul() == nullptr ? Matmul::Report{} : device->matmul()->report(); }
};

std::vector<uint16_t> some_bf16(Rng& rng, size_t count) {
  std::vector<uint16_t> out(count);
  for (uint16_t& x : out) x = f32_to_bf16(static_cast<float>(rng.normal()));
  return out;
}

/// A product, its numbers, and where it stands on a device.
struct Case {
  size_t rows, columns, inner;
  std::vector<uint16_t> x, w;
  std::vector<float> y, bias;
  Case(uint64_t seed, size_t m, size_t n, size_t k) : rows(m), columns(n), inner(k) {
    Rng rng(seed);  // the first rows are equal in all cases of equal columns and inner
    w = some_bf16(rng, n * k);
    for (size_t i = 0; i < n; ++i) bias.push_back(static_cast<float>(rng.normal()));
    x = some_bf16(rng, m * k);
    y.assign(m * n, 1);
  }
  Product put(Bench& bench, bool adds, bool has_bias) const {
    return {.x = bench.put(x),
            .w = bench.put(w),
            .y = bench.put(y),
            .bias = has_bias ? bench.put(bias) : 0,
            .rows = rows,
            .columns = columns,
            .inner = inner,
            .adds = adds};
  }
  Result<std::vector<float>> run(Bench& bench, bool adds = false, bool has_bias = false) const {
    const Product product = put(bench, adds, has_bias);
    MC_CHECK(queue_product(*bench.device, product));
    return bench.get(product.y, rows * columns);
  }
  /// The largest error as a share of its bound: inner + 3 roundings of f32, of the sum of the absolute values.
  double worst_share(const std::vector<float>& got, bool adds, bool has_bias) const {
    double worst = 0;
    for (size_t r = 0; r < rows; ++r)
      for (size_t c = 0; c < columns; ++c) {
        double sum = (adds ? 1 : 0) + (has_bias ? double{bias[c]} : 0), size = std::abs(sum) + 1;
        for (size_t k = 0; k < inner; ++k) {
          const double product = double{bf16_to_f32(x[r * inner + k])} * bf16_to_f32(w[c * inner + k]);
          sum += product;
          size += std::abs(product);
        }
        const double bound = static_cast<double>(inner + 3) * 0x1p-24 * size;
        worst = std::max(worst, std::abs(got[r * columns + c] - sum) / bound);
      }
    return worst;
  }
};

}  // namespace

TEST_CASE("gpu/matmul: products of odd shapes with a bias and an addition are within the bound of f32 sums") {
  CAPTURE(test::seed());
  for (const auto& [m, n, k] :
       {std::array<size_t, 3>{1, 64, 64}, {17, 70, 72}, {64, 5, 136}, {65, 10, 8}, {130, 33, 256}})
    for (const MatmulChoice choice : {MatmulChoice::own, MatmulChoice::cublaslt, MatmulChoice::tuned})
      for (const bool adds : {false, true})
        for (const bool has_bias : {false, true}) {
          if (choice == MatmulChoice::own && m > 65) continue;
          const Case one(test::seed(), m, n, k);
          Bench bench(choice);
          const auto got = one.run(bench, adds, has_bias);
          REQUIRE_OK(got);
          CHECK(one.worst_share(*got, adds, has_bias) <= 1);
          CHECK(bench.report().queued == (choice == MatmulChoice::own ? 0u : 1u));
        }
}

TEST_CASE("gpu/matmul: a row has the same bits whatever rows lie beside it, and in tuned products it does not") {
  const auto bits = [](MatmulChoice choice, size_t rows, size_t proposals = 8) {
    const Case one(test::seed(), rows, 24, 1024);
    Bench bench(choice, {.cublaslt_proposals = proposals});
    auto got = one.run(bench);
    REQUIRE_OK(got);
    got->resize(24);  // the first row
    return *got;
  };
  const auto want = bits(MatmulChoice::cublaslt, 1);
  for (const size_t rows : {2, 16, 17, 63, 64, 65, 300, 513}) CHECK(bits(MatmulChoice::cublaslt, rows) == want);
  for (const size_t rows : {1, 64, 513}) CHECK(bits(MatmulChoice::cublaslt, rows, 1) == want);
  // The negative control: an algorithm for each size gives a row other bits, which the emulated library shows.
  CHECK(bits(MatmulChoice::tuned, 1) != bits(MatmulChoice::tuned, 64));
  CHECK(bits(MatmulChoice::tuned, 64) != bits(MatmulChoice::tuned, 513));
}

TEST_CASE("gpu/matmul: a number of rows has the first algorithm that agrees with the one for a chunk, or that one") {
  const auto ran = [](const EmulatedHost& host, size_t rows) {
    Bench bench(MatmulChoice::cublaslt, host);
    REQUIRE_OK(Case(9, rows, 16, 1024).run(bench));
    return bench.report();
  };
  // The emulated library proposes smaller tiles first, whose bits differ. Proposals have the rows that it was asked
  // about as their number.
  for (const auto& [rows, asked] : {std::pair<size_t, int>{1, 4}, {4, 4}, {5, 8}, {17, 32}, {129, 256}}) {
    const Matmul::Report own = ran({}, rows);
    CHECK(own.last.id == asked);
    CHECK(own.last.tile == 128);
    CHECK(std::pair(own.agreed, own.shared) == std::pair<uint64_t, uint64_t>{1, 0});
    const Matmul::Report shared = ran({.cublaslt_proposals = 1}, rows);
    CHECK(shared.last.id == 512);
    CHECK(std::pair(shared.agreed, shared.shared) == std::pair<uint64_t, uint64_t>{0, 1});
    CHECK(shared.queued == 1);
  }
  const Matmul::Report chunk = ran({}, 300);
  CHECK(chunk.last.id == 512);
  CHECK(std::pair(chunk.agreed, chunk.shared) == std::pair<uint64_t, uint64_t>{0, 0});
}

TEST_CASE("gpu/matmul: a library whose bits depend on the rows is not used where rows can be compared") {
  const Case one(10, 3, 16, 1024);
  const auto queued = [&one](const EmulatedHost& host) {
    Bench bench(MatmulChoice::cublaslt, host);
    const auto got = one.run(bench);
    REQUIRE_OK(got);
    CHECK(one.worst_share(*got, false, false) <= 1);
    return bench.report().queued;
  };
  CHECK(queued({}) == 1);
  CHECK(queued({.cublaslt_steady = false}) == 0);
  CHECK(queued({.cublaslt_even = false}) == 0);
  // The negative control: without memory to compare, the library is taken at its word.
  CHECK(queued({.memory_bytes = size_t{16} << 20, .cublaslt_steady = false}) == 1);
}

TEST_CASE("gpu/matmul: the first of noted launches compares algorithms, and gives the bits of a product that ran") {
  const Case one(11, 3, 16, 64);
  Bench bench(MatmulChoice::cublaslt);
  const Product product = one.put(bench, true, true);
  Device::Launches launches;
  bench.device->note_launches(&launches);
  REQUIRE_OK(queue_product(*bench.device, product));
  bench.device->note_launches(nullptr);
  const auto before = bench.get(product.y, one.y.size());
  REQUIRE_OK(before);
  CHECK(*before == one.y);
  CHECK(bench.report().agreed == 1);
  REQUIRE_OK(bench.device->launch_noted(launches));
  const auto got = bench.get(product.y, one.y.size());
  REQUIRE_OK(got);
  Bench other(MatmulChoice::cublaslt);
  const auto want = one.run(other, true, true);
  REQUIRE_OK(want);
  CHECK(*got == *want);
}

TEST_CASE("gpu/matmul: the heuristic is asked once for each matrix and power of two of rows") {
  Bench bench(MatmulChoice::cublaslt);
  for (int turn = 0; turn < 3; ++turn)
    for (const size_t rows : {1, 5, 63, 64, 70}) REQUIRE_OK(Case(1, rows, 16, 64).run(bench));
  CHECK(bench.report().asked == 5);  // about 512 rows, 4, 8, 64 and 128
  CHECK(static_cast<EmulatedCublasLt&>(bench.driver->cublaslt()).proposals() == 5);
  REQUIRE_OK(Case(1, 3, 16, 64).run(bench, true));         // y += is a product of its own
  REQUIRE_OK(Case(1, 3, 16, 64).run(bench, false, true));  // as is a bias
  REQUIRE_OK(Case(1, 3, 24, 64).run(bench));
  CHECK(bench.report().asked == 11);
  CHECK(bench.report().queued == 18);
  CHECK(bench.report().refused == 0);
}

// ---- the choice ----

TEST_CASE("gpu/matmul: auto takes the own kernels where the library cannot be used, and a name says why it cannot") {
  const struct {
    EmulatedHost host;
    const char* says;
  } hosts[] = {{{.has_cublaslt = false}, "no cuBLASLt was found"},
               {{.cublaslt_version = 120803}, "cuBLASLt 12.8.3, at least 12.9.0 is needed"},
               {{.cublaslt_create = LtStatus::not_initialized}, "cublasLtCreate: CUBLAS_STATUS_NOT_INITIALIZED"}};
  for (const auto& [host, says] : hosts) {
    for (const MatmulChoice choice : {MatmulChoice::cublaslt, MatmulChoice::tuned}) {
      Bench bench(MatmulChoice::own, host);
      const auto chosen = bench.device->choose_matmul(choice);
      REQUIRE_FALSE(chosen.has_value());
      CHECK(chosen.error().mc == err::kKernelsUnusable);
      CHECK(chosen.error().what.find(says) != std::string::npos);
      CHECK(chosen.error().next.find("--kernels own") != std::string::npos);
      CHECK(bench.device->matmul() == nullptr);
      const Case one(2, 3, 16, 64);
      const auto got = one.run(bench);
      REQUIRE_OK(got);
      CHECK(one.worst_share(*got, false, false) <= 1);
    }
  }
  Bench bench(MatmulChoice::automatic);
  CHECK(bench.device->matmul() == nullptr);
  CHECK(bench.device->matmul_reason() == "the default of the emulator");
}

TEST_CASE("gpu/matmul: each name of --kernels is the choice of its row") {
  for (const MatmulRow& row : matmul_rows()) CHECK(matmul_choice(row.name) == row.choice);
  CHECK(matmul_names() == std::vector<std::string_view>{"auto", "own", "cublaslt", "cublaslt-tuned"});
}

TEST_CASE("gpu/matmul: without memory for a workspace products are right, and the report says that there is none") {
  Bench bench(MatmulChoice::tuned, {.memory_bytes = size_t{16} << 20});
  CHECK(bench.report().workspace_bytes == 0);
  const Case one(3, 2, 16, 1024);  // a shape that the emulated library would sum in parts
  const auto got = one.run(bench);
  REQUIRE_OK(got);
  CHECK(one.worst_share(*got, false, false) <= 1);
  CHECK(bench.report().queued == 1);
  CHECK(Bench(MatmulChoice::tuned).report().workspace_bytes == Matmul::workspace_most(90));
}

TEST_CASE("gpu/matmul: a product that the library does not take is computed by the own kernels") {
  const auto refused = [](const EmulatedHost& host, size_t rows, size_t shift) {
    Bench bench(MatmulChoice::cublaslt, host);
    const Case one(4, rows, 16, 64);
    Product product = one.put(bench, false, false);
    product.y = bench.put(std::vector<float>(rows * 16 + shift)) + shift * 4;
    REQUIRE_OK(queue_product(*bench.device, product));
    const auto got = bench.get(product.y, rows * 16);
    REQUIRE_OK(got);
    CHECK(one.worst_share(*got, false, false) <= 1);
    return bench.report().refused;
  };
  CHECK(refused({}, 5, 0) == 0);
  CHECK(refused({}, 5, 1) == 1);                            // y is not aligned to 16 bytes
  CHECK(refused({.cublaslt_proposes = false}, 5, 0) == 1);  // the heuristic knows no algorithm
  CHECK(refused({.cublaslt_rows_max = 4}, 5, 0) == 1);      // the algorithm does not take so many rows
  CHECK(refused({.cublaslt_rows_max = 4}, 4, 0) == 0);
}

// ---- streams and graphs ----

TEST_CASE("gpu/matmul: a list of launches with products becomes a graph that gives the products again") {
  Bench bench(MatmulChoice::cublaslt);
  LaunchGraphs graphs(*bench.device);
  const Case one(5, 3, 16, 64);
  const Product product = one.put(bench, true, true);
  std::vector<float> want;
  for (int turn = 0; turn < 4; ++turn) {
    REQUIRE_OK(bench.device->write(product.y, std::as_bytes(std::span(one.y))));
    graphs.begin();
    REQUIRE_OK(queue_product(*bench.device, product));
    REQUIRE_OK(queue_product(*bench.device, product));
    REQUIRE_OK(graphs.end());
    const auto got = bench.get(product.y, 3 * 16);
    REQUIRE_OK(got);
    if (turn == 0) want = *got;
    CHECK(*got == want);
  }
  CHECK(graphs.counts().captured == 1);
  CHECK(graphs.counts().replayed == 2);
}

TEST_CASE("gpu/matmul: a product and a copy of another stream that no event orders stop the run under every policy") {
  for (int policy = 0; policy < emu::kPolicies; ++policy)
    for (const bool is_ordered : {true, false}) {
      Bench bench(MatmulChoice::cublaslt);
      const Product product = Case(6, 3, 16, 64).put(bench, false, false);
      bench.driver->gpu().set_options({.seed = test::seed(), .policy = static_cast<emu::Policy>(policy)});
      auto stream = Stream::make(*bench.device);
      auto event = Event::make(*bench.device);
      REQUIRE_OK(stream);
      REQUIRE_OK(event);
      REQUIRE_OK(queue_product(*bench.device, product));
      REQUIRE_OK(bench.device->record(*event));
      if (is_ordered) REQUIRE_OK(stream->wait(*event));
      (void)stream->fill(product.x, 0, 64);
      (void)stream->finish();
      (void)bench.device->finish();
      CHECK(bench.driver->gpu().broken_rule() == (is_ordered ? std::nullopt : std::optional(emu::Rule::stream_order)));
    }
}

TEST_CASE("gpu/matmul: an operand that was never written stops the run, and C of a product without addition may be") {
  for (const bool adds : {false, true}) {
    Bench bench(MatmulChoice::cublaslt);
    Product product = Case(7, 3, 16, 64).put(bench, adds, false);
    auto fresh = DeviceBuffer::make(*bench.device, 3 * 16 * 4, "fresh");
    REQUIRE_OK(fresh);
    product.y = fresh->address();
    (void)queue_product(*bench.device, product);
    (void)bench.device->finish();
    CHECK(bench.driver->gpu().broken_rule() == (adds ? std::optional(emu::Rule::uninitialised) : std::nullopt));
  }
}

TEST_CASE("gpu/matmul: a GPU that fails in a product is named with the driver's error") {
  const Case one(8, 3, 16, 64);
  Bench sound(MatmulChoice::cublaslt);
  const Product first = one.put(sound, false, false);
  REQUIRE_OK(queue_product(*sound.device, first));
  REQUIRE_OK(sound.device->finish());
  const uint64_t before = sound.driver->gpu().operations() - 1;  // copies, and products that are compared
  Bench bench(MatmulChoice::cublaslt, {.fault = Status::ecc_uncorrectable, .fault_after = before});
  const Product product = one.put(bench, false, false);
  const auto queued = queue_product(*bench.device, product);
  REQUIRE_FALSE(queued.has_value());
  CHECK(queued.error().mc == err::kDeviceFailed);
  CHECK(queued.error().what.find("cublasLtMatmul: uncorrectable ECC error") != std::string::npos);
}

}  // namespace matmul_test
