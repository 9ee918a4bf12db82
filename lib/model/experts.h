// A mixture of experts in place of a layer's MLP (Qwen2-MoE, Qwen3-MoE): a router scores every expert for
// a row, the best few answer it, weighted by their softmax, and a shared expert may answer every row.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ops/matmul.h"

namespace mc::model {

/// out = down(silu(gate x) * up x)
struct Mlp {
  ops::PackedMatrix gate_up;        // [2 inner, hidden]: gate, then up
  std::vector<float> gate_up_bias;  // empty without biases
  ops::PackedMatrix down;           // [hidden, inner]
  std::vector<float> down_bias;
};

struct Experts {
  ops::PackedMatrix router;  // [experts, hidden]
  std::vector<Mlp> routed;
  Mlp shared;                     // without rows: there is none
  ops::PackedMatrix shared_gate;  // [1, hidden]: its sigmoid weighs the shared expert
};

struct Route {
  uint32_t expert;
  float share;
};

/// The `top_k` best experts of one row in ascending order of expert. Shares are the softmax over all
/// scores, or over the chosen ones when `normalise`. Ties go to the lower expert, NaN counts as -inf.
void route(std::span<const float> scores, uint32_t top_k, bool normalise, std::vector<Route>& out);

}  // namespace mc::model
