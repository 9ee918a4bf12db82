#include "sched/predict.h"

#include <cmath>

#include "base/rng.h"
#include "test.h"

using namespace mc;
using namespace mc::sched;

namespace {

Cost announced() {
  Cost cost;
  cost.prefill_s = 0.01, cost.prefill_s_per_token = 1e-4, cost.prefill_s_per_token2 = 0;
  cost.decode_s = 0.01, cost.decode_s_per_row = 1e-3, cost.decode_s_per_kv_token = 1e-8;
  cost.read_bytes_per_s = 1e9;
  return cost;
}

}  // namespace

TEST_CASE("sched/predict: a model that was announced wrong in shape is learnt within 40 requests") {
  Cost truth = announced();
  truth.prefill_s = 0.03, truth.prefill_s_per_token = 0.5e-4, truth.prefill_s_per_token2 = 2e-8;
  Predictor p(announced());
  Rng rng(test::seed());
  for (int i = 0; i < 200; ++i) {
    const double n = 100 + static_cast<double>(rng.below(8000)), reused = rng.below(3) == 0 ? n / 2 : 0;
    p.prefilled(n, reused, truth.prefill(n, reused));
  }
  CHECK(p.cost().prefill(1000, 0) == doctest::Approx(truth.prefill(1000, 0)).epsilon(0.06));
  CHECK(p.cost().prefill(8000, 4000) == doctest::Approx(truth.prefill(8000, 4000)).epsilon(0.06));
  CHECK(p.prefill_error().mape() < 0.06);
}

TEST_CASE("sched/predict: an error is |predicted / measured - 1|, whichever way the prediction is off") {
  const double predicted_s = announced().prefill(1000, 0);
  for (const auto& [measured, error] : {std::pair{2.0, 0.5}, {1.0, 0.0}, {0.5, 1.0}}) {
    CAPTURE(measured);
    Predictor p(announced());
    CHECK(p.prefill_error().mape() == 0);  // no prompt yet
    p.prefilled(1000, 0, measured * predicted_s);
    CHECK(p.prefill_error().mape() == doctest::Approx(error));
  }
}

TEST_CASE("sched/predict: requests of one length do not spoil what is said of others") {
  Cost truth = announced();
  truth.prefill_s *= 2, truth.prefill_s_per_token *= 2;
  Predictor p(announced());
  for (int i = 0; i < 100; ++i) p.prefilled(512, 0, truth.prefill(512, 0));
  for (double n : {64.0, 512.0, 4096.0, 16384.0})
    CHECK(p.cost().prefill(n, 0) == doctest::Approx(truth.prefill(n, 0)).epsilon(0.02));
}

TEST_CASE("sched/predict: noise of 10 % costs little more than 10 % of error, and no bias") {
  Predictor p(announced());
  Rng rng(test::seed());
  const Cost truth = announced();
  for (int i = 0; i < 400; ++i) {
    const double rows = 1 + static_cast<double>(rng.below(20)), kv = 1000 * rows;
    p.stepped(rows, kv, truth.step(rows, kv) * (0.9 + 0.2 * rng.uniform()));
  }
  CHECK(p.step_error().mape() < 0.1);
  CHECK(std::abs(p.step_error().bias()) < 0.05);
  CHECK(p.cost().step(10, 10000) == doctest::Approx(truth.step(10, 10000)).epsilon(0.05));
}

TEST_CASE("sched/predict: an absurd sample bends the prediction by less than a factor of four, for a while") {
  Predictor p(announced());
  for (int i = 0; i < 50; ++i) p.prefilled(1000, 0, announced().prefill(1000, 0));
  const double before = p.cost().prefill(1000, 0);
  p.prefilled(1000, 0, 1e6);
  CHECK(p.cost().prefill(1000, 0) < 4 * before);
  for (int i = 0; i < 50; ++i) p.prefilled(1000, 0, announced().prefill(1000, 0));
  CHECK(p.cost().prefill(1000, 0) == doctest::Approx(before).epsilon(0.1));
  p.prefilled(1000, 0, -1);
  p.prefilled(1000, 0, NAN);
  CHECK(std::isfinite(p.cost().prefill(1000, 0)));
}
