// From logits to a token. Order of the transforms: penalties, logit_bias, banned ids, temperature,
// then top_k, top_p, min_p on the distribution at that temperature (as vLLM). Randomness is one
// philox_uniform(seed, stream, position) per token, so a token depends on the request and on the
// logits' bits alone, not on the batch or the node. Ties always go to the lowest id.
// Weights of tokens are integers (base/draw.h), so a GPU draws the same token.
// Parameters are rounded to f32 before they are used.
// Log-probabilities come from the unmodified distribution (raw logits, temperature 1).
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/result.h"
#include "ops/ops.h"
#include "wire/sampling.h"

namespace mc::ops {

struct TokenLogprob {
  uint32_t token;
  float logprob;
  bool operator==(const TokenLogprob&) const = default;
};

struct Sampled {
  uint32_t token = 0;
  float logprob = 0;              // of the unmodified distribution; 0 unless asked for
  std::vector<TokenLogprob> top;  // the likeliest first
};

/// How likely a given token was.
struct Scored {
  float logprob = 0;              // of the unmodified distribution
  uint32_t rank = 1;              // 1 = no other token was likelier
  std::vector<TokenLogprob> top;  // the likeliest first
};

/// Lowest id of the largest logit; NaN never wins. n >= 1.
uint32_t argmax(const Kernels& kernels, std::span<const float> logits);

/// corrupt: the model's output is broken.
Error no_finite_logit(size_t vocab);
Error unsound_logit();

/// Draws one token. Keeps scratch between calls; one per thread.
class Sampler {
 public:
  explicit Sampler(const Kernels& kernels) : kernels_(&kernels) {}

  /// logits   [vocab], raw
  /// history  ids of prompt then answer, for penalties (may be empty without them); the answer starts
  ///          at `prompt_tokens`
  /// banned   ids that may not be drawn now (EOS before min_tokens)
  /// allowed  the ids that may be drawn, one bit each; empty = all
  /// position of the token being drawn: the counter of the random number
  /// corrupt when no logit is finite: the model's output is broken.
  Result<Sampled> sample(std::span<const float> logits, const wire::Sampling& sampling, uint64_t position,
                         std::span<const uint32_t> history = {}, size_t prompt_tokens = 0,
                         std::span<const uint32_t> banned = {}, std::span<const uint64_t> allowed = {});

  /// Scores `token`, < logits.size(), and the `top` likeliest tokens. corrupt as in sample().
  Result<Scored> score(std::span<const float> logits, uint32_t token, size_t top);

 private:
  void apply_penalties(const wire::Sampling& sampling, std::span<const uint32_t> history, size_t prompt_tokens);
  size_t nucleus(const wire::Sampling& sampling, float top, uint64_t total);
  uint32_t draw(const wire::Sampling& sampling, uint64_t position);
  Result<std::vector<TokenLogprob>> likeliest(std::span<const float> logits, size_t count, double& log_sum);

  struct Candidate {
    float logit;
    uint32_t token;
    /// Likeliest first, lowest id among equals.
    bool operator<(const Candidate& other) const {
      return logit != other.logit ? logit > other.logit : token < other.token;
    }
  };

  const Kernels* kernels_;
  std::vector<float> modified_;
  std::vector<Candidate> candidates_;
  std::vector<uint32_t> counts_;  // per id, of the answer; high bit: seen anywhere
};

}  // namespace mc::ops
