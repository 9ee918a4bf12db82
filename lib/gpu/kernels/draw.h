// Arguments of the kernels that draw tokens (draw_sm80.cu), as the host fills them and the device reads them. The rules
// of a draw are those of ops/sample.h.
#pragma once

#include <cstdint>

#include "gpu/kernels/attention.h"

namespace mc::gpu {

constexpr int kDrawThreads = 256;
constexpr int kListedMax = 64;  // likeliest tokens that a row can list

/// How the token of one row is drawn.
struct DrawRule {
  double scale = 0;    // draw_scale() of the temperature; 0: the largest logit wins
  double uniform = 0;  // philox_uniform()
  float repetition = 1, presence = 0, frequency = 0;
  float top_p = 1, min_p = 0;
  uint32_t top_k = 0;
  int32_t slot = -1;                  // of the tokens that are penalised; -1: none are
  int32_t logprobs = -1;              // likeliest tokens to list, at most kListedMax; -1: no log-probabilities
  int32_t first_edit = 0, edits = 0;  // of DrawArgs::edits
};

/// A logit grows by `add`. Minus infinity: the token is not drawn.
struct LogitEdit {
  int32_t token = 0;
  float add = 0;
};

/// The result of a row. Log-probabilities are those of the unmodified logits.
struct Drawn {
  int32_t token = -1;        // -1: no logit is more than minus infinity
  float best = 0;            // the largest logit after penalties and edits
  float logit = 0, top = 0;  // unmodified: of the token, and the largest; with log-probabilities
  uint64_t total = 0;        // weights of all tokens at temperature 1, relative to `top`; likewise
  int32_t has_nan = 0;       // likewise
  int32_t listed = 0;        // entries of DrawArgs::listed, in no order
};
struct ListedToken {
  int32_t token = 0;
  float logit = 0;
};

/// Grid: (rows), kDrawThreads threads and kDrawShared bytes of shared memory.
struct DrawArgs {
  const float* logits = nullptr;     // [rows, columns]
  const DrawRule* rules = nullptr;   // [rows]
  const uint32_t* counts = nullptr;  // [slots, 2, columns]: how often a token is in the prompt, and in the answer
  const LogitEdit* edits = nullptr;
  float* changed = nullptr;       // [rows, columns], scratch
  Drawn* drawn = nullptr;         // [rows]
  ListedToken* listed = nullptr;  // [rows, kListedMax]
  int32_t columns = 0;
};
constexpr uint32_t kDrawShared = 2576;

/// Some of the tokens of a row that is penalised: `count` ones from CountArgs::tokens + first, the first `prompt` of
/// which are of the prompt.
struct CountedTokens {
  int32_t slot = 0, first = 0, count = 0, prompt = 0;
};
/// Grid: (spans).
struct CountArgs {
  const int32_t* tokens = nullptr;  // fed_token() of kernels/fed.cuh takes each
  const CountedTokens* spans = nullptr;
  const Drawn* fed = nullptr;  // results of the draws before
  uint32_t* counts = nullptr;  // DrawArgs::counts
  int32_t columns = 0;         // larger tokens are not counted
};

}  // namespace mc::gpu
