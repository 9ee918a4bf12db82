#include "base/histogram.h"

#include <algorithm>
#include <cmath>

#include "base/rng.h"
#include "test.h"

using namespace mc;

TEST_CASE("base/histogram: the q-quantile of N samples is the ceil(qN)-th smallest") {
  Histogram h;
  for (const double v : {5.0, 1.0, 4.0, 2.0, 3.0}) h.record(v);
  CHECK(h.quantile(0) == 1);
  CHECK(h.quantile(0.2) == 1);
  CHECK(h.quantile(0.21) == 2);
  CHECK(h.quantile(0.5) == 3);
  CHECK(h.quantile(0.99) == 5);
  CHECK(h.quantile(1) == 5);
  CHECK(h.mean() == 3);
  CHECK(h.stddev() == doctest::Approx(std::sqrt(2.0)));
  CHECK(quantile_rank(0.07, 100) == 7);  // 0.07 * 100 > 7 in binary
  CHECK(Histogram().quantile(0.5) == 0);
}

TEST_CASE("base/histogram: beyond its exact size a quantile is within 0.8 % of the true sample") {
  Rng rng(test::seed());
  Histogram h;
  std::vector<double> all;
  for (int i = 0; i < 20'000; ++i) {
    all.push_back(std::exp(8 * rng.normal()));
    h.record(all.back());
  }
  std::sort(all.begin(), all.end());
  CHECK_FALSE(h.exact());
  for (const double q : {0.0, 0.01, 0.5, 0.9, 0.99, 0.999, 1.0}) {
    const double truth = quantile_sorted(all, q);
    INFO("q " << q << " truth " << truth);
    CHECK(std::fabs(h.quantile(q) - truth) <= 0.008 * truth);
  }
}

TEST_CASE("base/histogram: merging parts equals recording the whole") {
  Rng rng(test::seed());
  for (const int total : {0, 1, 100, 4096, 4097, 12'000}) {
    Histogram whole, left, right;
    for (int i = 0; i < total; ++i) {
      const double v = rng.exponential(3.0);
      whole.record(v);
      (rng.chance(0.3) ? left : right).record(v);
    }
    left.merge(right);
    CHECK(left.count() == whole.count());
    for (const double q : {0.1, 0.5, 0.99, 1.0}) CHECK(left.quantile(q) == whole.quantile(q));
    CHECK(left.stddev() == doctest::Approx(whole.stddev()));
  }
  Histogram twice;
  twice.record(1);
  twice.record(3);
  twice.merge(twice);
  CHECK(twice.count() == 4);
  CHECK(twice.quantile(0.5) == 1);
}

TEST_CASE("base/histogram: zero, negative and NaN do no harm") {
  Histogram h;
  h.record(0);
  h.record(-1);
  h.record(std::nan(""));
  CHECK(h.count() == 2);
  CHECK(h.max() == 0);
}
