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
    return profile.chunk_s +
           profile.chunk_compute_s(static_cast<double>(begin), static_cast<double>(begin + chunk)) +
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

}  // namespace stages_test
