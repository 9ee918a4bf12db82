// A mixture of experts that replaces a layer's MLP (Qwen2-MoE, Qwen3-MoE). A router scores every expert for a row. The
// outputs of the best few are added, weighted by their softmax. A shared expert may be added for every row.
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
  Mlp shared;                     // no rows: there is no shared expert
  ops::PackedMatrix shared_gate;  // [1, hidden]: its sigmoid is the weight of the shared expert
};

struct Route {
  uint32_t expert;
  float share;
};

/// The `top_k` best experts of one row in ascending order of expert. Shares are the softmax over all
/// scores, or over the chosen ones when `normalise`. Ties go to the lower expert, NaN counts as -inf.
void route(std::span<const float> scores, uint32_t top_k, bool normalise, std::vector<Route>& out);

}  // namespace mc::model
