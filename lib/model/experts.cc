#include "model/experts.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/assert.h"

namespace mc::model {

void route(std::span<const float> scores, uint32_t top_k, bool normalise, std::vector<Route>& out) {
  MC_ASSERT(top_k >= 1 && top_k <= scores.size());
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  const auto score = [&](uint32_t expert) { return std::isnan(scores[expert]) ? kNone : scores[expert]; };
  out.resize(scores.size());
  for (uint32_t expert = 0; expert < scores.size(); ++expert) out[expert] = {expert, score(expert)};
  std::partial_sort(out.begin(), out.begin() + top_k, out.end(), [](const Route& a, const Route& b) {
    return a.share != b.share ? a.share > b.share : a.expert < b.expert;
  });
  const float best = out[0].share;
  // Without a finite score all experts have the same weight.
  const auto weight = [&](float value) { return best == kNone ? 1.0f : std::exp(value - best); };
  float sum = 0;
  if (!normalise)
    for (uint32_t expert = 0; expert < scores.size(); ++expert) sum += weight(score(expert));
  out.resize(top_k);
  std::sort(out.begin(), out.end(), [](const Route& a, const Route& b) { return a.expert < b.expert; });
  for (Route& one : out) one.share = weight(one.share);
  if (normalise)
    for (const Route& one : out) sum += one.share;
  for (Route& one : out) one.share /= sum;
}

}  // namespace mc::model
