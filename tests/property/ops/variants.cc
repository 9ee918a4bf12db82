// Every operator variant this CPU can run against the definition in ref.cc, on sizes and values that
// lean to the edges. Bounds are relative to the sum of absolute terms: an f32 chain of k additions is
// off by at most k half-ulps of that sum, in practice by sqrt(k) of them; the factor 4 leaves room.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/parallel.h"
#include "base/rng.h"
#include "ops/matmul.h"
#include "ops/ops.h"
#include "test.h"

namespace variants_property {

using namespace mc;
using namespace mc::ops;

namespace {

constexpr double kUlp = 5.9604644775390625e-8;  // 2^-24

std::vector<float> values(Rng& rng, size_t n, double scale = 1) {
  std::vector<float> v(n);
  for (float& x : v) x = static_cast<float>(rng.normal() * scale);
  // Edges: zeros, denormals and one large value among small ones.
  for (float& x : v)
    if (rng.chance(0.05)) x = rng.chance(0.5) ? 0.0f : static_cast<float>(rng.normal() * scale * 30);
  return v;
}

std::vector<const Kernels*> usable() {
  std::vector<const Kernels*> list;
  for (const Kernels* k : variants())
    if (k->supported()) list.push_back(k);
  return list;
}

const Kernels& ref() {
  return *variants()[0];
}

constexpr size_t kSizes[] = {1, 2, 7, 8, 9, 15, 16, 17, 31, 63, 64, 65, 127, 128, 200, 1023, 1024, 4099};

}  // namespace

TEST_CASE("ops: every variant's element-wise kernels agree with the definition") {
  INFO("seed " << test::seed());
  Rng rng(test::seed());
  for (const Kernels* kernels : usable()) {
    INFO("variant " << kernels->name);
    for (size_t n : kSizes) {
      INFO("n " << n);
      const auto x = values(rng, n, 3), w = values(rng, n), up = values(rng, n, 10);
      std::vector<float> want(n), got(n);
      ref().rms_norm(x.data(), w.data(), 1e-5f, n, want.data());
      kernels->rms_norm(x.data(), w.data(), 1e-5f, n, got.data());
      for (size_t i = 0; i < n; ++i) CHECK(std::abs(got[i] - want[i]) <= 1e-6 * std::abs(want[i]));
      ref().silu_mul(x.data(), up.data(), n, want.data());
      kernels->silu_mul(x.data(), up.data(), n, got.data());
      for (size_t i = 0; i < n; ++i) CHECK(std::abs(got[i] - want[i]) <= 1e-6 * std::abs(want[i]) + 1e-30);
      want = got = up;
      ref().add(x.data(), n, want.data());
      kernels->add(x.data(), n, got.data());
      CHECK(got == want);
    }
  }
}

TEST_CASE("ops: silu saturates to 0 and x at the ends of the f32 range in every variant") {
  for (const Kernels* kernels : usable()) {
    INFO("variant " << kernels->name);
    const std::vector<float> gate = {-1e30f, -200, -90, -88, 0, 88, 200, 1e30f, -0.0f};
    const std::vector<float> one(gate.size(), 1);
    std::vector<float> out(gate.size());
    kernels->silu_mul(gate.data(), one.data(), gate.size(), out.data());
    for (size_t i = 0; i < gate.size(); ++i) {
      INFO("gate " << gate[i] << " out " << out[i]);
      if (gate[i] <= 0)
        CHECK(std::abs(out[i]) <= 1e-8 * std::max(1.0f, std::abs(gate[i])));
      else
        CHECK(out[i] == doctest::Approx(gate[i]));
    }
  }
}

TEST_CASE("ops: rotation keeps each pair's length and agrees with the definition") {
  Rng rng(test::seed());
  for (const Kernels* kernels : usable())
    for (size_t half : {1, 4, 8, 16, 24, 32, 40, 64, 128}) {
      INFO("variant " << kernels->name << " half " << half);
      auto want = values(rng, 2 * half), got = want;
      std::vector<float> c(half), s(half);
      for (size_t i = 0; i < half; ++i) {
        const double angle = rng.uniform() * 1000;
        c[i] = static_cast<float>(std::cos(angle));
        s[i] = static_cast<float>(std::sin(angle));
      }
      const auto before = got;
      ref().rope(want.data(), c.data(), s.data(), half);
      kernels->rope(got.data(), c.data(), s.data(), half);
      for (size_t i = 0; i < half; ++i) {
        const double length = std::hypot(before[i], before[i + half]);
        CHECK(std::hypot(got[i], got[i + half]) == doctest::Approx(length).epsilon(1e-6));
        CHECK(std::abs(got[i] - want[i]) <= 4 * kUlp * length);
        CHECK(std::abs(got[i + half] - want[i + half]) <= 4 * kUlp * length);
      }
    }
}

TEST_CASE("ops: bf16 conversion is bit-equal in every variant, NaN and infinity included") {
  Rng rng(test::seed());
  const float specials[] = {0.0f, -0.0f, INFINITY, -INFINITY, NAN, 3.4028235e38f, 1.00390625f, 1.01171875f, 1e-38f};
  for (const Kernels* kernels : usable())
    for (size_t n : kSizes) {
      INFO("variant " << kernels->name << " n " << n);
      auto x = values(rng, n);
      for (size_t i = 0; i < n && i < std::size(specials); ++i) x[n - 1 - i] = specials[i];
      std::vector<bf16_t> want(n), got(n);
      ref().to_bf16(x.data(), n, want.data());
      kernels->to_bf16(x.data(), n, got.data());
      CHECK(got == want);
      std::vector<float> wide(n);
      kernels->from_bf16(got.data(), n, wide.data());
      for (size_t i = 0; i < n; ++i)
        if (!std::isnan(x[i])) CHECK(wide[i] == bf16_to_f32(want[i]));
    }
}

TEST_CASE("ops: max ignores NaN unless there is nothing else, and sum_exp is exact to 1e-6") {
  Rng rng(test::seed());
  for (const Kernels* kernels : usable())
    for (size_t n : kSizes) {
      INFO("variant " << kernels->name << " n " << n);
      auto x = values(rng, n, 10);
      if (n > 2) x[rng.below(n)] = -INFINITY;
      const float top = ref().max(x.data(), n);
      CHECK(kernels->max(x.data(), n) == top);
      CHECK(kernels->sum_exp(x.data(), top, n) == doctest::Approx(ref().sum_exp(x.data(), top, n)).epsilon(1e-6));
      auto y = x;
      const size_t at = rng.below(n);
      y[at] = NAN;
      const float without = ref().max(y.data(), n), got = kernels->max(y.data(), n);
      CHECK((got == without || (std::isnan(got) && std::isnan(without))));
    }
}

TEST_CASE("ops: products agree with double for every shape, dtype and variant") {
  INFO("seed " << test::seed());
  Rng rng(test::seed());
  struct Shape {
    size_t n, k;
  };
  constexpr Shape kShapes[] = {{1, 1},    {64, 64},   {65, 33},  {130, 48},  {256, 96},
                               {63, 256}, {200, 100}, {448, 64}, {192, 512}, {130, 544}};
  for (const Kernels* kernels : usable())
    for (Dtype dtype : {Dtype::f32, Dtype::bf16})
      for (const Shape shape : kShapes) {
        INFO("variant " << kernels->name << " " << to_string(dtype) << " n " << shape.n << " k " << shape.k);
        Parallel parallel(2);
        const auto w = values(rng, shape.n * shape.k);
        const WeightRows part{w.data(), Dtype::f32, shape.n};
        const auto packed = PackedMatrix::pack(parallel, {&part, 1}, shape.k, dtype);
        REQUIRE_OK(packed);
        Matmul matmul(*kernels, parallel);
        REQUIRE_OK(matmul.prepare(*packed));
        const size_t tiles = 2, rows = tiles * kTileRows;
        const auto x = values(rng, rows * shape.k);
        std::vector<float> tiled(rows * shape.n, NAN), rowwise(rows * shape.n, NAN);
        matmul.prefill(*packed, x.data(), tiles, tiled.data());
        matmul.decode(*packed, x.data(), rows, rowwise.data());
        const size_t stride = shape.k + 3;
        std::vector<float> apart(rows * stride, NAN), same(rowwise.size());
        for (size_t row = 0; row < rows; ++row)
          std::copy_n(x.data() + row * shape.k, shape.k, apart.data() + row * stride);
        matmul.decode(*packed, apart.data(), rows, same.data(), stride);
        CHECK(same == rowwise);
        std::vector<double> left(x.begin(), x.end()), right(shape.n * shape.k);
        for (double& a : left)
          if (dtype == Dtype::bf16) a = bf16_to_f32(f32_to_bf16(static_cast<float>(a)));
        for (size_t i = 0; i < right.size(); ++i) right[i] = packed->at(i / shape.k, i % shape.k);
        double worst = 0;
        for (size_t r = 0; r < rows; ++r)
          for (size_t c = 0; c < shape.n; ++c) {
            double sum = 0, magnitude = 0;
            for (size_t i = 0; i < shape.k; ++i) {
              const double term = left[r * shape.k + i] * right[c * shape.k + i];
              sum += term;
              magnitude += std::abs(term);
            }
            const double bound = magnitude * kUlp * 4 * std::sqrt(static_cast<double>(shape.k)) + 1e-30;
            worst = std::max(worst, std::abs(tiled[r * shape.n + c] - sum) / bound);
            worst = std::max(worst, std::abs(rowwise[r * shape.n + c] - sum) / bound);
          }
        CHECK(worst <= 1);
      }
}

TEST_CASE("ops: a row's product has the same bits in every batch, tile count and thread count") {
  Rng rng(test::seed());
  for (const Kernels* kernels : usable()) {
    if (kernels == &ref()) continue;
    for (Dtype dtype : {Dtype::f32, Dtype::bf16})
      for (size_t n : {256, 300})
        for (size_t k : {50, 544}) {
          INFO("variant " << kernels->name << " " << to_string(dtype) << " n " << n << " k " << k);
          Parallel one(1), three(3);
          const auto w = values(rng, n * k);
          const WeightRows part{w.data(), Dtype::f32, n};
          const auto packed = PackedMatrix::pack(one, {&part, 1}, k, dtype);
          REQUIRE_OK(packed);
          Matmul single(*kernels, one), many(*kernels, three);
          REQUIRE_OK(single.prepare(*packed));
          REQUIRE_OK(many.prepare(*packed));
          const size_t tiles = 11, rows = tiles * kTileRows;
          const auto x = values(rng, rows * k);
          std::vector<float> all(rows * n), piece(rows * n), batch(rows * n), alone(n);
          single.prefill(*packed, x.data(), tiles, all.data());
          for (size_t first = 0, step = 1; first < tiles; first += step, step = std::min(step + 1, tiles - first))
            many.prefill(*packed, x.data() + first * kTileRows * k, step, piece.data() + first * kTileRows * n);
          CHECK(all == piece);
          for (size_t count : {1, 2, 3, 5, 8, 13, 40}) {
            many.decode(*packed, x.data(), count, batch.data());
            for (size_t r = 0; r < count; ++r) {
              single.decode(*packed, x.data() + r * k, 1, alone.data());
              CHECK(std::equal(alone.begin(), alone.end(), batch.begin() + static_cast<std::ptrdiff_t>(r * n)));
            }
          }
        }
  }
}

}  // namespace variants_property
