// The sampler against the rules written down plainly: random logits with ties and infinities, random
// parameters, the same random number, the same token.
#include "ops/sample.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <vector>

#include "base/rng.h"
#include "test.h"

using namespace mc;
using namespace mc::ops;

namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

struct Draw {
  std::vector<float> logits;
  wire::Sampling params;
  std::vector<uint32_t> history, banned;
  size_t prompt_tokens = 0;
  uint64_t position = 0;
};

std::vector<float> changed_logits(const Draw& draw) {
  std::vector<float> logits = draw.logits;
  if (draw.params.has_penalties()) {
    std::map<uint32_t, int> answered;  // of every id seen: how often in the answer
    for (size_t i = 0; i < draw.history.size(); ++i) answered[draw.history[i]] += i >= draw.prompt_tokens;
    for (const auto& [id, count] : answered) {
      if (id >= logits.size()) continue;
      const auto penalty = static_cast<float>(draw.params.repetition_penalty);
      const auto presence = static_cast<float>(draw.params.presence_penalty);
      const auto frequency = static_cast<float>(draw.params.frequency_penalty);
      logits[id] = logits[id] > 0 ? logits[id] / penalty : logits[id] * penalty;
      if (count > 0) logits[id] -= presence + frequency * static_cast<float>(count);
    }
  }
  for (const auto& [id, bias] : draw.params.logit_bias) logits[id] += static_cast<float>(bias);
  for (uint32_t id : draw.banned) logits[id] = kMinusInfinity;
  return logits;
}

uint32_t plain_draw(const Draw& draw) {
  const std::vector<float> logits = changed_logits(draw);
  const wire::Sampling& p = draw.params;
  std::vector<uint32_t> ids;
  for (uint32_t id = 0; id < logits.size(); ++id)
    if (logits[id] > kMinusInfinity) ids.push_back(id);
  const auto likelier = [&](uint32_t a, uint32_t b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; };
  const uint32_t best = *std::min_element(ids.begin(), ids.end(), likelier);
  if (p.temperature == 0) return best;
  const auto weight = [&](uint32_t id) {
    return std::exp((static_cast<double>(logits[id]) - logits[best]) / p.temperature);
  };
  const auto sum = [&] {
    double total = 0;
    for (uint32_t id : ids) total += weight(id);
    return total;
  };
  if (p.top_k > 0 && p.top_k < ids.size()) {
    std::sort(ids.begin(), ids.end(), likelier);
    ids.resize(p.top_k);
  }
  if (p.top_p < 1 || p.min_p > 0) {
    const double total = sum();
    std::sort(ids.begin(), ids.end(), likelier);
    double kept = 0;
    size_t count = 0;
    while (count < ids.size()) {
      const double w = weight(ids[count]);
      if (count > 0 && (kept >= p.top_p * total || w < p.min_p)) break;
      kept += w;
      ++count;
    }
    ids.resize(count);
  }
  const double target = philox_uniform(p.seed, p.stream, draw.position) * sum();
  double reached = 0;
  for (uint32_t id : ids)
    if ((reached += weight(id)) > target) return id;
  return ids.back();
}

Draw random_draw(Rng& rng) {
  Draw draw;
  const size_t vocab = 1 + rng.below(rng.chance(0.2) ? 3000 : 40);
  for (size_t i = 0; i < vocab; ++i) {
    auto logit = static_cast<float>(rng.normal() * 3);
    if (rng.chance(0.2)) logit = std::round(logit);  // ties
    if (rng.chance(0.05)) logit = kMinusInfinity;
    draw.logits.push_back(logit);
  }
  draw.logits[rng.below(vocab)] = 1;  // something can be drawn
  wire::Sampling& p = draw.params;
  p.temperature = rng.chance(0.2) ? 0.0f : static_cast<float>(0.1 + rng.uniform() * 3);
  if (rng.chance(0.4)) p.top_k = static_cast<uint32_t>(rng.below(12));
  if (rng.chance(0.4)) p.top_p = static_cast<float>(0.01 + rng.uniform() * 0.99);
  if (rng.chance(0.3)) p.min_p = static_cast<float>(rng.uniform());
  if (rng.chance(0.3)) p.repetition_penalty = static_cast<float>(0.3 + rng.uniform() * 2);
  if (rng.chance(0.3)) p.presence_penalty = static_cast<float>(rng.uniform() * 4 - 2);
  if (rng.chance(0.3)) p.frequency_penalty = static_cast<float>(rng.uniform() * 4 - 2);
  p.seed = rng.below(1000);
  p.stream = rng.below(4);
  draw.position = rng.below(100);
  for (size_t i = rng.below(20); i > 0; --i)
    draw.history.push_back(static_cast<uint32_t>(rng.below(vocab + 3)));  // some beyond the vocabulary
  draw.prompt_tokens = rng.below(draw.history.size() + 1);
  const auto id = [&] { return static_cast<uint32_t>(rng.below(vocab)); };
  while (rng.chance(0.3)) p.logit_bias.emplace_back(id(), static_cast<float>(rng.normal() * 5));
  return draw;
}

}  // namespace

TEST_CASE("ops/sample: every mix of parameters draws the token that the plain rules draw") {
  Rng rng(test::seed());
  INFO("seed " << test::seed());
  Sampler sampler(*variants()[0]);
  for (int round = 0; round < 4000; ++round) {
    Draw draw = random_draw(rng);
    // Ban what would be drawn, as min_tokens does with EOS, when that leaves something.
    const uint32_t first = plain_draw(draw);
    const auto drawable =
        std::count_if(draw.logits.begin(), draw.logits.end(), [](float x) { return x > kMinusInfinity; });
    if (rng.chance(0.3) && drawable > 1) draw.banned.push_back(first);
    const auto sampled =
        sampler.sample(draw.logits, draw.params, draw.position, draw.history, draw.prompt_tokens, draw.banned);
    REQUIRE_OK(sampled);
    INFO("round " << round);
    CHECK(sampled->token == plain_draw(draw));
  }
}
