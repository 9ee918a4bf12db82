#include "ops/sample.h"

#include <cmath>
#include <map>
#include <vector>

#include "test.h"

using namespace mc;
using namespace mc::ops;

namespace {

Sampled draw(const std::vector<float>& logits, const wire::Sampling& params, uint64_t position = 0,
             const std::vector<uint32_t>& history = {}, size_t prompt = 0, const std::vector<uint32_t>& banned = {}) {
  Sampler sampler(best_kernels());
  auto result = sampler.sample(logits, params, position, history, prompt, banned);
  REQUIRE_OK(result);
  return *result;
}

std::map<uint32_t, int> histogram(const std::vector<float>& logits, wire::Sampling params, int draws) {
  Sampler sampler(best_kernels());
  std::map<uint32_t, int> counts;
  for (int i = 0; i < draws; ++i) ++counts[sampler.sample(logits, params, static_cast<uint64_t>(i))->token];
  return counts;
}

}  // namespace

TEST_CASE("ops/sample: greedy takes the lowest id among equal logits in every variant") {
  std::vector<float> logits(100, 1.0f);
  logits[37] = logits[38] = logits[99] = 5;
  for (const Kernels* kernels : variants())
    if (kernels->supported()) CHECK(argmax(*kernels, logits) == 37);
  CHECK(draw(logits, {.temperature = 0}).token == 37);
  logits[3] = NAN;
  CHECK(draw(logits, {.temperature = 0}).token == 37);
}

TEST_CASE("ops/sample: the token depends on seed, stream and position, and on nothing else") {
  const std::vector<float> logits(50, 0.0f);
  const wire::Sampling params{.seed = 7, .stream = 3};
  const uint32_t first = draw(logits, params, 11).token;
  for (int i = 0; i < 3; ++i) CHECK(draw(logits, params, 11).token == first);
  int different = 0;
  for (uint64_t p = 0; p < 20; ++p) different += draw(logits, params, p).token != first;
  CHECK(different > 10);
  wire::Sampling other = params;
  other.stream = 4;
  different = 0;
  for (uint64_t p = 0; p < 20; ++p) different += draw(logits, other, p).token != draw(logits, params, p).token;
  CHECK(different > 10);
}

TEST_CASE("ops/sample: frequencies follow the softmax at the given temperature") {
  const std::vector<float> logits = {0, 1, 2, -1};
  for (float temperature : {0.5f, 1.0f, 2.0f}) {
    const int draws = 20000;
    const auto counts = histogram(logits, {.temperature = temperature, .seed = 5}, draws);
    double total = 0;
    for (float l : logits) total += std::exp(l / temperature);
    for (uint32_t token = 0; token < logits.size(); ++token) {
      const double p = std::exp(logits[token] / temperature) / total;
      const double sigma = std::sqrt(p * (1 - p) / draws);
      const auto it = counts.find(token);
      CHECK(std::abs((it == counts.end() ? 0 : it->second) / double(draws) - p) < 5 * sigma);
    }
  }
}

TEST_CASE("ops/sample: top_k, top_p and min_p cut where they say, lowest ids first among equals") {
  const std::vector<float> equal(600, 1.0f);
  for (const auto& [token, n] : histogram(equal, {.top_k = 3}, 300)) CHECK(token < 3);
  // Probabilities .5 .25 .125 .125: the nucleus of 0.6 is the first two.
  const float l = std::log(2.0f);
  const std::vector<float> logits = {0, 2 * l, l, 0};
  auto counts = histogram(logits, {.top_p = 0.6f}, 500);
  CHECK(counts.size() == 2);
  CHECK(counts.count(1) == 1);
  CHECK(counts.count(2) == 1);
  CHECK(histogram(logits, {.top_p = 1e-9f}, 100).size() == 1);
  CHECK(histogram(logits, {.min_p = 0.4f}, 500).size() == 2);
  CHECK(histogram(logits, {.top_k = 1}, 100).size() == 1);
  CHECK(histogram(logits, {.top_k = 3, .top_p = 1.0f}, 1000).size() == 3);
  CHECK(histogram(logits, {.top_k = 0}, 2000).size() == 4);
  // A nucleus wider than the first sorted stretch.
  CHECK(histogram(equal, {.top_p = 0.999f}, 20000).size() > 500);
}

TEST_CASE("ops/sample: no id outside the mask is drawn, and ids beyond the mask are outside") {
  std::vector<float> logits(200, 0.0f);
  logits[199] = 50, logits[7] = 20;
  const std::vector<uint64_t> allowed = {uint64_t{1} << 3, uint64_t{1} << 6};  // 3 and 70
  Sampler sampler(best_kernels());
  std::map<uint32_t, int> counts;
  for (uint64_t position = 0; position < 200; ++position)
    ++counts[sampler.sample(logits, {.seed = 5}, position, {}, 0, {}, allowed)->token];
  CHECK(counts.size() == 2);
  CHECK(counts[3] + counts[70] == 200);
  CHECK(sampler.sample(logits, {.temperature = 0}, 0, {}, 0, {}, allowed)->token == 3);
  const std::vector<uint64_t> none = {0};
  CHECK_FALSE(sampler.sample(logits, {.temperature = 0}, 0, {}, 0, {}, none).has_value());
}

TEST_CASE("ops/sample: penalties, bias and banned ids move the choice as OpenAI and HF define them") {
  const std::vector<float> logits = {1.0f, 1.1f, 1.2f, -1.0f};
  wire::Sampling params{.temperature = 0};
  CHECK(draw(logits, params).token == 2);
  CHECK(draw(logits, params, 0, {}, 0, {2}).token == 1);
  params.frequency_penalty = 0.15f;
  CHECK(draw(logits, params, 0, {2}, 0).token == 1);  // 1.2 - 0.15
  CHECK(draw(logits, params, 0, {2}, 1).token == 2);  // in the prompt: not counted
  params = {.temperature = 0, .repetition_penalty = 2};
  CHECK(draw(logits, params, 0, {2, 1}, 1).token == 0);  // prompt counts too
  params = {.temperature = 0};
  params.logit_bias = {{3, 5.0f}};
  CHECK(draw(logits, params).token == 3);
}

TEST_CASE("ops/sample: log-probabilities are of the unmodified distribution") {
  const std::vector<float> logits = {0, 1, 2, 3};
  wire::Sampling params{.temperature = 0.1f, .top_k = 1, .logprobs = 2};
  params.logit_bias = {{0, 100.0f}};
  const Sampled sampled = draw(logits, params);
  CHECK(sampled.token == 0);
  const double total = std::exp(0.0) + std::exp(1.0) + std::exp(2.0) + std::exp(3.0);
  CHECK(sampled.logprob == doctest::Approx(-std::log(total)).epsilon(1e-5));
  REQUIRE(sampled.top.size() == 2);
  CHECK(sampled.top[0].token == 3);
  CHECK(sampled.top[0].logprob == doctest::Approx(3 - std::log(total)).epsilon(1e-5));
  CHECK(sampled.top[1].token == 2);
}

TEST_CASE("ops/sample: a given token is scored by its probability, its rank and the likeliest") {
  const std::vector<float> logits = {1, 3, 2, 3, -INFINITY};
  Sampler sampler(best_kernels());
  const double sum = std::exp(1.0) + 2 * std::exp(3.0) + std::exp(2.0);
  const auto scored = sampler.score(logits, 2, 2);
  REQUIRE_OK(scored);
  CHECK(scored->rank == 3);
  CHECK(scored->logprob == doctest::Approx(2 - std::log(sum)));
  REQUIRE(scored->top.size() == 2);
  CHECK(scored->top[0].token == 1);
  CHECK(scored->top[1].token == 3);
  CHECK(sampler.score(logits, 3, 0)->rank == 1);  // as likely as another: none is likelier
  CHECK(sampler.score(logits, 4, 0)->rank == 5);
  CHECK(sampler.score(logits, 0, 99)->top.size() == 5);
  CHECK(sampler.score(std::vector<float>{NAN, NAN}, 0, 0).error().code == Code::corrupt);
}

TEST_CASE("ops/sample: logits without a finite value are an error, not a token") {
  Sampler sampler(best_kernels());
  const std::vector<float> broken(8, NAN);
  const auto result = sampler.sample(broken, {}, 0);
  REQUIRE(!result.has_value());
  CHECK(result.error().code == Code::corrupt);
}
