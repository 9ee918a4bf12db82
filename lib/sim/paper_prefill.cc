#include "sim/paper_prefill.h"

#include <algorithm>

#include "base/assert.h"
#include "sim/trace.h"

namespace mc::sim {

double PaperView::reused(uint32_t blocks) const {
  return std::max(0.0, std::min(static_cast<double>(kTraceBlockTokens) * blocks, tokens - 1));
}

double PaperView::fetch_s(size_t node) const {
  return (reused(best) - reused(matches[node])) * kPaperTokenBytes / bytes_per_s;
}

namespace {

/// The first node with the least value.
template <typename Value>
uint32_t first_least(size_t count, Value value) {
  uint32_t best = 0;
  auto least = value(0);
  for (uint32_t i = 1; i < count; ++i)
    if (const auto v = value(i); v < least) best = i, least = v;
  return best;
}

PaperChoice local(const PaperView& view, uint32_t node) {
  return {node, view.matches[node], 0};
}

PaperChoice random(const PaperView& view) {
  return local(view, static_cast<uint32_t>((*view.draws)() % view.matches.size()));
}

PaperChoice load_count(const PaperView& view) {
  return local(view, first_least(view.matches.size(), [&](uint32_t i) { return view.unfinished[i]; }));
}

PaperChoice load(const PaperView& view) {
  return local(view, first_least(view.matches.size(), [&](uint32_t i) { return view.waits[i]; }));
}

PaperChoice cache_aware(const PaperView& view) {
  return local(view, first_least(view.matches.size(),
                                 [&](uint32_t i) { return view.waits[i] + view.prefill_s(view.matches[i]); }));
}

PaperChoice affinity(const PaperView& view) {
  const auto first = std::find(view.matches.begin(), view.matches.end(), view.best);
  uint32_t node = static_cast<uint32_t>(first - view.matches.begin());
  for (uint32_t i = node + 1; i < view.matches.size(); ++i)
    if (view.matches[i] == view.best && view.waits[i] < view.waits[node]) node = i;
  return local(view, node);
}

PaperChoice by_threshold(const PaperView& view) {
  const auto plan = [&](uint32_t i) {
    if (view.best > 0 && static_cast<double>(view.best) > view.theta * view.matches[i])
      return PaperChoice{i, view.best, view.fetch_s(i)};
    return local(view, i);
  };
  return plan(first_least(view.matches.size(), [&](uint32_t i) {
    const PaperChoice p = plan(i);
    return view.waits[i] + p.fetch_s + view.prefill_s(p.blocks);
  }));
}

PaperChoice by_cost(const PaperView& view) {
  const auto computing = [&](uint32_t i) { return view.waits[i] + view.prefill_s(view.matches[i]); };
  const auto fetching = [&](uint32_t i) { return view.waits[i] + view.fetch_s(i) + view.prefill_s(view.best); };
  const uint32_t i = first_least(view.matches.size(), [&](uint32_t n) { return std::min(computing(n), fetching(n)); });
  if (view.best > view.matches[i] && fetching(i) < computing(i)) return {i, view.best, view.fetch_s(i)};
  return local(view, i);
}

constexpr PaperRule kRules[] = {
    {"random", std::nullopt, "random", random},
    {"load-count", std::nullopt, "lbcount", load_count},
    {"load", std::nullopt, "lb", load},
    {"cache-aware", std::nullopt, "local", cache_aware},
    {"kv-centric", sched::FetchRule::threshold, "global", by_threshold},
    {"kv-centric", sched::FetchRule::cost, "cost", by_cost},
    {"affinity", std::nullopt, "affinity", affinity},
};

}  // namespace

std::span<const PaperRule> paper_rules() {
  return kRules;
}

const PaperRule* find_paper_rule(std::string_view policy, sched::FetchRule fetch_rule) {
  for (const PaperRule& rule : kRules)
    if (rule.policy == policy && rule.fetch_rule.value_or(fetch_rule) == fetch_rule) return &rule;
  return nullptr;
}

PaperPrefill::PaperPrefill(const PaperPrefillOptions& options, uint32_t unique_blocks)
    : options_(options),
      caches_(options.nodes, options.cache_blocks, unique_blocks),
      draws_(options.seed),
      free_(options.nodes),
      ends_(options.nodes),
      matches_(options.nodes),
      unfinished_(options.nodes),
      waits_(options.nodes) {
  MC_ASSERT(options.nodes > 0 && options.rule != nullptr && options.bytes_per_s > 0);
}

PaperPlacement PaperPrefill::plan(double now_s, uint64_t input_tokens, std::span<const uint32_t> blocks) {
  caches_.match(blocks, matches_);
  for (size_t i = 0; i < free_.size(); ++i) {
    waits_[i] = std::max(0.0, free_[i] - now_s);
    while (!ends_[i].empty() && ends_[i].front() <= now_s) ends_[i].pop_front();
    unfinished_[i] = static_cast<uint32_t>(ends_[i].size());
  }
  PaperView view{.tokens = static_cast<double>(input_tokens),
                 .best = *std::max_element(matches_.begin(), matches_.end()),
                 .matches = matches_,
                 .waits = waits_,
                 .unfinished = unfinished_,
                 .theta = options_.theta,
                 .bytes_per_s = options_.bytes_per_s,
                 .draws = &draws_};
  const PaperChoice choice = options_.rule->choose(view);
  const uint32_t i = choice.node;
  PaperPlacement out{.node = i, .fetch_s = choice.fetch_s, .local_blocks = matches_[i], .used_blocks = choice.blocks};
  out.prefill_s = view.prefill_s(choice.blocks);
  out.reused_tokens = static_cast<uint64_t>(view.reused(choice.blocks));
  out.end_s = std::max(now_s, free_[i]) + choice.fetch_s + out.prefill_s;
  out.ttft_s = out.end_s - now_s;
  return out;
}

void PaperPrefill::book(const PaperPlacement& placement, std::span<const uint32_t> blocks) {
  free_[placement.node] = placement.end_s;
  ends_[placement.node].push_back(placement.end_s);
  caches_.use(placement.node, blocks);
}

}  // namespace mc::sim
