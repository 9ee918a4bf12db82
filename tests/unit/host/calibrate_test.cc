// The cost that a node measures at start, with mc-tiny. Times differ from run to run: the tests ask which coefficients
// are measured, and that they are times.
#include "host/calibrate.h"

#include "model/find.h"
#include "test.h"

namespace calibrate_test {

using namespace mc;
using namespace mc::host;

namespace {

struct Tiny {
  explicit Tiny(uint32_t chunk_tokens = 256) : chunk(chunk_tokens) {}
  uint32_t chunk;
  Parallel parallel{1};
  model::Model model = model::Model::open(model::find_model("mc-tiny").value(), {.dtype = "f32"}, parallel).value();
  model::Runner runner =
      model::Runner::open(model, parallel, {.block_tokens = 64, .max_chunk_tokens = chunk, .max_batch = 1}).value();
};

/// Coefficients that no measurement gives.
sched::Cost unmeasured() {
  return {.decode_s = 7, .decode_s_per_row = 8, .prefill_s = 9, .prefill_s_per_token = 10, .prefill_s_per_token2 = 11};
}

}  // namespace

TEST_CASE("host/calibrate: a prefill node measures prompts, and no decode step") {
  Tiny tiny;
  sched::Cost cost = unmeasured();
  REQUIRE_OK(measure_prefill(tiny.runner, 5s, cost));
  CHECK(cost.prefill_s_per_token + cost.prefill_s_per_token2 > 0);
  CHECK(cost.prefill(256, 0) > 0);
  CHECK(cost.prefill(256, 0) < 5);
  CHECK(cost.decode_s == 7);
  CHECK(cost.decode_s_per_row == 8);
}

TEST_CASE("host/calibrate: chunks shorter than the measured prompts give a cost that grows with the prompt") {
  Tiny tiny(64);
  sched::Cost cost = unmeasured();
  REQUIRE_OK(measure_prefill(tiny.runner, 5s, cost));
  CHECK(cost.prefill_s != 9);
  CHECK(cost.prefill(256, 0) > cost.prefill(64, 0));
  CHECK(cost.prefill(256, 0) < 5);
}

TEST_CASE("host/calibrate: a decode node measures decode steps, and no prompt") {
  Tiny tiny;
  sched::Cost cost = unmeasured();
  REQUIRE_OK(measure_decode(tiny.runner, 5s, cost));
  CHECK(cost.step(1, 0) > 0);
  CHECK(cost.step(1, 0) < 5);
  CHECK(cost.prefill_s == 9);
  CHECK(cost.prefill_s_per_token == 10);
  CHECK(cost.prefill_s_per_token2 == 11);
}

TEST_CASE("host/calibrate: a model far too slow for the budget is measured by one short pass, in proportion") {
  Tiny tiny;
  sched::Cost cost = unmeasured();
  REQUIRE_OK(measure_prefill(tiny.runner, 1ns, cost));
  CHECK(cost.prefill_s == 0);
  CHECK(cost.prefill_s_per_token > 0);
  CHECK(cost.prefill_s_per_token2 == 0);
  cost = unmeasured();
  REQUIRE_OK(measure_decode(tiny.runner, 1ns, cost));
  CHECK(cost.step(1, 0) < 5);
}

}  // namespace calibrate_test
