// The attention switch: the mode of each layer, in the form that users write (--attention, config key `mc_attention`,
// request field `mc.attention`) and in the form of the KV namespace.
//
//   auto                                   what the model's config declares; full if it declares nothing
//   full                                   every layer dense
//   moba:block=128,top_k=3,full_last=1     MoBA in all layers but the last one
//   window:tokens=4096,full_last=0         a sliding window in every layer
//
// Parameters may be in any order and may be left out. A missing parameter comes from the model's declaration, else from
// the defaults above. `auto` never turns MoBA on for a model that does not declare it, because MoBA needs a model
// trained for it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "attn/mode.h"
#include "base/result.h"

namespace mc::attn {

/// A plan as a user wrote it, before the model is known. Missing parameters are 0 (full_last: -1).
struct PlanText {
  bool automatic = true;
  Mode mode;
  int32_t full_last = -1;
  bool operator==(const PlanText&) const = default;
};

/// Code::invalid (MC1002) quotes the text and names the allowed values.
Result<PlanText> parse_plan(std::string_view text);

/// One mode for all layers but the last `full_last`, which are full.
struct Plan {
  Mode mode;
  int32_t full_last = 0;
  int32_t layers = 0;

  Mode layer(int32_t index) const { return index < layers - full_last ? mode : Mode{}; }
  bool operator==(const Plan&) const = default;
};

/// Canonical text: "full", or every parameter in table order. Two plans that compute one function on a model have one
/// text. The text is part of the KV namespace.
std::string to_string(const Plan& plan);

/// Completes `asked` from the model's declaration (nullopt = none) and checks it against the model. Code::unsupported
/// (MC3009) if the block is not a multiple of block_tokens or full_last exceeds the layers.
Result<Plan> resolve(const PlanText& asked, const std::optional<PlanText>& declared, int32_t layers,
                     int32_t block_tokens);

}  // namespace mc::attn
