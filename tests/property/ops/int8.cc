// Weights in int8: every variant's kernels against the definition, quantising against its bound, and
// products of both shapes against the sum over the weights as they were quantised.
#include "ops/int8.h"

#include <cmath>
#include <limits>
#include <vector>

#include "base/parallel.h"
#include "base/rng.h"
#include "ops/matmul.h"
#include "test.h"
#include "values.h"

namespace int8 {

using namespace mc;
using namespace mc::ops;

namespace {

std::vector<std::byte> panel_of(const std::vector<float>& weights, size_t rows, size_t k) {
  std::vector<std::byte> panel(int8_panel_bytes(k));
  quantise_panel(weights.data(), rows, k, panel.data());
  return panel;
}

constexpr size_t kDepths[] = {1, 2, 15, 127, 128, 129, 256, 300, 1030};

}  // namespace

TEST_CASE("ops/int8: every variant's panel product agrees with the definition, alone and in a batch") {
  Rng rng(test::seed());
  INFO("seed " << test::seed());
  for (const Int8Kernels* kernels : int8_variants()) {
    if (!kernels->supported()) continue;
    for (size_t k : kDepths)
      for (size_t columns : {size_t{1}, size_t{17}, size_t{63}, size_t{64}}) {
        INFO(kernels->name << " k " << k << " columns " << columns);
        const auto weights = values(rng, columns * k);
        const auto panel = panel_of(weights, columns, k);
        constexpr size_t kRows = 8, kGuard = 3;
        const size_t stride = columns + kGuard;
        const auto x = values(rng, kRows * k);
        std::vector<float> want(kRows * stride, 7), got(want), alone(stride, 7);
        int8_variants()[0]->panel(x.data(), k, kRows, panel.data(), k, want.data(), stride, columns);
        kernels->panel(x.data(), k, kRows, panel.data(), k, got.data(), stride, columns);
        for (size_t row = 0; row < kRows; ++row) {
          kernels->panel(x.data() + row * k, k, 1, panel.data(), k, alone.data(), stride, columns);
          for (size_t c = 0; c < stride; ++c) {
            if (c >= columns) {
              CHECK(got[row * stride + c] == 7);  // nothing is written beyond the columns
              continue;
            }
            double terms = 0;
            for (size_t i = 0; i < k; ++i) terms += std::abs(double{x[row * k + i]} * weights[c * k + i]);
            const double bound = 4 * kUlp * std::sqrt(static_cast<double>(k) + 4) * (terms * 1.1 + 1e-30);
            CHECK(std::abs(double{got[row * stride + c]} - want[row * stride + c]) <= bound);
            CHECK(alone[c] == got[row * stride + c]);
          }
        }
      }
  }
}

TEST_CASE("ops/int8: quantising moves no weight by more than half a step, and every variant widens alike") {
  Rng rng(test::seed());
  INFO("seed " << test::seed());
  for (size_t k : kDepths) {
    const size_t rows = 1 + rng.below(64);
    auto weights = values(rng, rows * k);
    if (rng.chance(0.5))
      std::fill(weights.begin(), weights.begin() + static_cast<std::ptrdiff_t>(std::min(k, size_t{128})), 0.0f);
    const auto panel = panel_of(weights, rows, k);
    std::vector<float> want(k * kPanelColumns), got(want.size());
    int8_variants()[0]->widen(panel.data(), k, want.data());
    for (const Int8Kernels* kernels : int8_variants()) {
      if (!kernels->supported()) continue;
      kernels->widen(panel.data(), k, got.data());
      CHECK(got == want);
    }
    const float* scales = int8_scales(panel.data(), k);
    for (size_t row = 0; row < rows; ++row)
      for (size_t i = 0; i < k; ++i) {
        const double step = scales[i / kInt8Group * kPanelColumns + row];
        CHECK(std::abs(double{want[i * kPanelColumns + row]} - weights[row * k + i]) <= step * 0.50001);
      }
  }
}

TEST_CASE("ops/int8: a weight that is not finite makes its output not a number") {
  std::vector<float> weights(2 * 200, 1.0f);
  weights[150] = std::numeric_limits<float>::infinity();
  const auto panel = panel_of(weights, 2, 200);
  const std::vector<float> x(200, 1.0f);
  for (const Int8Kernels* kernels : int8_variants()) {
    if (!kernels->supported()) continue;
    float y[2] = {};
    kernels->panel(x.data(), 200, 1, panel.data(), 200, y, 2, 2);
    CHECK(std::isnan(y[0]));
    CHECK(y[1] == doctest::Approx(200));
  }
}

TEST_CASE("ops/int8: prefill and decode agree with the weights as they were quantised, in every variant") {
  Rng rng(test::seed());
  INFO("seed " << test::seed());
  for (const Kernels* kernels : variants()) {
    if (!kernels->supported()) continue;
    for (size_t n : {40, 256})
      for (size_t k : {50, 544}) {
        INFO(kernels->name << " n " << n << " k " << k);
        Parallel parallel(2);
        const auto first = values(rng, n * k), second = values(rng, 3 * k);
        const WeightRows parts[] = {{first.data(), Dtype::f32, n}, {second.data(), Dtype::f32, 3}};
        const auto packed = PackedMatrix::quantise(parallel, parts, k);
        REQUIRE_OK(packed);
        CHECK(packed->is_int8());
        CHECK(packed->bytes() >= PackedMatrix::quantised_bytes(n + 3, k));
        Matmul matmul(*kernels, parallel);
        REQUIRE_OK(matmul.prepare(*packed));
        const auto x = values(rng, kTileRows * k);
        std::vector<float> tile(kTileRows * (n + 3)), rows(5 * (n + 3)), weight(k);
        matmul.prefill(*packed, x.data(), 1, tile.data());
        matmul.decode(*packed, x.data(), 5, rows.data());
        for (size_t out = 0; out < n + 3; ++out) {
          packed->row(out, weight.data());
          CHECK(weight[k - 1] == packed->at(out, k - 1));
          for (size_t row = 0; row < 5; ++row) {
            double sum = 0, terms = 0;
            for (size_t i = 0; i < k; ++i) {
              sum += double{x[row * k + i]} * weight[i];
              terms += std::abs(double{x[row * k + i]} * weight[i]);
            }
            const double bound = 4 * kUlp * std::sqrt(static_cast<double>(k) + 4) * (terms + 1e-30);
            CHECK(std::abs(tile[row * (n + 3) + out] - sum) <= bound);
            CHECK(std::abs(rows[row * (n + 3) + out] - sum) <= bound);
          }
        }
      }
  }
}

}  // namespace int8
