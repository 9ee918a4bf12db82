#include "ops/sample.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "base/assert.h"
#include "base/draw.h"
#include "base/rng.h"

namespace mc::ops {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
constexpr uint32_t kSeen = 1u << 31;

}  // namespace

Error no_finite_logit(size_t vocab) {
  return {Code::corrupt,
          "sampling: no finite logit among " + std::to_string(vocab) + "; the weights or the KV are damaged"};
}

Error unsound_logit() {
  return {Code::corrupt, "sampling: a logit is infinite or not a number; the weights or the KV are damaged"};
}

uint32_t argmax(const Kernels& kernels, std::span<const float> logits) {
  const float best = kernels.max(logits.data(), logits.size());
  for (size_t i = 0; i < logits.size(); ++i)
    if (logits[i] == best) return static_cast<uint32_t>(i);
  return 0;  // all NaN
}

void Sampler::apply_penalties(const wire::Sampling& sampling, std::span<const uint32_t> history, size_t prompt_tokens) {
  counts_.assign(modified_.size(), 0);
  for (size_t i = 0; i < history.size(); ++i) {
    if (history[i] >= counts_.size()) continue;
    counts_[history[i]] |= kSeen;
    if (i >= prompt_tokens) ++counts_[history[i]];
  }
  const auto repetition = static_cast<float>(sampling.repetition_penalty);
  const auto presence = static_cast<float>(sampling.presence_penalty);
  const auto frequency = static_cast<float>(sampling.frequency_penalty);
  for (uint32_t token : history) {
    if (token >= counts_.size() || counts_[token] == 0) continue;
    const uint32_t count = counts_[token] & ~kSeen;
    counts_[token] = 0;  // each id once
    float& logit = modified_[token];
    logit = logit > 0 ? logit / repetition : logit * repetition;
    if (count > 0) logit -= presence + frequency * static_cast<float>(count);
  }
}

/// Sorts as much of candidates_ as top_p and min_p need; how many they keep. `top` is the largest logit, and `total` is
/// the sum of all weights.
size_t Sampler::nucleus(const wire::Sampling& sampling, float top, uint64_t total) {
  const double scale = draw_scale(static_cast<float>(sampling.temperature));
  const auto top_p = static_cast<float>(sampling.top_p);
  const uint64_t limit = top_p < 1 ? nucleus_weight(top_p, total) : total;
  const uint64_t least = least_weight(static_cast<float>(sampling.min_p));
  uint64_t kept = 0;
  size_t sorted = 0, step = 256;
  for (size_t i = 0; i < candidates_.size(); ++i) {
    if (i == sorted) {  // a nucleus is usually small: sort the next few, then more
      sorted = std::min(candidates_.size(), sorted + step);
      step *= 8;
      std::partial_sort(candidates_.begin() + static_cast<std::ptrdiff_t>(i),
                        candidates_.begin() + static_cast<std::ptrdiff_t>(sorted), candidates_.end());
    }
    const uint64_t weight = draw_weight(top, candidates_[i].logit, scale);
    if (i > 0 && (kept >= limit || weight < least)) return i;
    kept += weight;
  }
  return candidates_.size();
}

uint32_t Sampler::draw(const wire::Sampling& sampling, uint64_t position) {
  candidates_.clear();
  float top = kMinusInfinity;
  for (size_t i = 0; i < modified_.size(); ++i) {
    if (!(modified_[i] > kMinusInfinity)) continue;
    candidates_.push_back({modified_[i], static_cast<uint32_t>(i)});
    top = std::max(top, modified_[i]);
  }
  if (sampling.top_k > 0 && sampling.top_k < candidates_.size()) {
    std::nth_element(candidates_.begin(), candidates_.begin() + static_cast<std::ptrdiff_t>(sampling.top_k),
                     candidates_.end());
    candidates_.resize(sampling.top_k);
    std::sort(candidates_.begin(), candidates_.end());
  }
  const double scale = draw_scale(static_cast<float>(sampling.temperature));
  const auto weight = [&](const Candidate& c) { return draw_weight(top, c.logit, scale); };
  uint64_t total = 0;
  for (const Candidate& c : candidates_) total += weight(c);
  if (static_cast<float>(sampling.top_p) < 1 || static_cast<float>(sampling.min_p) > 0) {
    candidates_.resize(nucleus(sampling, top, total));
    total = 0;
    for (const Candidate& c : candidates_) total += weight(c);
  }
  const uint64_t target = draw_target(philox_uniform(sampling.seed, sampling.stream, position), total);
  MC_ASSERT_LT(target, total);
  size_t chosen = 0;
  for (uint64_t sum = weight(candidates_[0]); sum <= target; sum += weight(candidates_[chosen])) {
    ++chosen;
    MC_ASSERT_LT(chosen, candidates_.size());
  }
  return candidates_[chosen].token;
}

/// The `count` likeliest, and the logarithm of the sum of all weights.
Result<std::vector<TokenLogprob>> Sampler::likeliest(std::span<const float> logits, size_t count, double& log_sum) {
  const float top = kernels_->max(logits.data(), logits.size());
  log_sum = std::log(kernels_->sum_exp(logits.data(), top, logits.size())) + top;
  if (!std::isfinite(log_sum)) return unsound_logit();
  count = std::min(count, logits.size());
  std::vector<TokenLogprob> out;
  if (count == 0) return out;
  candidates_.clear();
  for (size_t i = 0; i < logits.size(); ++i) candidates_.push_back({logits[i], static_cast<uint32_t>(i)});
  std::partial_sort(candidates_.begin(), candidates_.begin() + static_cast<std::ptrdiff_t>(count), candidates_.end());
  for (size_t i = 0; i < count; ++i)
    out.push_back({candidates_[i].token, static_cast<float>(candidates_[i].logit - log_sum)});
  return out;
}

Result<Scored> Sampler::score(std::span<const float> logits, uint32_t token, size_t top) {
  MC_ASSERT_LT(token, logits.size());
  Scored scored;
  double log_sum = 0;
  MC_TRY(found, likeliest(logits, top, log_sum));
  scored.top = std::move(found);
  scored.logprob = static_cast<float>(logits[token] - log_sum);
  scored.rank += static_cast<uint32_t>(
      std::count_if(logits.begin(), logits.end(), [&](float logit) { return logit > logits[token]; }));
  return scored;
}

Result<Sampled> Sampler::sample(std::span<const float> logits, const wire::Sampling& sampling, uint64_t position,
                                std::span<const uint32_t> history, size_t prompt_tokens,
                                std::span<const uint32_t> banned, std::span<const uint64_t> allowed) {
  MC_ASSERT(!logits.empty() && logits.size() <= kDrawVocabMax);
  Sampled sampled;
  std::span<const float> chosen = logits;
  const bool greedy = static_cast<float>(sampling.temperature) == 0;
  if (!greedy || sampling.has_penalties() || !sampling.logit_bias.empty() || !banned.empty() || !allowed.empty()) {
    modified_.assign(logits.begin(), logits.end());
    if (sampling.has_penalties()) apply_penalties(sampling, history, prompt_tokens);
    for (const auto& [token, bias] : sampling.logit_bias)
      if (token < modified_.size()) modified_[token] += static_cast<float>(bias);
    for (uint32_t token : banned)
      if (token < modified_.size()) modified_[token] = kMinusInfinity;
    if (!allowed.empty())
      for (size_t i = 0; i < modified_.size(); ++i)
        if (i / 64 >= allowed.size() || (allowed[i / 64] >> (i % 64) & 1) == 0) modified_[i] = kMinusInfinity;
    chosen = modified_;
  }
  const float best = kernels_->max(chosen.data(), chosen.size());
  if (!std::isfinite(best)) return no_finite_logit(logits.size());
  sampled.token = greedy ? argmax(*kernels_, chosen) : draw(sampling, position);
  if (sampling.logprobs < 0) return sampled;
  double log_sum = 0;
  MC_TRY(found, likeliest(logits, static_cast<size_t>(sampling.logprobs), log_sum));
  sampled.top = std::move(found);
  sampled.logprob = static_cast<float>(logits[sampled.token] - log_sum);
  return sampled;
}

}  // namespace mc::ops
