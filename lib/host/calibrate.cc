#include "host/calibrate.h"

#include <algorithm>

#include "base/assert.h"
#include "model/generate.h"

namespace mc::host {

Result<sched::Cost> measure_cost(model::Runner& runner, Duration budget) {
  MC_ASSERT(budget > Duration(0));
  sched::Cost cost;
  const Clock& clock = SystemClock::instance();
  const TimePoint end = clock.now() + budget;
  const auto& config = runner.model().config();
  const int64_t longest = std::min<int64_t>({256, runner.options().max_chunk_tokens, config.max_positions - 8});
  MC_TRY(pages, model::LocalPages::allocate(runner.layout(), longest + 8));
  MC_TRY(plan, attn::resolve(attn::PlanText{.automatic = false}, config.attention, static_cast<int32_t>(config.layers),
                             static_cast<int32_t>(runner.options().block_tokens)));
  std::vector<uint32_t> tokens(static_cast<size_t>(longest));
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<uint32_t>((i * 7919 + 3) % config.vocab);
  // A pipeline's stage is measured by its layers: a full pipeline finishes a prompt in little more than that.
  const LayerRange held = runner.model().held();
  std::vector<float> activations(runner.model().whole() ? 0 : 2 * tokens.size() * config.hidden);
  std::vector<sched::PrefillSample> prefills;
  // All processes of a host start at once and disturb each other: the best of many short passes, alternating,
  // is what the machine can do, where one pass of each was up to half too slow.
  constexpr int kRounds = 6;
  const TimePoint prefills_end = end - budget / 4;
  for (int i = 0; i < 2 * kRounds; ++i) {
    const int64_t length = i % 2 == 0 ? std::min<int64_t>(64, longest) : longest;
    if (clock.now() > prefills_end && prefills.size() >= 2) break;
    const TimePoint began = clock.now();
    model::PrefillChunk chunk;
    chunk.tokens = std::span(tokens).first(static_cast<size_t>(length));
    chunk.pages = pages.pages();
    chunk.plan = &plan;
    chunk.first_layer = held.first, chunk.end_layer = held.end;
    const std::span<float> in = std::span(activations).first(activations.size() / 2);
    const std::span<float> after = std::span(activations).last(in.size());
    const size_t stream = chunk.tokens.size() * config.hidden;
    if (held.first > 0) chunk.activations_in = in.first(stream);
    if (held.end < config.layers) chunk.activations_out = after.first(stream);
    MC_CHECK(runner.prefill(chunk));
    prefills.push_back({static_cast<double>(length), 0, to_seconds(clock.now() - began)});
  }
  // The first pass of each length pays for cold caches; the best of each is what counts.
  std::sort(prefills.begin(), prefills.end(),
            [](auto& a, auto& b) { return a.tokens != b.tokens ? a.tokens < b.tokens : a.seconds < b.seconds; });
  prefills.erase(std::unique(prefills.begin(), prefills.end(), [](auto& a, auto& b) { return a.tokens == b.tokens; }),
                 prefills.end());
  sched::fit_prefill(prefills, cost);
  if (!runner.model().whole()) return cost;  // it decodes nothing
  std::vector<float> logits(2 * size_t{config.vocab});
  double best_s = 1e9;
  for (int i = 0; i < 8; ++i) {
    const model::DecodeRow row{tokens[0], longest + i, pages.pages(), &plan};
    const TimePoint began = clock.now();
    MC_CHECK(runner.decode({&row, 1}, std::span(logits).first(config.vocab)));
    best_s = std::min(best_s, to_seconds(clock.now() - began));
    if (clock.now() > end) break;
  }
  // One point cannot tell a step's constant part from its rows; online observation corrects the sum.
  cost.decode_s = 0.8 * best_s;
  cost.decode_s_per_row = 0.2 * best_s;
  return cost;
}

}  // namespace mc::host
