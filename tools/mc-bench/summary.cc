#include "summary.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "base/errors.h"
#include "base/histogram.h"
#include "print.h"

namespace mc::bench {
namespace {

/// One distribution, exact: the q-quantile is the ceil(qN)-th smallest, the deviation is population.
struct Series {
  std::vector<double> sorted;
  double sum = 0;

  explicit Series(std::vector<double> values) : sorted(std::move(values)) {
    std::sort(sorted.begin(), sorted.end());
    for (double v : sorted) sum += v;
  }
  double mean() const { return sorted.empty() ? 0 : sum / static_cast<double>(sorted.size()); }
  double stddev() const {
    double squares = 0;
    for (double v : sorted) squares += (v - mean()) * (v - mean());
    return sorted.empty() ? 0 : std::sqrt(squares / static_cast<double>(sorted.size()));
  }
  double at(double q) const { return quantile_sorted(sorted, q); }
  double max() const { return sorted.empty() ? 0 : sorted.back(); }
};

/// Milliseconds of the completed requests.
Series series_ms(const LoadResult& load, std::string_view metric) {
  std::vector<double> out;
  for (const Record& r : load.records) {
    if (r.outcome != Outcome::completed) continue;
    if (metric == "ttft") out.push_back(r.ttft_s * 1000);
    if (metric == "ttft_from_send") out.push_back((r.ttft_s - r.client_s()) * 1000);
    if (metric == "tpot" && r.output_tokens > 1) out.push_back(r.tpot_s() * 1000);
    if (metric == "e2el") out.push_back(r.e2el_s * 1000);
    if (metric == "itl")
      for (double gap : r.itl_s) out.push_back(gap * 1000);
  }
  return Series(std::move(out));
}

bool is_good(const Record& r, const std::vector<Goal>& goals) {
  if (r.outcome != Outcome::completed) return false;
  return std::all_of(goals.begin(), goals.end(), [&](const Goal& goal) {
    const double s = goal.metric == Goal::Metric::ttft   ? r.ttft_s
                     : goal.metric == Goal::Metric::tpot ? r.tpot_s()
                                                         : r.e2el_s;
    return s * 1000 <= goal.bound_ms;
  });
}

/// Mean milliseconds of completed requests in this client before sending and in each stage that the server reports;
/// `other` is the rest of TTFT (HTTP, routing, messages).
Json stages(const LoadResult& load) {
  double client = 0, queue = 0, xfer = 0, prefill = 0, ttft = 0, decode = 0, n = 0;
  for (const Record& r : load.records) {
    if (r.outcome != Outcome::completed || r.stages.is_null()) continue;
    client += r.client_s() * 1000;
    queue += r.stages["queue_ms"].as_double() + r.stages["accept_ms"].as_double();
    xfer += r.stages["fetch_ms"].as_double();
    prefill += r.stages["prefill_ms"].as_double();
    ttft += r.ttft_s * 1000;
    decode += (r.e2el_s - r.ttft_s) * 1000;
    n += 1;
  }
  if (n == 0) return {};
  return Json::object({{"client_ms", client / n},
                       {"queue_ms", queue / n},
                       {"prefill_ms", prefill / n},
                       {"xfer_ms", xfer / n},
                       {"decode_ms", decode / n},
                       {"other_ms", std::max(0.0, ttft - client - queue - xfer - prefill) / n}});
}

/// Tokens of prefixes by the node whose memory held them; the prefill node's own are those it did not fetch.
Json cached_from(const LoadResult& load) {
  std::map<std::string, int64_t> nodes;
  for (const Record& r : load.records) {
    if (r.outcome != Outcome::completed) continue;
    if (const int64_t own = r.stages["cached_local_tokens"].as_int(); own > 0)
      nodes[std::string(r.stages["prefill_node"].as_string())] += own;
    for (const JsonMember& node : r.stages["cached_from"].members()) nodes[node.key] += node.value.as_int();
  }
  Json out = Json::object();
  for (const auto& [name, tokens] : nodes) out.set(name, tokens);
  return out;
}

void set_arrays(const LoadResult& load, Json& out) {
  Json inputs = Json::array(), outputs = Json::array(), ttfts = Json::array(), itls = Json::array();
  Json errors = Json::array(), starts = Json::array();
  for (const Record& r : load.records) {
    if (r.outcome == Outcome::pending) continue;
    inputs.push(r.input_tokens);
    outputs.push(r.output_tokens);
    ttfts.push(r.ttft_s);
    Json gaps = Json::array();
    for (double gap : r.itl_s) gaps.push(gap);
    itls.push(std::move(gaps));
    errors.push(r.error);
    starts.push(r.planned_s);
  }
  out.set("input_lens", std::move(inputs)).set("output_lens", std::move(outputs)).set("ttfts", std::move(ttfts));
  out.set("itls", std::move(itls)).set("errors", std::move(errors)).set("start_times", std::move(starts));
}

/// Allowance for prefixes that are equal by chance, which a server matching token by token reuses.
constexpr double kHitSlack = 0.05;

std::string percentile_name(double percentile) {
  return "p" + format_f64(percentile);
}

/// "p99_ttft_ms" from "ttft_p99"; other keys as they are.
std::string result_key(std::string_view key) {
  if (key == "goodput") return "request_goodput";
  const size_t cut = key.rfind('_');
  for (std::string_view metric : {"ttft", "tpot", "itl", "e2el"})
    if (cut != std::string_view::npos && key.substr(0, cut) == metric)
      return std::string(key.substr(cut + 1)) + "_" + std::string(metric) + "_ms";
  if (cut != std::string_view::npos && key.substr(0, cut) == "tbt") return std::string(key.substr(cut + 1)) + "_itl_ms";
  return std::string(key);
}

}  // namespace

Result<std::vector<Goal>> parse_goals(const std::vector<std::string>& texts) {
  std::vector<Goal> goals;
  for (const std::string& text : texts) {
    const size_t colon = text.find(':');
    const std::string_view name = std::string_view(text).substr(0, colon);
    auto bound = colon == std::string::npos ? Result<double>(Code::invalid, "") : parse_f64(text.substr(colon + 1));
    const bool known = name == "ttft" || name == "tpot" || name == "e2el";
    if (!known || !bound || !(*bound > 0))
      return user_error(err::kBadValue, "'" + text + "' is not a goal; write ttft:MS, tpot:MS or e2el:MS", "--goodput");
    goals.push_back({name == "ttft"   ? Goal::Metric::ttft
                     : name == "tpot" ? Goal::Metric::tpot
                                      : Goal::Metric::e2el,
                     *bound});
  }
  return goals;
}

Result<std::vector<Condition>> parse_conditions(const std::vector<std::string>& texts) {
  std::vector<Condition> out;
  for (const std::string& text : texts) {
    const Error bad = user_error(
        err::kBadValue, "'" + text + "' is not a condition; write KEY<VALUE or KEY>VALUE, for example goodput<3.5/s",
        "--fail-if");
    const size_t at = text.find_first_of("<>");
    if (at == 0 || at == std::string::npos) return bad;
    Condition c{.text = text, .key = result_key(text.substr(0, at)), .less = text[at] == '<'};
    c.or_equal = at + 1 < text.size() && text[at + 1] == '=';
    std::string value = text.substr(at + (c.or_equal ? 2 : 1));
    if (value.ends_with("/s")) value.resize(value.size() - 2);
    if (auto number = parse_f64(value)) {
      c.bound = *number;
    } else if (auto duration = parse_duration(value)) {
      c.bound = to_ms(*duration);
    } else {
      return bad;
    }
    out.push_back(std::move(c));
  }
  return out;
}

Result<bool> holds(const Condition& c, const Json& result) {
  const Json* value = result.find(c.key);
  if (value == nullptr || !(value->is_number() || value->is_null()))
    return user_error(
        err::kBadValue, "the result has no number " + c.key, "--fail-if " + c.text,
        "name a key of the result, e.g. goodput, ttft_p99, failed; percentiles need --metric-percentiles");
  if (value->is_null())
    return user_error(err::kBadValue, c.key + " was not measured; goodput needs --goodput", "--fail-if " + c.text);
  const double v = value->as_double();
  return c.less ? (c.or_equal ? v <= c.bound : v < c.bound) : (c.or_equal ? v >= c.bound : v > c.bound);
}

double lateness_p99_s(const LoadResult& load) {
  std::vector<double> late;
  for (const Record& r : load.records)
    if (r.outcome != Outcome::pending) late.push_back(r.late_s);
  return Series(std::move(late)).at(.99);
}

double lateness_bound_s(const Plan& plan, const LoadResult& load, double floor_s) {
  if (floor_s <= 0) return 0;
  const double interval_s = std::isfinite(plan.rate_per_s) && plan.rate_per_s > 0 ? 1 / plan.rate_per_s : 0;
  return std::max({floor_s, 0.01 * interval_s, 0.01 * series_ms(load, "ttft").at(.5) / 1000});
}

void summarise(const Plan& plan, const LoadResult& load, const SummaryPlan& how, Json& out) {
  double completed = 0, rejected = 0, failed = 0, good = 0, pending = 0, input = 0, output = 0, cached = 0;
  std::map<std::string, int64_t> reasons;
  for (const Record& r : load.records) {
    completed += r.outcome == Outcome::completed;
    failed += r.outcome == Outcome::failed;
    pending += r.outcome == Outcome::pending;
    good += is_good(r, how.goals);
    if (r.outcome == Outcome::rejected) {
      rejected += 1;
      ++reasons[r.reason];
    }
    if (r.outcome != Outcome::completed) continue;
    input += static_cast<double>(r.input_tokens);
    output += static_cast<double>(r.output_tokens);
    cached += static_cast<double>(r.cached_tokens);
  }
  const double per_s = load.duration_s > 0 ? 1 / load.duration_s : 0;
  const auto whole = [](double v) { return static_cast<int64_t>(v); };
  out.set("num_prompts", load.records.size());
  out.set("request_rate", std::isfinite(plan.rate_per_s) ? Json(plan.rate_per_s) : Json("inf"));
  out.set("duration", load.duration_s).set("completed", whole(completed)).set("failed", whole(failed));
  out.set("total_input_tokens", whole(input)).set("total_output_tokens", whole(output));
  out.set("request_throughput", completed * per_s);
  out.set("request_goodput", how.goals.empty() ? Json() : Json(good * per_s));
  out.set("output_throughput", output * per_s).set("total_token_throughput", (input + output) * per_s);
  std::vector<std::string> metrics = how.metrics;
  if (std::ranges::count(metrics, "ttft") > 0) metrics.emplace_back("ttft_from_send");
  for (const std::string& metric : metrics) {
    const Series series = series_ms(load, metric);
    const std::string tail = "_" + metric + "_ms";
    out.set("mean" + tail, series.mean()).set("median" + tail, series.at(.5)).set("std" + tail, series.stddev());
    for (double p : how.percentiles) out.set(percentile_name(p) + tail, series.at(p / 100));
  }
  set_arrays(load, out);
  out.set("max_concurrent_requests", load.max_concurrent);
  out.set("cached_tokens", whole(cached)).set("hit_rate", input > 0 ? cached / input : 0.0);
  out.set("cached_from", cached_from(load));
  out.set("warm_cache", Json());
  out.set("client_late_ms_p99", lateness_p99_s(load) * 1000);
  std::vector<double> queued;
  for (const Record& r : load.records) queued.push_back(r.queued_s * 1000);
  out.set("client_queue_ms_p99", Series(std::move(queued)).at(.99));
  Json by_reason = Json::object();
  for (const auto& [reason, count] : reasons) by_reason.set(reason, count);
  out.set("rejected", whole(rejected)).set("rejected_by_reason", std::move(by_reason));
  out.set("unfinished", whole(pending)).set("interrupted", load.interrupted);
  out.set("stages", stages(load));
  for (const JsonMember& fact : plan.facts.members()) out.set(fact.key, fact.value);
  if (plan.facts.has("prefix_share") && input > 0)
    out.set("warm_cache", cached / input > plan.facts["ideal_token_hit"].as_double() + kHitSlack);
}

Json record_json(const Record& r, size_t index) {
  constexpr std::string_view kNames[] = {"pending", "completed", "rejected", "failed"};
  Json gaps = Json::array();
  for (double gap : r.itl_s) gaps.push(gap * 1000);
  Json out = Json::object({{"type", "request"}, {"index", index}, {"outcome", kNames[static_cast<int>(r.outcome)]}});
  out.set("start_s", r.planned_s).set("late_ms", r.late_s * 1000).set("client_queue_ms", r.queued_s * 1000);
  out.set("ttft_ms", r.ttft_s * 1000).set("tpot_ms", r.tpot_s() * 1000).set("e2el_ms", r.e2el_s * 1000);
  out.set("itl_ms", std::move(gaps)).set("input_tokens", r.input_tokens).set("output_tokens", r.output_tokens);
  out.set("cached_tokens", r.cached_tokens).set("http_status", r.http_status).set("error", r.error);
  return std::move(out.set("reason", r.reason).set("mc", r.stages));
}

std::string load_text(const Json& s) {
  const auto mean = [](const Json& lengths) {
    double sum = 0;
    for (const Json& length : lengths.items()) sum += length.as_double();
    return lengths.size() > 0 ? fixed(sum / static_cast<double>(lengths.size()), 0) : "-";
  };
  const Json& rate = s["request_rate"];
  std::string out = s["num_prompts"].dump() + " requests ";
  // Requests that are all planned for one moment have a rate of 0.
  out += rate.as_double() == 0 ? "at once" : "at " + fixed(rate.as_double(), 2) + "/s";
  out += s.has("input_len") ? ", " + s["input_len"].dump() + " tokens in, " + s["output_len"].dump() + " out"
                            : ", " + mean(s["input_lens"]) + " tokens in, " + mean(s["output_lens"]) + " out (mean)";
  const Json& most = s["max_concurrency"];
  return out + (most.is_null() ? ", any number in flight" : ", at most " + most.dump() + " in flight");
}

std::string result_table(const Json& s, const LoadResult& load, const SummaryPlan& how) {
  std::string goals;
  for (const Goal& goal : how.goals) {
    constexpr std::string_view kNames[] = {"ttft", "tpot", "e2el"};
    goals += (goals.empty() ? "" : ",") + std::string(kNames[static_cast<int>(goal.metric)]) + "<" +
             format_f64(goal.bound_ms) + "ms";
  }
  const auto number = [&](const char* key, int decimals) { return fixed(s[key].as_double(), decimals); };
  std::string out = "Serving result: " + std::string(s["model"].as_string()) + " @ " +
                    std::string(s["base_url"].as_string()) + " (" + std::string(s["cluster"].as_string("?")) +
                    (s["seed"].is_null() ? ", new prompts" : ", seed " + s["seed"].dump()) + ")\n";
  std::string reasons;
  for (const JsonMember& reason : s["rejected_by_reason"].members())
    reasons += (reasons.empty() ? " (" : ", ") + reason.key +
               (s["rejected_by_reason"].size() > 1 ? " " + reason.value.dump() : "");
  if (!reasons.empty()) reasons += ")";
  out += load_text(s) + "\nok / failed / rejected  " + s["completed"].dump() + " / " + s["failed"].dump() + " / " +
         s["rejected"].dump() + reasons + "    duration " + number("duration", 2) + " s";
  if (s["unfinished"].as_int() > 0) out += "    unfinished " + s["unfinished"].dump();
  out += "\nrequests  " + number("request_throughput", 2) + "/s";
  if (!goals.empty()) out += "   goodput  " + number("request_goodput", 2) + "/s (" + goals + ")";
  out += "   tokens out  " + number("output_throughput", 0) + "/s   in  " +
         fixed(s["total_token_throughput"].as_double() - s["output_throughput"].as_double(), 0) + "/s\n";
  const bool answered = s["total_input_tokens"].as_int() > 0;
  out += "prefix hit  " + (answered ? fixed(100 * s["hit_rate"].as_double(), 1) + " %" : "-") + " of tokens";
  if (s.has("ideal_token_hit"))
    out += " (ideal of these prompts " + fixed(100 * s["ideal_token_hit"].as_double(), 1) + " %)";
  std::string sources;
  for (const JsonMember& node : s["cached_from"].members())
    sources +=
        (sources.empty() ? " from " : ", ") + node.key + " " + thousands(static_cast<uint64_t>(node.value.as_int()));
  if (s["warm_cache"].as_bool()) out += " WARM CACHE";
  out += (sources.empty() ? "" : "\ncached tokens" + sources) + "\nclient lateness p99  " +
         number("client_late_ms_p99", 1) + " ms\n";
  Table table({"(ms)", "mean", "p50", "p90", "p99", "max"});
  for (const auto& [name, metric] : {std::pair{"TTFT", "ttft"},
                                     {"  from sending", "ttft_from_send"},
                                     {"TPOT", "tpot"},
                                     {"TBT (ITL)", "itl"},
                                     {"E2E", "e2el"}}) {
    const Series series = series_ms(load, metric);
    const auto cell = [&](double value) { return series.sorted.empty() ? "-" : fixed(value, 1); };
    table.add({name, cell(series.mean()), cell(series.at(.5)), cell(series.at(.9)), cell(series.at(.99)),
               cell(series.max())});
  }
  out += table.text();
  if (const Json& stage = s["stages"]; stage.is_object())
    out += "TTFT = client " + fixed(stage["client_ms"].as_double(), 1) + " + queue " +
           fixed(stage["queue_ms"].as_double(), 1) + " + prefill " + fixed(stage["prefill_ms"].as_double(), 1) +
           " + transfer " + fixed(stage["xfer_ms"].as_double(), 1) + " + other " +
           fixed(stage["other_ms"].as_double(), 1) + " ms\n";
  return out;
}

}  // namespace mc::bench
