#include "sched/pipeline.h"

#include <algorithm>

#include "base/extent.h"
#include "test.h"

using namespace mc;
using namespace mc::sched;

TEST_CASE("sched/pipeline: stages have the shares of the layers that a real pipeline gives them, and together all") {
  for (const uint32_t layers : {1u, 2u, 4u, 28u, 80u}) {
    for (uint32_t stages = 1; stages <= 8; ++stages) {
      CAPTURE(layers);
      CAPTURE(stages);
      double sum = 0, widest = 0;
      for (uint32_t stage = 0; stage < stages; ++stage) {
        const double share = stage_share(layers, stage, stages);
        if (stages <= layers)
          CHECK(share * layers == doctest::Approx(static_cast<double>(stage_layers(layers, stage, stages).count())));
        sum += share, widest = std::max(widest, share);
      }
      CHECK(sum == doctest::Approx(1));
      CHECK(widest == doctest::Approx(widest_stage_share(layers, stages)));
    }
  }
}

TEST_CASE("sched/pipeline: a pipeline announces one stage's time for each token, and steps as before") {
  Cost cost;
  cost.prefill_s_per_token2 = 3e-9;
  const Cost two = pipeline_cost(cost, 2);
  CHECK(two.prefill_s_per_token == doctest::Approx(cost.prefill_s_per_token / 2));
  CHECK(two.prefill_s_per_token2 == doctest::Approx(cost.prefill_s_per_token2 / 2));
  CHECK(two.prefill_s == cost.prefill_s);
  CHECK(two.step(4, 1000) == cost.step(4, 1000));
  CHECK(pipeline_cost(cost, 1).prefill(1000, 0) == cost.prefill(1000, 0));
}
