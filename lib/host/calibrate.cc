#include "host/calibrate.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "base/assert.h"
#include "base/hash.h"
#include "kv/kv.h"
#include "model/device_loads.h"
#include "model/generate.h"

namespace mc::host {

namespace {

Result<attn::Plan> full_plan(const model::Runner& runner) {
  const auto& config = runner.model().config();
  return attn::resolve(attn::PlanText{.automatic = false}, config.attention, static_cast<int32_t>(config.layers),
                       static_cast<int32_t>(runner.options().block_tokens));
}

constexpr int64_t kSteps = 8;

int64_t longest_prompt(const model::Runner& runner) {
  const model::RunnerOptions& options = runner.options();
  const int64_t on_device = int64_t{options.device_pages} * options.block_tokens - kSteps;
  const int64_t most = options.device_pages == 0 ? 256 : std::min<int64_t>(256, on_device);
  return std::min<int64_t>(most, runner.model().config().max_positions - kSteps);
}

/// The pages of the device for a sequence of so many tokens, where the caller numbers them.
std::vector<int32_t> device_pages(const model::Runner& runner, int64_t tokens) {
  if (runner.options().device_pages == 0) return {};
  std::vector<int32_t> out(kv::blocks_for(static_cast<size_t>(tokens), runner.options().block_tokens));
  std::iota(out.begin(), out.end(), 0);
  return out;
}

/// Copies a sequence's pages to the device, where the caller numbers its pages.
Result<void> load_pages(model::Runner& runner, model::LocalPages& pages, std::span<const int32_t> on_device) {
  if (on_device.empty()) return {};
  const ExtentLayout& layout = runner.layout();
  model::PageLoad load;
  load.to.assign(on_device.begin(), on_device.end());
  for (size_t i = 0; i < on_device.size(); ++i) {
    const std::byte* page = pages.pages()[i];
    load.from.push_back(page);
    for (uint32_t layer = 0; layer < layout.layers; ++layer)
      load.crcs.push_back(crc32c({page + layout.layer_offset(layer), layout.layer_bytes()}));
  }
  runner.loads()->add(std::move(load));
  auto loaded = runner.loads()->finish(on_device);
  while (runner.loads()->take_ended()) continue;
  return loaded;
}

/// The two best times of one length. When a second pass is within 5 % of the best one, the best time is taken as the
/// machine's speed without disturbance. The first pass pays for cold caches, so three passes are needed at least.
struct Best {
  double first = 1e9, second = 1e9;
  int passes = 0;
  bool settled() const { return passes >= 3 && second <= 1.05 * first; }
  void add(double seconds) {
    ++passes;
    if (seconds < first)
      second = first, first = seconds;
    else
      second = std::min(second, seconds);
  }
};

/// Computes the tokens as a node does: in chunks.
Result<void> pass(model::Runner& runner, std::span<const uint32_t> tokens, model::LocalPages& pages,
                  const attn::Plan& plan, std::span<float> activations) {
  const auto& config = runner.model().config();
  const LayerRange held = runner.model().held();
  const auto on_device = device_pages(runner, static_cast<int64_t>(tokens.size()));
  for (size_t start = 0; start < tokens.size(); start += runner.options().max_chunk_tokens) {
    model::PrefillChunk chunk;
    chunk.tokens = tokens.subspan(start, std::min<size_t>(tokens.size() - start, runner.options().max_chunk_tokens));
    chunk.start = static_cast<int64_t>(start);
    chunk.pages = pages.pages();
    chunk.device_pages = on_device;
    chunk.plan = &plan;
    chunk.first_layer = held.first, chunk.end_layer = held.end;
    const size_t stream = chunk.tokens.size() * config.hidden;
    if (held.first > 0) chunk.activations_in = activations.first(stream);
    if (held.end < config.layers) chunk.activations_out = activations.last(stream);
    MC_CHECK(runner.prefill(chunk));
  }
  return {};
}

}  // namespace

Result<void> measure_prefill(model::Runner& runner, Duration budget, sched::Cost& cost) {
  MC_ASSERT(budget > Duration(0));
  const Clock& clock = SystemClock::instance();
  const TimePoint end = clock.now() + budget;
  const auto& config = runner.model().config();
  const int64_t longest = longest_prompt(runner);
  MC_TRY(pages, model::LocalPages::allocate(runner.layout(), longest));
  MC_TRY(plan, full_plan(runner));
  std::vector<uint32_t> tokens(static_cast<size_t>(longest));
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<uint32_t>((i * 7919 + 3) % config.vocab);
  // A pipeline's stage is measured by its layers: a full pipeline finishes a prompt in little more than that.
  std::vector<float> activations(runner.model().whole() ? 0 : 2 * tokens.size() * config.hidden);
  const std::array<int64_t, 2> lengths{std::min<int64_t>(64, longest), longest};
  std::array<Best, 2> best;
  // All processes of a host start at once and disturb each other: the best of short passes that alternate is what the
  // machine can do. One pass of each length was up to half too slow.
  constexpr int kRounds = 6;
  // A machine that needs so many budgets for the long pass is measured by the short one, and starts to serve earlier.
  constexpr double kLongestPass = 10;
  for (int i = 0; i < 2 * kRounds; ++i) {
    const size_t which = i % 2;
    const double expected_s = best[0].first * static_cast<double>(lengths[1]) / static_cast<double>(lengths[0]);
    if (i == 1 && expected_s > kLongestPass * to_seconds(budget)) break;
    if (i >= 2 && (clock.now() > end || (best[0].settled() && best[1].settled()))) break;
    if (best[which].settled()) continue;
    const TimePoint began = clock.now();
    const std::span<const uint32_t> prompt = std::span(tokens).first(static_cast<size_t>(lengths[which]));
    MC_CHECK(pass(runner, prompt, pages, plan, activations));
    best[which].add(to_seconds(clock.now() - began));
  }
  std::vector<sched::PrefillSample> samples;
  for (size_t i = 0; i < lengths.size(); ++i)
    if (best[i].passes > 0 && (i == 0 || lengths[i] != lengths[0]))
      samples.push_back({static_cast<double>(lengths[i]), 0, best[i].first});
  // One length cannot tell a prompt's constant part from its tokens; online observation corrects the sum.
  cost.prefill_s = cost.prefill_s_per_token2 = 0;
  cost.prefill_s_per_token = samples[0].seconds / samples[0].tokens;
  sched::fit_prefill(samples, cost);
  return {};
}

Result<void> measure_decode(model::Runner& runner, Duration budget, sched::Cost& cost) {
  MC_ASSERT(budget > Duration(0));
  MC_ASSERT(runner.model().whole());
  const Clock& clock = SystemClock::instance();
  const TimePoint end = clock.now() + budget;
  const int64_t context = longest_prompt(runner);
  MC_TRY(pages, model::LocalPages::allocate(runner.layout(), context + kSteps));
  MC_TRY(plan, full_plan(runner));
  std::vector<float> logits(runner.model().config().vocab);
  const auto on_device = device_pages(runner, context + kSteps);
  MC_CHECK(load_pages(runner, pages, on_device));
  Best best;
  for (int i = 0; i < kSteps && (i == 0 || clock.now() <= end); ++i) {
    model::DecodeRow row{3, context + i, pages.pages(), &plan};
    if (!on_device.empty()) row.device_pages = on_device.data();
    const TimePoint began = clock.now();
    MC_CHECK(runner.decode({&row, 1}, logits));
    best.add(to_seconds(clock.now() - began));
  }
  // One point cannot tell a step's constant part from its rows; online observation corrects the sum.
  cost.decode_s = 0.8 * best.first;
  cost.decode_s_per_row = 0.2 * best.first;
  return {};
}

}  // namespace mc::host
