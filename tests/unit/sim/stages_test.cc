#include "sim/stages.h"

#include "test.h"

namespace stages_test {

using namespace mc;
using namespace mc::sim;

TEST_CASE("sim/stages: a pipeline ends a prompt after its chunks and the way through the other stages") {
  sched::Profile profile = *sched::builtin_profile("a800-llama3-70b");
  profile.paths.net.bytes_per_s = 1e300, profile.paths.net.latency_s = 0;
  const uint64_t chunk = profile.chunk_tokens;
  const auto work_s = [&](uint64_t begin) {
    return profile.chunk_s + profile.chunk_compute_s(static_cast<double>(begin), static_cast<double>(begin + chunk)) +
           (begin == 0 ? profile.fixed_s() : 0);
  };
  Stages alone(2);
  CHECK(alone.is_pipeline());
  CHECK(alone.compute(profile, 0, chunk, 5) == doctest::Approx(5 + work_s(0)));
  CHECK(alone.free_s() == doctest::Approx(5 + work_s(0) / 2));
  Stages two(2);
  const double end_s = two.compute(profile, 0, 2 * chunk, 0);
  // The second chunk follows the first one through the stages, later or as soon as it is dearer.
  CHECK(end_s == doctest::Approx(work_s(0) / 2 + std::max(work_s(0), work_s(chunk)) / 2 + work_s(chunk) / 2));
  CHECK(two.free_s() == doctest::Approx((work_s(0) + work_s(chunk)) / 2));
  two.reset(7);
  CHECK(two.free_s() == 7);
  CHECK(two.compute(profile, 0, chunk, 7) == doctest::Approx(7 + work_s(0)));
}

TEST_CASE("sim/stages: a short chunk moves its own activations, and loading a reused prefix takes time once") {
  sched::Profile profile;
  profile.layers = 4, profile.chunk_tokens = 100, profile.activation_bytes_per_token = 10;
  profile.paths.net = {.bytes_per_s = 100, .latency_s = 0.5};
  profile.cost = {.prefill_s = 2, .prefill_s_per_token = 0.01};
  Stages two(2);
  // 30 tokens: 2.3 s of compute and 300 bytes.
  CHECK(two.compute(profile, 0, 30, 0) == doctest::Approx(2.3 + 0.5 + 3));
  profile.reused_s_per_token = 0.1;
  two.reset(0);
  CHECK(two.compute(profile, 60, 90, 0) == doctest::Approx(2.3 + 60 * 0.1 + 0.5 + 3));
}

TEST_CASE("sim/stages: activations that take longer than a stage go to the next stage one chunk after the other") {
  sched::Profile profile;
  profile.layers = 4, profile.chunk_tokens = 100, profile.activation_bytes_per_token = 10;
  profile.paths.net = {.bytes_per_s = 100, .latency_s = 0.5};  // 10 s a chunk
  profile.cost = {.prefill_s = 0, .prefill_s_per_token = 0.01};
  Stages two(2);
  CHECK(two.compute(profile, 0, 300, 0) == doctest::Approx(0.5 + 3 * 10 + 0.5 + 0.5));
  two.reset(100);
  CHECK(two.compute(profile, 0, 100, 100) == doctest::Approx(100 + 0.5 + 10 + 0.5 + 0.5));
}

TEST_CASE("sim/stages: the stage that holds most layers sets the pace of a pipeline") {
  sched::Profile profile;
  profile.layers = 4, profile.chunk_tokens = 100, profile.paths.net.latency_s = 0;
  profile.cost = {.prefill_s = 0, .prefill_s_per_token = 0.01};
  Stages three(3);  // 1, 1 and 2 layers, and chunks of 1 s
  CHECK(three.compute(profile, 0, 400, 0) == doctest::Approx(0.25 + 0.25 + 4 * 0.5));
}

}  // namespace stages_test
