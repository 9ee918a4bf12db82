#include "sim/stretch.h"

#include "base/rng.h"
#include "test.h"

namespace stretch_test {

using namespace mc;
using namespace mc::sim;

TEST_CASE("sim/stretch: its seconds are the sum of its steps, whole or in parts") {
  INFO("seed ", test::seed());
  Rng rng(test::seed());
  for (int round = 0; round < 200; ++round) {
    const uint64_t steps = 1 + rng.below(200);
    const double first = 1e-3 * static_cast<double>(1 + rng.below(50));
    const double growth = rng.chance(0.2) ? 0 : 1e-6 * static_cast<double>(rng.below(100));
    Stretch s;
    s.begin(10, steps, first, growth);
    double sum = 0;
    for (uint64_t i = 0; i < steps; ++i) sum += first + growth * static_cast<double>(i);
    CHECK(s.end_s() == doctest::Approx(10 + sum).epsilon(1e-12));
    const double end = s.end_s();
    const uint64_t part = rng.below(steps + 1);
    const double seconds = s.seconds_of(part);
    s.take(part, seconds);
    CHECK(s.steps() == steps - part);
    CHECK(s.end_s() == end);
    CHECK(s.begin_s() == doctest::Approx(10 + seconds));
    CHECK(s.first_s() == doctest::Approx(first + growth * static_cast<double>(part)));
    CHECK(s.begin_s() + s.seconds_of(s.steps()) == doctest::Approx(end).epsilon(1e-12));
  }
}

TEST_CASE("sim/stretch: the steps within a time are the most that end by then") {
  INFO("seed ", test::seed());
  Rng rng(test::seed());
  for (int round = 0; round < 500; ++round) {
    Stretch s;
    s.begin(0, 1 + rng.below(100), 0.01, round % 3 == 0 ? 0 : 1e-5 * static_cast<double>(rng.below(1000)));
    const double seconds = 2e-3 * static_cast<double>(rng.below(1000));
    const uint64_t count = s.steps_within(seconds);
    REQUIRE(count <= s.steps());
    CHECK(s.seconds_of(count) <= seconds);
    if (count < s.steps()) CHECK(s.seconds_of(count + 1) > seconds - 1e-9);
  }
}

TEST_CASE("sim/stretch: a cut ends the stretch with its next step, and a stretch of one step has no cut") {
  Stretch s;
  s.begin(5, 3, 0.5, 0.25);
  CHECK(s.end_s() == 5 + 0.5 + 0.75 + 1.0);
  s.take(1, 0.5);
  CHECK(s.cut());
  CHECK(s.steps() == 1);
  CHECK(s.end_s() == 5.5 + 0.75);
  CHECK_FALSE(s.cut());
}

TEST_CASE("sim/stretch: without a stretch there is no end") {
  Stretch s;
  CHECK(s.end_s() == Stretch::kNever);
  s.begin(0, 2, 1, 0);
  s.clear();
  CHECK(s.end_s() == Stretch::kNever);
  CHECK(s.steps() == 0);
  CHECK_FALSE(s.cut());
}

}  // namespace stretch_test
