// Products of fp8 on the emulated cuBLASLt: E4M3 codes of activations, and results against sums in double of the
// activations as they were.
#include "gpu/fp8_product.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "base/dtype.h"
#include "base/rng.h"
#include "gpu/emulated.h"
#include "gpu/kernels/layer.h"
#include "gpu/kernels/quantise.h"
#include "test.h"

using namespace mc;
using namespace mc::gpu;

namespace fp8_product_test {
namespace {

double value_of(uint8_t code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  if ((code & 127) == 127) return std::nan("");
  const double size = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return code >= 128 ? -size : size;
}

struct Bench {
  std::shared_ptr<EmulatedDriver> driver;
  std::unique_ptr<Device> device;
  std::vector<DeviceBuffer> buffers;

  explicit Bench(const EmulatedHost& host = {}, const emu::Options& options = {})
      : driver(std::make_shared<EmulatedDriver>(host)) {
    driver->gpu().set_options(options);
    auto opened = Device::open(driver, 0);
    REQUIRE_OK(opened);
    device = std::move(*opened);
    REQUIRE_OK(device->choose_matmul(MatmulChoice::cublaslt));
  }
  template <class T>
  uint64_t put(const std::vector<T>& values) {
    auto buffer = DeviceBuffer::make(*device, values.size() * sizeof(T), "test");
    REQUIRE_OK(buffer);
    REQUIRE_OK(device->write(buffer->address(), std::as_bytes(std::span(values))));
    buffers.push_back(std::move(*buffer));
    return buffers.back().address();
  }
  template <class T>
  std::vector<T> get(uint64_t at, size_t count) {
    std::vector<T> out(count);
    REQUIRE_OK(device->read(at, std::as_writable_bytes(std::span(out))));
    return out;
  }
};

constexpr Fp8Scales kAllScales[] = {Fp8Scales::matrix, Fp8Scales::rows, Fp8Scales::blocks};
constexpr float kStaticScale = 0.02f;  // of activations, with Fp8Scales::matrix

struct Case {
  Fp8Scales scales;
  size_t rows, columns, inner;
  std::vector<uint16_t> x;
  std::vector<uint8_t> w;
  std::vector<float> w_scales, y;

  Case(uint64_t seed, Fp8Scales kind, size_t m, size_t n, size_t k) : scales(kind), rows(m), columns(n), inner(k) {
    Rng rng(seed);
    for (size_t i = 0; i < n * k; ++i) {
      const auto code = static_cast<uint8_t>(rng.below(256));
      w.push_back((code & 127) == 127 ? 0 : code);
    }
    const size_t count = kind == Fp8Scales::matrix ? 1
                         : kind == Fp8Scales::rows ? n
                                                   : (n + 127) / 128 * fp8_scale_stride(k);
    for (size_t i = 0; i < count; ++i) w_scales.push_back(0.001f + 0.01f * static_cast<float>(rng.uniform()));
    for (size_t i = 0; i < m * k; ++i) x.push_back(f32_to_bf16(static_cast<float>(rng.normal())));
    y.assign(m * n, 1);
  }
  double w_scale(size_t column, size_t i) const {
    if (scales == Fp8Scales::matrix) return w_scales[0];
    if (scales == Fp8Scales::rows) return w_scales[column];
    return w_scales[column / 128 * fp8_scale_stride(inner) + i / 128];
  }
  double x_scale(size_t row, size_t i) const {
    if (scales == Fp8Scales::matrix) return kStaticScale;
    const size_t group = scales == Fp8Scales::blocks ? 128 : inner, first = i / group * group;
    double largest = 0;
    for (size_t j = first; j < std::min(first + group, inner); ++j)
      largest = std::max(largest, std::abs(double{bf16_to_f32(x[row * inner + j])}));
    return largest > 0 ? largest / 448 : 1;
  }
  Result<std::vector<float>> run(Bench& bench, bool adds) const {
    MC_TRY(matmul, Fp8Matmul::open(*bench.device, rows, columns, inner));
    Fp8Product product{.x = bench.put(x),
                       .w = bench.put(w),
                       .w_scales = bench.put(w_scales),
                       .y = bench.put(y),
                       .rows = rows,
                       .columns = columns,
                       .inner = inner,
                       .scales = scales,
                       .adds = adds};
    if (scales == Fp8Scales::matrix) product.x_scale = bench.put(std::vector<float>{kStaticScale});
    MC_CHECK(matmul.queue(product));
    std::vector<float> out(rows * columns);
    MC_CHECK(bench.device->read(product.y, std::as_writable_bytes(std::span(out))));
    return out;
  }
  /// The largest error as a share of its bound. An activation is rounded to E4M3, which costs 2^-4 of it or half of the
  /// smallest step, 2^-10 of its scale; the quotient by the scale is rounded before, which may cost a step at a tie.
  /// The sum costs inner + 6 roundings of f32.
  double worst_share(const std::vector<float>& got, bool adds) const {
    double worst = 0;
    std::vector<double> steps(inner);
    for (size_t r = 0; r < rows; ++r) {
      for (size_t i = 0; i < inner; ++i) steps[i] = i % 128 == 0 ? x_scale(r, i) * 0x1.001p-10 : steps[i - 1];
      for (size_t c = 0; c < columns; ++c) {
        double sum = adds ? 1 : 0, size = 1, rounded = 0;
        for (size_t i = 0; i < inner; ++i) {
          const double a = bf16_to_f32(x[r * inner + i]), b = value_of(w[c * inner + i]) * w_scale(c, i);
          sum += a * b;
          size += std::abs(a * b);
          rounded += std::abs(b) * (std::abs(a) * 0x1.001p-4 + steps[i]);
        }
        const double bound = rounded + static_cast<double>(inner + 6) * 0x1p-24 * (size + rounded);
        worst = std::max(worst, std::abs(got[r * columns + c] - sum) / bound);
      }
    }
    return worst;
  }
};

/// Codes of one row, with a scale of 1.
std::vector<uint8_t> codes_of(Bench& bench, const std::vector<uint16_t>& x) {
  const QuantiseArgs args{.x = device_pointer<const uint16_t>(bench.put(x)),
                          .codes = device_pointer<unsigned char>(bench.put(std::vector<uint8_t>(x.size()))),
                          .fixed = device_pointer<const float>(bench.put(std::vector<float>{1})),
                          .rows = 1,
                          .padded = 1,
                          .inner = static_cast<int32_t>(x.size()),
                          .group = static_cast<int32_t>(x.size())};
  REQUIRE_OK(bench.device->launch("quantise_rows", {.grid = {1, 1, 1}}, bytes_of(args)));
  return bench.get<uint8_t>(reinterpret_cast<uint64_t>(args.codes), x.size());
}

}  // namespace

TEST_CASE("gpu/fp8_product: every bf16 becomes the nearest E4M3, a tie the even one, and NaN stays NaN") {
  Bench bench;
  std::vector<uint16_t> x(65536);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<uint16_t>(i);
  const auto codes = codes_of(bench, x);
  size_t wrong = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double value = bf16_to_f32(x[i]);
    if (std::isnan(value)) {
      wrong += (codes[i] & 127) == 127 ? 0 : 1;
      continue;
    }
    const double cut = std::clamp(value, -448.0, 448.0), got = value_of(codes[i]);
    const auto size = static_cast<uint8_t>(codes[i] & 127);
    bool is_right = size < 127 && std::signbit(got) == std::signbit(value);
    for (const int beside : {-1, 1}) {  // the codes next to it are no nearer
      const int other = size + beside;
      if (other < 0 || other >= 127) continue;
      const double there = std::abs(value_of(static_cast<uint8_t>(other))), far = std::abs(std::abs(cut) - there);
      const double near = std::abs(std::abs(cut) - std::abs(got));
      is_right = is_right && (near < far || (near == far && size % 2 == 0));
    }
    wrong += is_right ? 0 : 1;
  }
  CHECK(wrong == 0);
}

TEST_CASE("gpu/fp8_product: products with each kind of scales are within the bound of the rounded activations") {
  CAPTURE(test::seed());
  int policy = 0;
  for (const Fp8Scales scales : kAllScales)
    for (const auto& [m, n, k] :
         {std::array<size_t, 3>{1, 4, 16}, {3, 36, 272}, {4, 132, 128}, {67, 140, 400}, {70, 8, 640}})
      for (const bool adds : {false, true}) {
        Bench bench({}, {.seed = test::seed(), .policy = static_cast<emu::Policy>(policy++ % emu::kPolicies)});
        const Case one(test::seed(), scales, m, n, k);
        const auto got = one.run(bench, adds);
        REQUIRE_OK(got);
        CAPTURE(static_cast<int>(scales));
        CAPTURE(m);
        CHECK(one.worst_share(*got, adds) <= 1);
        CHECK(bench.driver->gpu().counters().bank_conflicts == 0);
      }
}

TEST_CASE("gpu/fp8_product: a row has the same bits whatever rows lie beside it") {
  for (const Fp8Scales scales : kAllScales) {
    const auto bits = [&](size_t rows, size_t row) {
      Bench bench;
      const Case one(test::seed(), scales, rows, 20, 512);
      const auto got = one.run(bench, true);
      REQUIRE_OK(got);
      return std::vector<float>(got->begin() + static_cast<long>(row * 20),
                                got->begin() + static_cast<long>(row * 20 + 20));
    };
    const auto first = bits(64, 0), last = bits(67, 65);
    for (const size_t rows : {65, 67, 130}) CHECK(bits(rows, 0) == first);
    for (const size_t rows : {66, 130}) CHECK(bits(rows, 65) == last);  // alone behind the last four, and among others
    for (const size_t rows : {2, 5, 63}) CHECK(bits(rows, 0) == bits(1, 0));
  }
}

TEST_CASE("gpu/fp8_product: a number of rows that cuBLASLt refuses is computed in pieces, with equal bits") {
  for (const Fp8Scales scales : kAllScales)
    for (const bool adds : {false, true}) {
      Bench sound, picky({.cublaslt_rows_max = 512});
      const Case one(test::seed(), scales, 602, 8, 128);  // with scales of blocks two rows are left over
      const Case even(test::seed(), scales, 600, 8, 128);
      for (const Case* of : {&one, &even}) {
        const auto want = of->run(sound, adds), got = of->run(picky, adds);
        REQUIRE_OK(want);
        REQUIRE_OK(got);
        CHECK(*got == *want);
      }
      CHECK(*takes_fp8(*picky.device, scales, 8, 128, true));
      Bench without({.cublaslt_rows_max = 256});
      CHECK_FALSE(*takes_fp8(*without.device, scales, 8, 128, true));
    }
}

TEST_CASE("gpu/fp8_product: zeros, a value that is not finite and a huge one leave the other rows as they are") {
  for (const Fp8Scales scales : {Fp8Scales::rows, Fp8Scales::blocks}) {
    Case one(test::seed(), scales, 5, 12, 256);
    std::fill_n(one.x.begin(), 256, uint16_t{0});
    one.x[256] = 0x7fc0;                // NaN in row 1
    one.x[512] = f32_to_bf16(3.3e38f);  // in row 2
    Bench bench;
    const auto got = one.run(bench, false);
    REQUIRE_OK(got);
    for (size_t c = 0; c < 12; ++c) {
      CHECK((*got)[c] == 0);
      CHECK(std::isnan((*got)[12 + c]) == !std::isfinite((*got)[12 + c]));
    }
    size_t nan = 0;
    for (size_t c = 0; c < 12; ++c) nan += std::isnan((*got)[12 + c]) ? 1 : 0;
    CHECK(nan == 12);
    Case rest = one;  // the last two rows alone
    rest.rows = 2;
    rest.x.erase(rest.x.begin(), rest.x.begin() + 3 * 256);
    rest.y.resize(24);
    Bench other;
    const auto want = rest.run(other, false);
    REQUIRE_OK(want);
    CHECK(std::equal(want->begin(), want->end(), got->begin() + 36));
  }
}

TEST_CASE("gpu/fp8_product: each instruction of the quantisation that is left out is reported or changes a result") {
  const Case one(test::seed(), Fp8Scales::blocks, 6, 8, 256);
  std::vector<emu::Site> sites;
  std::vector<float> want;
  {
    Bench sound({}, {.seed = test::seed(), .sites = &sites});
    const auto got = one.run(sound, true);
    REQUIRE_OK(got);
    want = *got;
  }
  std::sort(sites.begin(), sites.end());
  sites.erase(std::unique(sites.begin(), sites.end()), sites.end());
  int mutants = 0;
  for (const emu::Site& site : sites) {
    if (site.instruction == emu::Instruction::exit) continue;
    const emu::Mutation mutation{.site = site};
    for (int policy = 0; policy < emu::kPolicies; ++policy, ++mutants) {
      Bench bench({}, {.seed = test::seed(), .policy = static_cast<emu::Policy>(policy), .mutation = &mutation});
      const auto got = one.run(bench, true);
      CHECK_MESSAGE((!got.has_value() || *got != want), emu::to_string(site.instruction), " at ", site.file, ":",
                    site.line);
    }
  }
  CHECK(mutants >= 8 * emu::kPolicies);  // loads and stores, the maximum of a lane and of a warp, sums
}

TEST_CASE(
    "gpu/fp8_product: devices and shapes that cuBLASLt does not multiply are refused by name, also before a product") {
  const auto refused = [](int capability, Fp8Scales scales, size_t columns, size_t inner) {
    Bench bench({.capability = capability});
    const auto got = Case(1, scales, 4, columns, inner).run(bench, false);
    return got ? std::string() : got.error().what;
  };
  CHECK(refused(90, Fp8Scales::blocks, 8, 32) == "");
  CHECK(refused(89, Fp8Scales::matrix, 8, 32) == "");
  CHECK(refused(89, Fp8Scales::blocks, 8, 32).find("compute capability") != std::string::npos);
  CHECK(refused(80, Fp8Scales::matrix, 8, 32).find("compute capability") != std::string::npos);
  CHECK(refused(90, Fp8Scales::rows, 8, 40).find("multiple of 16 elements") != std::string::npos);
  CHECK(refused(90, Fp8Scales::rows, 6, 32).find("multiple of 4 columns") != std::string::npos);
  for (const int capability : {80, 89, 90})
    for (const Fp8Scales scales : kAllScales)
      for (const auto& [columns, inner] : {std::pair<size_t, size_t>{8, 32}, {8, 40}, {6, 32}}) {
        Bench bench({.capability = capability});
        const auto takes = takes_fp8(*bench.device, scales, columns, inner, true);
        REQUIRE_OK(takes);
        CHECK(*takes == refused(capability, scales, columns, inner).empty());
      }
  Bench own;
  REQUIRE_OK(own.device->choose_matmul(MatmulChoice::own));
  CHECK(*takes_fp8(*own.device, Fp8Scales::rows, 4, 16, true) == false);
  const auto opened = Fp8Matmul::open(*own.device, 4, 4, 16);
  REQUIRE_FALSE(opened.has_value());
  CHECK(opened.error().code == Code::unsupported);
}

}  // namespace fp8_product_test
