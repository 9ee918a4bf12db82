#include "model/experts.h"

#include <cmath>
#include <limits>

#include "test.h"

using namespace mc::model;

namespace {

std::vector<Route> routed(const std::vector<float>& scores, uint32_t top_k, bool normalise) {
  std::vector<Route> out;
  route(scores, top_k, normalise, out);
  return out;
}

}  // namespace

TEST_CASE("model/experts: the best experts are chosen, in ascending order, with their softmax as shares") {
  const auto chosen = routed({1, 3, 0, 2}, 2, false);
  REQUIRE(chosen.size() == 2);
  CHECK(chosen[0].expert == 1);
  CHECK(chosen[1].expert == 3);
  const double sum = std::exp(1.0) + std::exp(3.0) + 1 + std::exp(2.0);
  CHECK(chosen[0].share == doctest::Approx(std::exp(3.0) / sum).epsilon(1e-6));
  CHECK(chosen[1].share == doctest::Approx(std::exp(2.0) / sum).epsilon(1e-6));
  const auto whole = routed({1, 3, 0, 2}, 2, true);
  CHECK(whole[0].share + whole[1].share == doctest::Approx(1).epsilon(1e-6));
  CHECK(whole[0].share / whole[1].share == doctest::Approx(std::exp(1.0)).epsilon(1e-6));
}

TEST_CASE("model/experts: ties go to the lower expert") {
  const auto chosen = routed({5, 7, 7, 7, 5}, 2, true);
  CHECK(chosen[0].expert == 1);
  CHECK(chosen[1].expert == 2);
}

TEST_CASE("model/experts: scores that are not finite choose somebody and give finite shares") {
  constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();
  const auto nan = routed({kNan, 2, kNan, 1}, 2, true);
  CHECK(nan[0].expert == 1);
  CHECK(nan[1].expert == 3);
  for (const auto& scores : {std::vector<float>{kNan, kNan, kNan}, {-kInf, -kInf, -kInf}})
    for (const Route& one : routed(scores, 2, false)) CHECK(std::isfinite(one.share));
}
