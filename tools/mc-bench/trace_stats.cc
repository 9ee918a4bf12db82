// `mc-bench trace stats FILE`: what a request trace asks of a cache, in the figures and by the procedure of
// the Mooncake brief (sections 10.2 to 10.5): arrivals, lengths, blocks, and the reuse that one cache would
// see, unlimited or of the sizes given with --cache. Deterministic: the same file gives the same bytes.

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "base/common_flags.h"
#include "base/errors.h"
#include "base/histogram.h"
#include "kv/trace_cache.h"
#include "print.h"
#include "trace.h"
#include "verbs.h"

namespace mc::bench {
namespace {

constexpr Flag kCache{.name = "cache",
                      .kind = FlagKind::sweep_counts,
                      .value = "BLOCKS",
                      .help = "also replay through one LRU cache of so many blocks of 512 tokens: 1000,10k"};
constexpr Flag kLimit{.name = "limit",
                      .kind = FlagKind::count,
                      .value = "N",
                      .fallback = "all",
                      .help = "first N requests only",
                      .choices = "all"};

constexpr const Flag* kFlags[] = {&kCache,         &kLimit,           &flags::kConfig,    &flags::kJson,
                                  &flags::kOutput, &flags::kLogLevel, &flags::kLogFormat, &flags::kPrintConfig};

/// Lists of five minutes end here, after a month: timestamps may be those of a calendar.
constexpr double kWindowListMax = 10'000;
constexpr double kQuantiles[] = {.01, .05, .1, .25, .5, .75, .9, .95, .99, .999};

struct Spread {
  std::vector<double> sorted;
  double mean = 0, stddev = 0;

  explicit Spread(std::vector<double> values) : sorted(std::move(values)) {
    std::sort(sorted.begin(), sorted.end());
    if (sorted.empty()) return;
    for (double v : sorted) mean += v;
    mean /= static_cast<double>(sorted.size());
    for (double v : sorted) stddev += (v - mean) * (v - mean);
    stddev = std::sqrt(stddev / static_cast<double>(sorted.size()));
  }
  Json json() const {
    Json out = Json::object();
    if (sorted.empty()) return out;
    double total = 0;
    for (double v : sorted) total += v;
    out.set("total", total).set("mean", mean).set("std", stddev);
    out.set("min", sorted.front()).set("max", sorted.back());
    for (double q : kQuantiles) out.set("p" + format_f64(std::round(q * 1000) / 10), quantile_sorted(sorted, q));
    return out;
  }
};

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

struct Reuse {
  double blocks = 0, hit_blocks = 0, tokens = 0, hit_tokens = 0, ratio_sum = 0;
  std::vector<double> ratios;
  uint64_t any = 0, one = 0, all = 0;
  std::vector<std::pair<double, double>> windows;  // hit tokens, tokens of each five minutes

  explicit Reuse(const std::vector<TraceRequest>& trace, uint32_t cache_blocks) {
    kv::TraceCache cache(cache_blocks);
    for (const auto& r : trace) add(r, cache.request(r.hash_ids));
  }
  void add(const TraceRequest& r, uint32_t k) {
    const double hit = static_cast<double>(std::min(uint64_t{k} * kTraceBlockTokens, r.input_tokens));
    const double input = static_cast<double>(r.input_tokens);
    blocks += static_cast<double>(r.hash_ids.size());
    hit_blocks += k;
    tokens += input;
    hit_tokens += hit;
    ratios.push_back(input > 0 ? hit / input : 0);
    ratio_sum += ratios.back();
    any += k >= 1;
    one += k == 1;
    all += k == r.hash_ids.size() && k > 0;
    const double window = r.timestamp_ms / 300'000;
    if (window >= kWindowListMax) return;
    windows.resize(std::max(windows.size(), static_cast<size_t>(window) + 1));
    windows.back().first += hit;
    windows.back().second += input;
  }
  double block_hit() const { return blocks > 0 ? hit_blocks / blocks : 0; }
  double token_hit() const { return tokens > 0 ? hit_tokens / tokens : 0; }
  double mean_ratio() const { return ratios.empty() ? 0 : ratio_sum / static_cast<double>(ratios.size()); }

  Json json() const {
    Json out = Json::object({{"hit_blocks", static_cast<int64_t>(hit_blocks)}, {"block_hit", block_hit()}});
    out.set("hit_tokens", static_cast<int64_t>(hit_tokens)).set("token_hit", token_hit());
    out.set("mean_request_token_hit", mean_ratio());
    out.set("requests_hit", any).set("requests_hit_one_block", one).set("requests_hit_more", any - one);
    out.set("requests_fully_known", all);
    std::vector<double> sorted = ratios;
    std::sort(sorted.begin(), sorted.end());
    for (double q : {.1, .25, .5, .75, .9})
      out.set("request_token_hit_p" + format_f64(q * 100), quantile_sorted(sorted, q));
    const auto share = [&](double bound) {
      const auto first = std::lower_bound(sorted.begin(), sorted.end(), bound);
      return static_cast<double>(sorted.end() - first) / static_cast<double>(sorted.size());
    };
    out.set("requests_at_least_half", share(.5)).set("requests_at_least_90_percent", share(.9));
    Json list = Json::array();
    for (const auto& [hit, input] : windows) list.push(input > 0 ? hit / input : 0.0);
    return std::move(out.set("token_hit_per_5_minutes", std::move(list)));
  }
};

/// How often each block is used: once, twice, 3, 4 to 10, more.
Json popularity(const std::vector<TraceRequest>& trace) {
  std::map<uint64_t, uint64_t> uses;
  for (const auto& r : trace)
    for (uint64_t id : r.hash_ids) ++uses[id];
  double once = 0, twice = 0, thrice = 0, ten = 0, more = 0;
  uint64_t most = 0;
  for (const auto& [id, count] : uses) {
    (count == 1 ? once : count == 2 ? twice : count == 3 ? thrice : count <= 10 ? ten : more) += 1;
    most = std::max(most, count);
  }
  const double n = std::max<double>(1, static_cast<double>(uses.size()));
  return Json::object({{"unique_blocks", uses.size()},
                       {"used_once", once / n},
                       {"used_twice", twice / n},
                       {"used_3_times", thrice / n},
                       {"used_4_to_10_times", ten / n},
                       {"used_more", more / n},
                       {"most_used", most}});
}

std::string describe(const Json& s) {
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

}  // namespace

Json trace_statistics(const std::vector<TraceRequest>& trace) {
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
  s.set("popularity", popularity(trace));
  s.set("ideal", Reuse(trace, kv::TraceCache::kUnlimited).json());
  return s;
}

const cli::FlagList kTraceFlags = kFlags;

Result<int> trace(const cli::Args& args) {
  const std::string action = args.positional_one("ACTION");
  if (action != "stats") return user_error(err::kUsage, "trace has no action '" + action + "'; it has: stats");
  const std::string path = args.positional_one("FILE");
  MC_TRY(requests,
         read_trace(path, args.present(kLimit) && args.text(kLimit) != "all" ? args.count(kLimit) : UINT64_MAX));
  Sink sink(args);
  Json result = result_head("mc.trace.stats.v1", args);
  const Json statistics = trace_statistics(requests);
  result.set("trace", path);
  for (const JsonMember& member : statistics.members()) result.set(member.key, member.value);
  Json caches = Json::array();
  if (!args.text(kCache).empty())
    for (uint64_t blocks : args.sweep(kCache)) {
      if (blocks == 0 || blocks > UINT32_MAX) return user_error(err::kBadValue, "--cache sizes are 1 to 4294967295");
      const Reuse reuse(requests, static_cast<uint32_t>(blocks));
      Json row = Json::object({{"type", "cache"}, {"cache_blocks", blocks}});
      row.set("block_hit", reuse.block_hit()).set("token_hit", reuse.token_hit());
      caches.push(std::move(row.set("mean_request_token_hit", reuse.mean_ratio())));
    }
  result.set("caches", std::move(caches));
  MC_CHECK(sink.text(describe(result)));
  MC_CHECK(sink.line(result));
  MC_CHECK(sink.finish());
  return 0;
}

}  // namespace mc::bench
