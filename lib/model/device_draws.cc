#include "model/device_draws.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/assert.h"
#include "base/draw.h"
#include "base/rng.h"
#include "base/units.h"
#include "gpu/launch_graphs.h"

namespace mc::model {
namespace {

constexpr size_t kEditsMax = 512;        // of a row
constexpr size_t kTokensAtOnce = 16384;  // that one kernel counts
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

}  // namespace

std::vector<DeviceDraws::PartSize> DeviceDraws::part_sizes(uint32_t vocab, size_t rows) {
  return {{&Parts::rules, rows * sizeof(gpu::DrawRule)},
          {&Parts::counts, rows * vocab * 8},
          {&Parts::edits, rows * kEditsMax * sizeof(gpu::LogitEdit)},
          {&Parts::changed, rows * vocab * 4},
          {&Parts::drawn, kPlaces * rows * sizeof(gpu::Drawn)},
          {&Parts::listed, kPlaces * rows * gpu::kListedMax * sizeof(gpu::ListedToken)},
          {&Parts::tokens, kTokensAtOnce * 4},
          {&Parts::spans, rows * sizeof(gpu::CountedTokens)}};
}

size_t DeviceDraws::bytes(uint32_t vocab, size_t rows) {
  size_t sum = 0;
  for (const PartSize& part : part_sizes(vocab, rows)) sum += round_up(part.bytes, gpu::Arena::kAlignment);
  return sum;
}

Result<void> DeviceDraws::prepare(uint32_t vocab, size_t rows) {
  MC_ASSERT(vocab <= kDrawVocabMax && rows > 0);
  MC_TRY(memory, gpu::Arena::open(device_, gpu::Place::device, bytes(vocab, rows), "draws of tokens"));
  memory_ = std::move(memory);
  for (const PartSize& size : part_sizes(vocab, rows)) {
    MC_TRY(part, memory_.take(size.bytes, "draws of tokens"));
    at_.*size.member = part.address;
  }
  vocab_ = vocab;
  rows_ = rows;
  return {};
}

bool DeviceDraws::draws(const DrawRow& row) {
  const wire::Sampling& s = *row.sampling;
  return s.grammar.empty() && s.logprobs <= gpu::kListedMax && s.logit_bias.size() + row.banned.size() <= kEditsMax;
}

// ---- penalties ----

/// A slot of zeros. When none is free, the sequence that drew longest ago loses its own, and is counted anew later.
Result<int32_t> DeviceDraws::new_slot() {
  std::vector<bool> taken(rows_);
  for (const auto& [name, counted] : counted_) taken[static_cast<size_t>(counted.slot)] = true;
  const auto free = std::ranges::find(taken, false);
  auto slot = static_cast<int32_t>(free - taken.begin());
  if (free == taken.end()) {
    const auto oldest = std::ranges::min_element(counted_, {}, [](const auto& entry) { return entry.second.call; });
    MC_ASSERT_LT(oldest->second.call, call_);  // a call has at most rows_ rows
    slot = oldest->second.slot;
    counted_.erase(oldest);
  }
  const size_t bytes = size_t{vocab_} * 8;
  MC_CHECK(device_.fill(at_.counts + static_cast<size_t>(slot) * bytes, 0, bytes));
  return slot;
}

Result<int32_t> DeviceDraws::count(uint64_t sequence, const DrawRow& row) {
  auto known = counted_.find(sequence);
  if (known != counted_.end() && known->second.tokens > row.history.size()) {
    counted_.erase(known);
    known = counted_.end();
  }
  if (known == counted_.end()) {
    MC_TRY(slot, new_slot());
    known = counted_.emplace(sequence, Counted{.slot = slot}).first;
  }
  Counted& counted = known->second;
  counted.call = call_;
  while (counted.tokens < row.history.size()) {
    if (tokens_.size() == kTokensAtOnce || spans_.size() == rows_) MC_CHECK(count_tokens());
    const auto fresh = row.history.subspan(counted.tokens)
                           .first(std::min(row.history.size() - counted.tokens, kTokensAtOnce - tokens_.size()));
    const size_t prompt = std::clamp(row.prompt_tokens, counted.tokens, counted.tokens + fresh.size()) - counted.tokens;
    spans_.push_back({.slot = counted.slot,
                      .first = static_cast<int32_t>(tokens_.size()),
                      .count = static_cast<int32_t>(fresh.size()),
                      .prompt = static_cast<int32_t>(prompt)});
    for (const uint32_t token : fresh) tokens_.push_back(static_cast<int32_t>(token));
    counted.tokens += fresh.size();
    if (row.fed >= 0 && counted.tokens == row.history.size()) tokens_.back() = ~row.fed;
  }
  return counted.slot;
}

Result<void> DeviceDraws::count_tokens() {
  if (spans_.empty()) return {};
  MC_CHECK(put(at_.tokens, tokens_));
  MC_CHECK(put(at_.spans, spans_));
  const gpu::CountArgs args{.tokens = gpu::device_pointer<const int32_t>(at_.tokens),
                            .spans = gpu::device_pointer<const gpu::CountedTokens>(at_.spans),
                            .fed = gpu::device_pointer<const gpu::Drawn>(fed_),
                            .counts = gpu::device_pointer<uint32_t>(at_.counts),
                            .columns = static_cast<int32_t>(vocab_)};
  const gpu::Unnoted at_once(device_);  // the tables are posted anew for the next tokens
  MC_CHECK(device_.launch("count_tokens", {.grid = {static_cast<uint32_t>(spans_.size()), 1, 1}}, gpu::bytes_of(args)));
  tokens_.clear();
  spans_.clear();
  return {};
}

void DeviceDraws::forget(uint64_t sequence) {
  counted_.erase(sequence);
}

// ---- the draw ----

Result<gpu::DrawRule> DeviceDraws::rule_of(const DrawRow& row, uint64_t sequence) {
  const wire::Sampling& s = *row.sampling;
  const auto temperature = static_cast<float>(s.temperature);
  gpu::DrawRule rule{.scale = temperature == 0 ? 0 : draw_scale(temperature),
                     .uniform = philox_uniform(s.seed, s.stream, row.position),
                     .repetition = static_cast<float>(s.repetition_penalty),
                     .presence = static_cast<float>(s.presence_penalty),
                     .frequency = static_cast<float>(s.frequency_penalty),
                     .top_p = static_cast<float>(s.top_p),
                     .min_p = static_cast<float>(s.min_p),
                     .top_k = s.top_k,
                     .logprobs = s.logprobs,
                     .first_edit = static_cast<int32_t>(edits_.size())};
  for (const auto& [token, bias] : s.logit_bias)
    if (token < vocab_) edits_.push_back({static_cast<int32_t>(token), static_cast<float>(bias)});
  for (const uint32_t token : row.banned)
    if (token < vocab_) edits_.push_back({static_cast<int32_t>(token), kMinusInfinity});
  rule.edits = static_cast<int32_t>(edits_.size()) - rule.first_edit;
  if (s.has_penalties()) {
    MC_TRY(slot, count(sequence, row));
    rule.slot = slot;
  }
  return rule;
}

Result<DrawCall> DeviceDraws::queue(std::span<const DrawRow> rows, std::span<const uint64_t> sequences, uint64_t logits,
                                    size_t place, size_t padded) {
  MC_ASSERT(rows.size() == sequences.size() && rows.size() <= rows_ && padded <= rows_ && place < kPlaces);
  ++call_;
  fed_ = drawn(1 - place);
  tokens_.clear();
  spans_.clear();
  edits_.clear();
  std::vector<gpu::DrawRule> rules;
  DrawCall call{.vocab = vocab_, .drawn_at = drawn(place), .drawn = std::vector<gpu::Drawn>(rows.size())};
  call.listed_at = at_.listed + place * rows_ * gpu::kListedMax * sizeof(gpu::ListedToken);
  const auto own_name = [](size_t i) { return UINT64_MAX - i; };  // of a row without a sequence
  for (size_t i = 0; i < rows.size(); ++i) {
    MC_ASSERT(draws(rows[i]));
    MC_TRY(rule, rule_of(rows[i], sequences[i] != 0 ? sequences[i] : own_name(i)));
    rules.push_back(rule);
    call.logprobs.push_back(rule.logprobs);
  }
  if (std::ranges::any_of(call.logprobs, [](int32_t count) { return count > 0; }))
    call.listed.resize(rows.size() * gpu::kListedMax);
  for (size_t i = 0; i < rows.size(); ++i) forget(own_name(i));
  MC_CHECK(count_tokens());
  rules.resize(std::max(rows.size(), padded));
  MC_CHECK(put(at_.rules, rules));
  MC_CHECK(put(at_.edits, edits_));
  MC_CHECK(launch(call, rules.size(), logits));
  return call;
}

Result<void> DeviceDraws::launch(const DrawCall& call, size_t rows, uint64_t logits) {
  const gpu::DrawArgs args{.logits = gpu::device_pointer<const float>(logits),
                           .rules = gpu::device_pointer<const gpu::DrawRule>(at_.rules),
                           .counts = gpu::device_pointer<const uint32_t>(at_.counts),
                           .edits = gpu::device_pointer<const gpu::LogitEdit>(at_.edits),
                           .changed = gpu::device_pointer<float>(at_.changed),
                           .drawn = gpu::device_pointer<gpu::Drawn>(call.drawn_at),
                           .listed = gpu::device_pointer<gpu::ListedToken>(call.listed_at),
                           .columns = static_cast<int32_t>(vocab_)};
  return device_.launch(
      "draw_rows",
      {.grid = {static_cast<uint32_t>(rows), 1, 1}, .threads = gpu::kDrawThreads, .dynamic_shared = gpu::kDrawShared},
      gpu::bytes_of(args));
}

// ---- the results ----

void DrawCall::add_copies(std::vector<DeviceCopies::Store>& copies) {
  if (drawn.empty()) return;
  const auto bytes = std::as_writable_bytes(std::span(drawn));
  copies.push_back({drawn_at, bytes.data(), bytes.size()});
  for (size_t row = 0; row < logprobs.size(); ++row) {
    if (logprobs[row] <= 0) continue;
    const size_t at = row * gpu::kListedMax, count = std::min(static_cast<uint32_t>(logprobs[row]), vocab);
    const auto list = std::as_writable_bytes(std::span(listed).subspan(at, count));
    copies.push_back({listed_at + at * sizeof(gpu::ListedToken), list.data(), list.size()});
  }
}

Result<void> DrawCall::results(std::span<ops::Sampled> out) const {
  MC_ASSERT_EQ(out.size(), drawn.size());
  for (size_t row = 0; row < out.size(); ++row) {
    MC_TRY(result, result_of(row));
    out[row] = std::move(result);
  }
  return {};
}

Result<ops::Sampled> DrawCall::result_of(size_t row) const {
  const gpu::Drawn& one = drawn[row];
  if (one.token < 0 || !std::isfinite(one.best)) return ops::no_finite_logit(vocab);
  ops::Sampled out;
  out.token = static_cast<uint32_t>(one.token);
  if (logprobs[row] < 0) return out;
  if (one.has_nan != 0 || !std::isfinite(one.top)) return ops::unsound_logit();
  const double log_sum = std::log(static_cast<double>(one.total) / kDrawWeightOne) + one.top;
  out.logprob = static_cast<float>(one.logit - log_sum);
  if (one.listed == 0) return out;
  MC_ASSERT_LE(one.listed, gpu::kListedMax);
  const auto first = listed.begin() + static_cast<ptrdiff_t>(row * gpu::kListedMax);
  std::vector<gpu::ListedToken> list(first, first + one.listed);
  std::ranges::sort(list, [](const gpu::ListedToken& a, const gpu::ListedToken& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
  });
  for (const gpu::ListedToken& each : list)
    out.top.push_back({static_cast<uint32_t>(each.token), static_cast<float>(each.logit - log_sum)});
  return out;
}

}  // namespace mc::model
