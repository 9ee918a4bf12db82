// From the records of a load run to the result object (vLLM's key names, then ours; docs: mc-bench-serve(1),
// OUTPUT), the table for people, and the goals a run is held to.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "load.h"

namespace mc::bench {

/// --goodput: a request is good when it completed and each named metric is at most its bound.
struct Goal {
  enum class Metric : uint8_t { ttft, tpot, e2el } metric;
  double bound_ms;
};
/// "ttft:2000 tpot:100", milliseconds as in vLLM. MC1002 quotes what is wrong.
Result<std::vector<Goal>> parse_goals(const std::vector<std::string>& texts);

/// --fail-if: `KEY<VALUE`, also <= > >=; KEY is a numeric key of the result, or `goodput`, or ttft_p99 for
/// p99_ttft_ms; VALUE is a number, a rate (3.5/s) or a duration (2s: compared in milliseconds).
struct Condition {
  std::string text, key;
  bool less = false, or_equal = false;
  double bound = 0;
};
Result<std::vector<Condition>> parse_conditions(const std::vector<std::string>& texts);
/// Whether the condition holds, that is, whether the run fails by it. MC1002 when the result has no such key.
Result<bool> holds(const Condition& condition, const Json& result);

struct SummaryPlan {
  std::vector<Goal> goals;
  std::vector<std::string> metrics;  // with percentiles: ttft tpot itl e2el
  std::vector<double> percentiles;   // 99
};

/// Appends everything that is measured to `out`.
void summarise(const Plan& plan, const LoadResult& load, const SummaryPlan& how, Json& out);
/// The object of one request, for --save-detailed.
Json record_json(const Record& record, size_t index);
/// "100 requests at 4.00/s, 512 tokens in, 64 out, any number in flight": the load of a result or of a plan's facts.
std::string load_text(const Json& result);
std::string result_table(const Json& result, const LoadResult& load, const SummaryPlan& how);

/// p99 of how late the client sent, and the bound it must keep: the largest of `floor`, 1 % of the mean
/// interval, and 1 % of the median TTFT (latencies count from the plan, so less cannot change them);
/// none with a floor of 0.
double lateness_p99_s(const LoadResult& load);
double lateness_bound_s(const Plan& plan, const LoadResult& load, double floor_s);

}  // namespace mc::bench
