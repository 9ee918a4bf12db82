#include "trace_reuse.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "base/histogram.h"
#include "base/units.h"

namespace mc::bench {
namespace {

constexpr double kQuantiles[] = {.01, .05, .1, .25, .5, .75, .9, .95, .99, .999};

}  // namespace

Spread::Spread(std::vector<double> values) : sorted(std::move(values)) {
  std::sort(sorted.begin(), sorted.end());
  if (sorted.empty()) return;
  for (double v : sorted) mean += v;
  mean /= static_cast<double>(sorted.size());
  for (double v : sorted) stddev += (v - mean) * (v - mean);
  stddev = std::sqrt(stddev / static_cast<double>(sorted.size()));
}

Json Spread::json() const {
  Json out = Json::object();
  if (sorted.empty()) return out;
  double total = 0;
  for (double v : sorted) total += v;
  out.set("total", total).set("mean", mean).set("std", stddev);
  out.set("min", sorted.front()).set("max", sorted.back());
  for (double q : kQuantiles) out.set("p" + format_f64(std::round(q * 1000) / 10), quantile_sorted(sorted, q));
  return out;
}

Reuse::Reuse(const std::vector<TraceRequest>& trace, std::span<const uint32_t> leading) {
  for (size_t r = 0; r < trace.size(); ++r) add(trace[r], leading[r]);
}

void Reuse::add(const TraceRequest& r, uint32_t known) {
  const double hit = static_cast<double>(std::min(uint64_t{known} * kTraceBlockTokens, r.input_tokens));
  const double input = static_cast<double>(r.input_tokens);
  blocks_ += static_cast<double>(r.hash_ids.size());
  hit_blocks_ += known;
  tokens_ += input;
  hit_tokens_ += hit;
  ratios_.push_back(input > 0 ? hit / input : 0);
  ratio_sum_ += ratios_.back();
  any_ += known >= 1;
  one_ += known == 1;
  all_ += known == r.hash_ids.size() && known > 0;
  const double window = r.timestamp_ms / 300'000;
  if (window >= kWindowListMax) return;
  windows_.resize(std::max(windows_.size(), static_cast<size_t>(window) + 1));
  windows_.back().first += hit;
  windows_.back().second += input;
}

Json Reuse::shares() const {
  Json out = Json::object({{"hit_blocks", static_cast<int64_t>(hit_blocks_)}, {"block_hit", block_hit()}});
  out.set("hit_tokens", static_cast<int64_t>(hit_tokens_)).set("token_hit", token_hit());
  return std::move(out.set("mean_request_token_hit", mean_ratio()));
}

Json Reuse::json() const {
  Json out = shares();
  out.set("requests_hit", any_).set("requests_hit_one_block", one_).set("requests_hit_more", any_ - one_);
  out.set("requests_fully_known", all_);
  std::vector<double> sorted = ratios_;
  std::sort(sorted.begin(), sorted.end());
  for (double q : {.1, .25, .5, .75, .9})
    out.set("request_token_hit_p" + format_f64(q * 100), quantile_sorted(sorted, q));
  const auto share = [&](double bound) {
    const auto first = std::lower_bound(sorted.begin(), sorted.end(), bound);
    return static_cast<double>(sorted.end() - first) / static_cast<double>(sorted.size());
  };
  out.set("requests_at_least_half", share(.5)).set("requests_at_least_90_percent", share(.9));
  Json list = Json::array();
  for (const auto& [hit, input] : windows_) list.push(input > 0 ? hit / input : 0.0);
  return std::move(out.set("token_hit_per_5_minutes", std::move(list)));
}

Json checkpoints(const std::vector<TraceRequest>& trace, std::span<const uint32_t> leading,
                 std::span<const uint64_t> counts) {
  const std::set<uint64_t> wanted(counts.begin(), counts.end());
  std::set<uint64_t> ids;
  uint64_t blocks = 0, hit_blocks = 0, tokens = 0, hit_tokens = 0;
  Json out = Json::array();
  for (size_t r = 0; r < trace.size(); ++r) {
    blocks += trace[r].hash_ids.size();
    hit_blocks += leading[r];
    tokens += trace[r].input_tokens;
    hit_tokens += std::min(uint64_t{leading[r]} * kTraceBlockTokens, trace[r].input_tokens);
    ids.insert(trace[r].hash_ids.begin(), trace[r].hash_ids.end());
    if (!wanted.contains(r + 1)) continue;
    Json row = Json::object({{"requests", r + 1}, {"hit_blocks", hit_blocks}, {"blocks", blocks}});
    row.set("hit_tokens", hit_tokens).set("tokens", tokens);
    out.push(std::move(row.set("unique_blocks", ids.size())));
  }
  return out;
}

}  // namespace mc::bench
