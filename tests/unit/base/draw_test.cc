// The integer arithmetic of a draw, against exp() in long double.
#include "base/draw.h"

#include <cmath>
#include <limits>

#include "base/rng.h"
#include "test.h"

using namespace mc;

TEST_CASE("base/draw: a weight is exp() of the distance in units of 2^-40, within 2, and 0 far below the likeliest") {
  Rng rng(test::seed());
  CAPTURE(test::seed());
  for (int i = 0; i < 100000; ++i) {
    const auto temperature = static_cast<float>(0.01 + rng.uniform() * 4);
    const auto top = static_cast<float>(rng.normal() * 10);
    const auto logit = top - static_cast<float>(rng.exponential(5 * temperature));
    const long double distance = static_cast<long double>(logit) - top;
    const long double want = std::exp(distance / temperature) * static_cast<long double>(kDrawWeightOne);
    const uint64_t got = draw_weight(top, logit, draw_scale(temperature));
    CHECK(std::abs(static_cast<long double>(got) - want) <= 2);
  }
  constexpr float kInf = std::numeric_limits<float>::infinity();
  CHECK(draw_weight(3, 3, draw_scale(1)) == kDrawWeightOne);
  CHECK(draw_weight(0.0f, -0.0f, draw_scale(1)) == kDrawWeightOne);
  CHECK(draw_weight(3, -kInf, draw_scale(1)) == 0);
  CHECK(draw_weight(3, NAN, draw_scale(1)) == 0);
  CHECK(draw_weight(3, 4, draw_scale(1)) == kDrawWeightOne);  // a kernel without its barrier saw another largest logit
  CHECK(draw_weight(3, -1000, draw_scale(1)) == 0);
  CHECK(draw_weight(3, 2.9999f, draw_scale(1e-38f)) == 0);
  CHECK(draw_weight(3e38f, -3e38f, draw_scale(3e38f)) > 0);
}

TEST_CASE("base/draw: a larger logit never weighs less") {
  Rng rng(test::seed());
  CAPTURE(test::seed());
  for (int i = 0; i < 100000; ++i) {
    const double scale = draw_scale(static_cast<float>(0.01 + rng.uniform() * 4));
    const auto logit = static_cast<float>(-rng.exponential(3));
    const float next = std::nextafter(logit, 0.0f);
    CHECK(draw_weight(0, logit, scale) <= draw_weight(0, next, scale));
  }
}

TEST_CASE("base/draw: targets lie below the total, and limits of the nucleus and of min_p at their edges") {
  const uint64_t total = uint64_t{1} << 62;
  CHECK(draw_target(0, total) == 0);
  CHECK(draw_target(1 - 0x1p-53, total) == total - (uint64_t{1} << 9));
  CHECK(draw_target(1 - 0x1p-53, 1) == 0);
  CHECK(draw_target(0.5, 7) == 3);
  CHECK(nucleus_weight(1e-30f, 1000) == 1);
  CHECK(nucleus_weight(0.5f, 1000) == 500);
  CHECK(least_weight(1) == kDrawWeightOne);
  CHECK(least_weight(2) == kDrawWeightOne);
  CHECK(least_weight(0.25f) == kDrawWeightOne / 4);
}
