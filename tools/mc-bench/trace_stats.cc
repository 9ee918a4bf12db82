// `mc-bench trace stats FILE`: what a request trace asks of a cache, in the figures that are known of
// Mooncake's traces: arrivals, lengths, blocks, and the reuse that one cache would
// see, unlimited or of the sizes given with --cache. Deterministic: the same file gives the same bytes.

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "print.h"
#include "sim/lru.h"
#include "sim/replacement.h"
#include "trace.h"
#include "trace_reuse.h"

namespace mc::bench {
namespace {

/// Requests in windows of `window_ms` from time 0; the last, partial one counts in mean and deviation only.
/// Empty windows are counted, not kept.
Json per_window(const std::vector<TraceRequest>& trace, double window_ms) {
  std::vector<double> counts, list;
  double index = 0, most = 0, least = std::numeric_limits<double>::infinity();
  const double last = std::floor(trace.back().timestamp_ms / window_ms);
  for (const auto& r : trace) {
    const double here = std::floor(r.timestamp_ms / window_ms);
    if (counts.empty() || here != index) counts.push_back(0);
    index = here;
    counts.back() += 1;
  }
  const double total = last + 1, mean = static_cast<double>(trace.size()) / total;
  double squares = (total - static_cast<double>(counts.size())) * mean * mean;
  for (size_t i = 0; i < counts.size(); ++i) {
    squares += (counts[i] - mean) * (counts[i] - mean);
    most = std::max(most, counts[i]);
    if (i + 1 < counts.size() || counts.size() == 1) least = std::min(least, counts[i]);
  }
  if (total > static_cast<double>(counts.size())) least = 0;
  Json out = Json::object({{"window_s", window_ms / 1000}, {"mean", mean}});
  out.set("std", std::sqrt(squares / total)).set("min", least).set("max", most);
  if (window_ms < 300'000 || total > kWindowListMax) return out;
  list.resize(static_cast<size_t>(total));
  for (const auto& r : trace) list[static_cast<size_t>(r.timestamp_ms / window_ms)] += 1;
  Json all = Json::array();
  for (double count : list) all.push(static_cast<int64_t>(count));
  return std::move(out.set("counts", std::move(all)));
}

Json arrivals(const std::vector<TraceRequest>& trace) {
  const double span_ms = trace.back().timestamp_ms - trace.front().timestamp_ms;
  std::vector<double> gaps;
  std::set<double> distinct;
  double zero = 0, most = 0, here = 0;
  for (size_t i = 0; i < trace.size(); ++i) {
    here = i > 0 && trace[i].timestamp_ms == trace[i - 1].timestamp_ms ? here + 1 : 1;
    most = std::max(most, here);
    distinct.insert(trace[i].timestamp_ms);
    if (i == 0) continue;
    gaps.push_back(trace[i].timestamp_ms - trace[i - 1].timestamp_ms);
    if (gaps.back() == 0) zero += 1;
  }
  const Spread gap(gaps);
  Json out = Json::object({{"first_ms", trace.front().timestamp_ms}, {"last_ms", trace.back().timestamp_ms}});
  out.set("distinct_timestamps", distinct.size()).set("max_at_one_instant", most);
  out.set("mean_at_one_instant", static_cast<double>(trace.size()) / static_cast<double>(distinct.size()));
  out.set("rate_per_s", span_ms > 0 ? static_cast<double>(trace.size()) * 1000 / span_ms : 0.0);
  out.set("gap_mean_ms", gap.mean).set("gap_std_ms", gap.stddev);
  out.set("gap_cv", gap.mean > 0 ? gap.stddev / gap.mean : 0.0);
  out.set("gap_zero_share", gaps.empty() ? 0.0 : zero / static_cast<double>(gaps.size()));
  Json windows = Json::array();
  for (double seconds : {1, 10, 60, 300}) windows.push(per_window(trace, seconds * 1000));
  return std::move(out.set("windows", std::move(windows)));
}

/// Everything about lengths and rates.
Json lengths(const std::vector<TraceRequest>& trace) {
  std::vector<double> input, output, blocks, ratio;
  for (const auto& r : trace) {
    input.push_back(static_cast<double>(r.input_tokens));
    output.push_back(static_cast<double>(r.output_tokens));
    blocks.push_back(static_cast<double>(r.hash_ids.size()));
    if (r.output_tokens > 0) ratio.push_back(input.back() / output.back());
  }
  const double span_s = (trace.back().timestamp_ms - trace.front().timestamp_ms) / 1000;
  const Json in = Spread(input).json(), out = Spread(output).json();
  Json s = Json::object({{"requests", trace.size()}, {"duration_s", span_s}});
  s.set("arrivals", arrivals(trace));
  s.set("input_tokens", in).set("output_tokens", out).set("blocks", Spread(blocks).json());
  const double per = span_s > 0 ? 1 / span_s : 0;
  s.set("input_tokens_per_s", in["total"].as_double() * per);
  s.set("output_tokens_per_s", out["total"].as_double() * per);
  const double total_out = out["total"].as_double();
  s.set("input_output_ratio", total_out > 0 ? in["total"].as_double() / total_out : 0.0);
  s.set("input_output_ratio_mean", Spread(ratio).mean);
  int64_t whole = 0;
  for (const auto& r : trace) whole += r.input_tokens % kTraceBlockTokens == 0;
  s.set("inputs_of_whole_blocks", whole);
  return s;
}

}  // namespace

Json trace_statistics(const std::vector<TraceRequest>& trace, const TraceStatsOptions& options) {
  Json s = lengths(trace);
  const sim::TraceBlocks numbers(trace);
  const Json sharing = sharing_statistics(trace, numbers);
  for (const JsonMember& member : sharing.members()) s.set(member.key, member.value);
  const sim::Replacement& lru = *sim::find_replacement("lru");
  const auto leading = sim::replay_cache(numbers, sim::kUnlimitedBlocks, lru);
  s.set("ideal", Reuse(trace, leading).json());
  s.set("checkpoints", checkpoints(trace, leading, options.checkpoints));
  Json caches = Json::array();
  for (const uint64_t size : options.cache_blocks) {
    Json row = Json::object({{"type", "cache"}, {"cache_blocks", size}});
    const Json shares = Reuse(trace, sim::replay_cache(numbers, size, lru)).shares();
    for (const JsonMember& member : shares.members()) row.set(member.key, member.value);
    caches.push(std::move(row));
  }
  return std::move(s.set("caches", std::move(caches)));
}

std::string describe_statistics(const Json& s) {
  const Json& arrival = s["arrivals"];
  std::string out = thousands(s["requests"].as_int()) + " requests, " + fixed(arrival["rate_per_s"].as_double(), 2) +
                    "/s over " + fixed(s["duration_s"].as_double(), 1) + " s, " +
                    thousands(arrival["distinct_timestamps"].as_int()) + " distinct times, gap CV " +
                    fixed(arrival["gap_cv"].as_double(), 2) + "\n\n";
  Table table({"per request", "total", "mean", "p50", "p90", "p99", "max"});
  for (const char* name : {"input_tokens", "output_tokens", "blocks"}) {
    const Json& row = s[name];
    table.add({name, thousands(static_cast<uint64_t>(row["total"].as_double())), fixed(row["mean"].as_double(), 2),
               fixed(row["p50"].as_double(), 0), fixed(row["p90"].as_double(), 0), fixed(row["p99"].as_double(), 0),
               fixed(row["max"].as_double(), 0)});
  }
  out += table.text() + "\nunique blocks " + thousands(s["popularity"]["unique_blocks"].as_int()) + " of 512 tokens\n";
  Table hits({"prefix reuse", "block hit %", "token hit %", "mean of requests %"});
  const auto add = [&](const std::string& name, const Json& row) {
    hits.add({name, fixed(100 * row["block_hit"].as_double(), 1), fixed(100 * row["token_hit"].as_double(), 1),
              fixed(100 * row["mean_request_token_hit"].as_double(), 1)});
  };
  add("ideal (never evicts)", s["ideal"]);
  for (const Json& row : s["caches"].items()) add("LRU, " + thousands(row["cache_blocks"].as_int()) + " blocks", row);
  return out + hits.text();
}

}  // namespace mc::bench
