// The fields of a request that determine its tokens: sampling, end of the answer, log-probabilities. They are parts of
// the messages of wire/messages.h.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace mc::wire {

/// The sampling of tokens. Equal values give equal tokens on every node, because philox(seed, stream, position) is the
/// only source of randomness.
struct Sampling {
  double temperature = 1.0;  // 0 = greedy, lowest id on ties
  uint32_t top_k = 0;        // 0 = off
  double top_p = 1.0;
  double min_p = 0.0;
  double presence_penalty = 0.0;
  double frequency_penalty = 0.0;
  double repetition_penalty = 1.0;
  uint64_t seed = 0;
  uint64_t stream = 0;    // distinguishes the choices of one request (n > 1)
  int32_t logprobs = -1;  // -1 = none, k = chosen token and the k most likely
  std::vector<std::pair<uint32_t, double>> logit_bias;
  // The form that the answer must have, as JSON text (grammar/grammar.h); "" = any text. The state of the form is
  // computed from the answer's tokens, so it needs no place on the wire.
  std::string grammar;
  // The tokens that may end an answer with a grammar. They are drawn only where the document is complete.
  std::vector<uint32_t> end_ids;
  bool embed = false;  // the answer is the last hidden state of the prompt, and the drawn token has no meaning

  /// Whether the tokens before the drawn one decide about it.
  bool needs_history() const { return has_penalties() || !grammar.empty(); }
  bool has_penalties() const {
    return repetition_penalty != 1.0 || presence_penalty != 0.0 || frequency_penalty != 0.0;
  }
  bool operator==(const Sampling&) const = default;
  template <class V>
  void fields(V& v) {
    v("temperature", temperature), v("top_k", top_k), v("top_p", top_p), v("min_p", min_p);
    v("presence_penalty", presence_penalty), v("frequency_penalty", frequency_penalty);
    v("repetition_penalty", repetition_penalty), v("seed", seed), v("stream", stream);
    v("logprobs", logprobs), v("logit_bias", logit_bias);
    v.later("grammar", grammar), v.later("end_ids", end_ids), v.later("embed", embed);
  }
};

/// The end of generation. The conductor matches stop strings and then cancels.
struct Stopping {
  uint32_t max_tokens = 16;        // of the answer, counted over all attempts
  uint32_t min_tokens = 0;         // stop_ids may not be drawn before this many tokens
  std::vector<uint32_t> stop_ids;  // the model's EOS ids (unless ignore_eos) and the request's own

  bool operator==(const Stopping&) const = default;
  template <class V>
  void fields(V& v) {
    v("max_tokens", max_tokens), v("min_tokens", min_tokens), v("stop_ids", stop_ids);
  }
};

struct TokenLogprobs {
  double chosen = 0;                             // natural log, from the unmodified distribution
  std::vector<std::pair<uint32_t, double>> top;  // most likely first

  bool operator==(const TokenLogprobs&) const = default;
  template <class V>
  void fields(V& v) {
    v("chosen", chosen), v("top", top);
  }
};

/// The log-probability of a prompt token, given the tokens before it.
struct PromptLogprob {
  double logprob = 0;                            // natural log, from the unmodified distribution
  uint32_t rank = 1;                             // 1 = no token was likelier
  std::vector<std::pair<uint32_t, double>> top;  // most likely first

  bool operator==(const PromptLogprob&) const = default;
  template <class V>
  void fields(V& v) {
    v("logprob", logprob), v("rank", rank), v("top", top);
  }
};

}  // namespace mc::wire
