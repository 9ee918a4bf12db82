// `mc-bench advise TRACE`: what to deploy for a workload. Simulates every split of the nodes into prefill and decode,
// and the same nodes doing both, at the trace's rate. Then it finds how much load the best split, its two neighbours
// and the nodes that do both bear. The advice names the best cluster and its rate, and says whether to disaggregate.

#include <algorithm>

#include "base/errors.h"
#include "print.h"
#include "sim.h"
#include "sim_progress.h"
#include "sim_search.h"
#include "trace.h"

namespace mc::bench {
namespace {

using namespace sim_flags;

constexpr Flag kNodes{
    .name = "nodes", .kind = FlagKind::count, .value = "N", .fallback = "16", .help = "number of nodes"};

/// A list elsewhere; here one.
constexpr Flag one_of_list(Flag flag, std::string_view value, std::string_view help = "") {
  flag.value = value;
  return with_default(flag, flag.fallback, help);
}
constexpr Flag kOnePolicy = one_of_list(kPolicy, "P", "how requests are placed on prefill nodes");
constexpr Flag kOneAdmission = one_of_list(kAdmission, "A");

constexpr auto kAdviseFlagTable = flags::join(
    flags::list(&kNodes, &kProfile, &kTtftSlo, &kTbtSlo, &kShare, &kSpeedup, &kOnePolicy, &kFetchRule, &kTheta,
                &kOneAdmission, &kHold, &kDram, &kSsd, &kCacheBlocks, &kBandwidth, &kOverlap, &kLoadByLayer, &kCoupled,
                &kCoupledChunk, &kJoinStall, &kSlowStart, &kFirstToken, &kPipeline, &kDecodeTime, &kSlack, &kAggregate,
                &kLimit, &flags::kOutput, &flags::kQuiet, &flags::kProgress, &flags::kSeed),
    flags::kEveryRun);

struct Choice {
  std::string name;  // disaggregated, coupled chunked, coupled prefill-first
  SimPoint now, most;
};

/// False: all requests of the trace come at once.
bool has_rate(const Choice& c) {
  return c.now.rate_per_s > 0;
}

Json json_of(const Choice& c) {
  Json out = Json::object({{"type", "point"}, {"choice", c.name}, {"cluster", c.now.shape.text()}});
  out.set("effective", c.now.figures.effective).set("goodput_per_s", c.now.figures.goodput_per_s);
  out.set("mean_ttft_s", c.now.figures.ttft_s.mean).set("p90_ttft_s", c.now.figures.ttft_s.p90);
  out.set("p90_tbt_ms", c.now.figures.tbt_s.p90 * 1e3).set("gpu_s_mean", c.now.figures.gpu_s_mean);
  out.set("max_speedup", c.most.speedup);
  const bool any = c.most.speedup > 0;
  out.set("max_rate_per_s", has_rate(c) ? Json(any ? c.most.rate_per_s : 0.0) : Json());
  return std::move(out.set("search_limit", c.most.is_search_limit));
}

double rate_of(const Choice& c) {
  return c.most.speedup > 0 ? c.most.rate_per_s : 0;
}

/// The rate as the table shows it: a cluster that kept the goal where the search ended may bear more.
std::string rate_text(const Choice& c) {
  if (!has_rate(c)) return "-";
  return (c.most.is_search_limit ? ">= " : "") + fixed(rate_of(c), 2);
}

std::string sentence(const Choice& best, const Choice& other, double share) {
  if (!has_rate(best))
    return "all requests of the trace come at once, so no cluster has a rate; mc-bench sim compares clusters\n";
  const double ours = rate_of(best), theirs = rate_of(other);
  std::string out = "deploy " + best.now.shape.text() + " (" + best.name + "): ";
  if (ours <= 0) return "no choice keeps the goal even at 1/64 of this load; loosen the bounds or take faster nodes\n";
  out += "bears " + std::string(best.most.is_search_limit ? "at least " : "") + fixed(ours, 2) + " requests/s with " +
         fixed(share * 100, 0) + " % within both bounds";
  // Two rates of which one is a limit of the search have no ratio.
  if (theirs > 0 && !best.most.is_search_limit && !other.most.is_search_limit)
    out += ", " + fixed(ours / theirs, 2) + " times " + other.now.shape.text() + " (" + other.name + ")";
  return out + "\n";
}

/// The reason of the rates with ">=".
std::string limit_text(const std::vector<Choice>& choices) {
  const auto is_limit = [](const Choice& c) { return has_rate(c) && c.most.is_search_limit; };
  const bool any = std::any_of(choices.begin(), choices.end(), is_limit);
  if (!any) return "";
  return ">=: the search ends at " + fixed(kSpeedupMost, 0) +
         " times the trace's rate, and the cluster keeps the goal there\n";
}

/// Refuses setups that leave advise nothing to compare.
Result<void> check_sense(const SimSetup& setup, uint64_t nodes) {
  if (nodes < 2 || nodes > 256) return out_of_range(kNodes, nodes, 2, 256);
  if (setup.options.pipeline >= nodes)
    return user_error(err::kBadValue,
                      std::to_string(nodes) + " nodes hold no group of " + std::to_string(setup.options.pipeline) +
                          " stages and a decode node",
                      "--pipeline");
  if (setup.policies.size() > 1 || setup.admissions.size() > 1)
    return user_error(err::kBadValue,
                      "advise compares clusters under one policy and one admission, not " +
                          std::to_string(setup.policies.size()) + " and " + std::to_string(setup.admissions.size()),
                      setup.policies.size() > 1 ? "--policy" : "--admission",
                      "name one; mc-bench sim compares several");
  return {};
}

}  // namespace

const cli::FlagList kAdviseFlags = kAdviseFlagTable;

Result<int> advise(const cli::Args& args) {
  MC_TRY(setup, read_setup(args));
  MC_TRY(trace, read_sim_trace(args));
  const uint64_t nodes = args.count(kNodes);
  MC_CHECK(check_sense(setup, nodes));
  MC_TRY(share, read_share(args));
  const sim::TraceBlocks blocks(trace);
  sim::ClusterOptions options = setup.options;
  options.profile = &setup.profile;
  options.policy = setup.policies.front();
  options.sched.admission = setup.admissions.front();
  options.keep_samples = false;
  options.failures.clear();
  std::vector<Choice> choices;
  SimProgress progress(args, trace.size());
  const auto splits = find_ratio(trace, blocks, options, static_cast<uint32_t>(nodes), progress);
  // The best split at this load, and its neighbours: more load may want another one.
  const size_t best = best_of(splits);
  for (size_t i = best == 0 ? 0 : best - 1; i <= std::min(best + 1, splits.size() - 1); ++i) {
    options.shape = splits[i].shape;
    choices.push_back({"disaggregated", splits[i], find_max_rate(trace, blocks, options, share, progress)});
  }
  options.shape = {.prefill = 0, .decode = 0, .coupled = static_cast<uint32_t>(nodes)};
  options.pipeline = 1;
  options.hold = false;
  if (is_word(args, kDram) && word_of(args, kCacheBlocks) == CacheWord::profile)
    options.dram_blocks = setup.profile.capacity.kv_tokens / sim::kTraceBlockTokens;
  options.policy = sched::find_policy("cache-aware");
  options.sched.admission = sched::find_admission("none");
  for (const sim::CoupledWay way : {sim::CoupledWay::chunked, sim::CoupledWay::prefill_first}) {
    options.coupled_way = way;
    const char* name = way == sim::CoupledWay::chunked ? "coupled, chunked" : "coupled, prefill first";
    choices.push_back({name, simulate_point(trace, blocks, options, progress),
                       find_max_rate(trace, blocks, options, share, progress)});
  }
  std::stable_sort(choices.begin(), choices.end(),
                   [](const Choice& a, const Choice& b) { return rate_of(a) > rate_of(b); });
  const auto other = std::find_if(choices.begin(), choices.end(), [&](const Choice& c) {
    return (c.now.shape.coupled > 0) != (choices.front().now.shape.coupled > 0);
  });
  MC_TRY(sink, Sink::open(args));
  Table table({"choice", "cluster", "good % now", "TTFT s p90", "TBT ms p90", "most requests/s"});
  Json result = result_head("mc.advise.v1", args);
  result.set("trace", args.positional_one("TRACE")).set("profile", setup.profile.name).set("nodes", nodes);
  Json points = Json::array();
  for (const Choice& c : choices) {
    const Json line = json_of(c);
    MC_CHECK(sink.line(line));
    points.push(line);
    table.add({c.name, c.now.shape.text(), fixed(c.now.figures.effective * 100, 2), fixed(c.now.figures.ttft_s.p90, 2),
               fixed(c.now.figures.tbt_s.p90 * 1e3, 1), rate_text(c)});
  }
  const std::string advice = sentence(choices.front(), *other, share);
  result.set("disaggregate", choices.front().now.shape.coupled == 0);
  result.set("cluster", choices.front().now.shape.text()).set("advice", advice.substr(0, advice.size() - 1));
  result.set("max_rate_per_s", has_rate(choices.front()) ? Json(rate_of(choices.front())) : Json());
  result.set("points", std::move(points));
  MC_CHECK(sink.text(table.text() + limit_text(choices) + "\n" + advice));
  MC_CHECK(sink.line(result));
  MC_CHECK(sink.finish());
  return 0;
}

}  // namespace mc::bench
