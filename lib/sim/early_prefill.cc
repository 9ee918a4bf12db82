#include "sim/early_prefill.h"

#include <algorithm>

#include "base/assert.h"
#include "sim/stages.h"

namespace mc::sim {

LayerCut layer_cut(const ClusterOptions& options) {
  const uint32_t layers = layers_of(*options.profile);
  const bool alone = options.pipeline == 1 && options.shape.coupled == 0;
  if (!alone || layers < 2 || options.by_layer_bytes == UINT64_MAX) return {};
  const uint64_t block_bytes = std::max<uint64_t>(1, kTraceBlockTokens * options.profile->kv_bytes_per_token);
  return {.layers = layers, .blocks_min = (std::max<uint64_t>(1, options.by_layer_bytes) - 1) / block_bytes + 1};
}

std::optional<EarlyPrefill> EarlyPrefill::begin(const sched::Profile& profile, const PrefixParts& prefix,
                                                uint64_t reused, uint64_t tokens, double now_s) {
  MC_ASSERT_LT(reused, tokens);
  const auto coming = prefix.arriving(now_s);
  if (!coming) return std::nullopt;
  const auto begin = static_cast<double>(reused);
  const auto end = static_cast<double>(std::min(tokens, reused + profile.chunk_tokens));
  if (coming->rest_s > profile.cost.prefill(end, begin)) return std::nullopt;
  EarlyPrefill out(profile, reused, tokens);
  const double all_s = Stages::alone_s(profile, reused, tokens);
  const double chunk_s = std::min(all_s, profile.prefill_s(end, begin));
  out.layer_s_ = chunk_s / prefix.layers();
  out.others_s_ = all_s - chunk_s;
  out.layers_ = coming->layers;
  out.layers_end_s_ = now_s + out.layers_ * out.layer_s_;
  return out;
}

std::optional<double> EarlyPrefill::follow(const PrefixParts& prefix, double now_s) {
  MC_ASSERT(!has_end_);
  const uint32_t here = prefix.layers_here();
  MC_ASSERT_LE(layers_, here);
  layers_end_s_ = std::max(layers_end_s_, now_s) + (here - layers_) * layer_s_;
  layers_ = here;
  if (!prefix.is_here()) return std::nullopt;
  has_end_ = true;
  if (again_) return Stages::alone_s(*profile_, reused_, tokens_);
  return layers_end_s_ + others_s_ - now_s;
}

void EarlyPrefill::begin_again(uint64_t reused) {
  MC_ASSERT(!has_end_ && reused <= reused_);
  reused_ = reused;
  again_ = true;
}

}  // namespace mc::sim
