// `mc-bench sim TRACE --rules paper`: the reference rules after Mooncake's papers (lib/sim/paper.h and
// paper_overload.h); the same arguments give the same bytes. Several policies are runs side by side: a `point` for
// each, and all of them in the last line.

#include <algorithm>

#include "base/errors.h"
#include "base/fd.h"
#include "print.h"
#include "sim.h"
#include "sim/paper_overload.h"
#include "trace.h"

namespace mc::bench {
namespace {

using namespace sim_flags;

Result<sim::PaperOptions> read_options(const cli::Args& args) {
  sim::PaperOptions out;
  const auto cluster = sim::parse_paper_cluster(args.text(kCluster));
  if (!cluster) return user_error(err::kBadValue, cluster.error().what, "--cluster");
  out.prefill.nodes = cluster->prefill;
  out.decode_nodes = cluster->decode;
  out.prefill.theta = args.number(kTheta);
  if (!(out.prefill.theta >= 0)) return out_of_range(kTheta, args.text(kTheta), "at least 0");
  const auto cache = word_of(args, kCacheBlocks);
  if (!cache)
    out.prefill.cache_blocks = args.count(kCacheBlocks);
  else if (*cache == CacheWord::unlimited)
    out.prefill.cache_blocks = sim::kUnlimitedBlocks;
  out.speedup = args.number(kSpeedup);
  if (!is_word(args, kBandwidth)) {
    MC_TRY(bandwidth, positive(args, kBandwidth));
    out.prefill.bytes_per_s = bandwidth;
  }
  out.prefill.seed = args.count(flags::kSeed);
  out.ttft_slo_s = to_seconds(args.duration(kTtftSlo));
  out.tbt_slo_s = to_seconds(args.duration(kTbtSlo));
  return out;
}

Result<std::vector<const sim::PaperRule*>> read_policies(const cli::Args& args) {
  // The reference has the threshold rule unless the other is asked for.
  const bool asked = args.origin(kFetchRule) != cli::Origin::fallback;
  const sched::FetchRule fetch_rule = asked ? choice_of(args, kFetchRule) : sched::FetchRule::threshold;
  std::vector<const sim::PaperRule*> out;
  for (const std::string& name : args.list(kPolicy)) {
    const sim::PaperRule* rule = sim::find_paper_rule(name, fetch_rule);
    if (rule == nullptr) {
      std::string known;
      for (const sim::PaperRule& r : sim::paper_rules())
        if (known.find(r.policy) == std::string::npos) known += (known.empty() ? "" : ", ") + std::string(r.policy);
      return user_error(err::kBadValue, "there is no policy '" + name + "'; there are: " + known, "--policy");
    }
    out.push_back(rule);
  }
  if (out.empty()) return user_error(err::kBadValue, "--policy names no policy", "--policy");
  return out;
}

Result<sim::PaperOverloadOptions> read_admission(const cli::Args& args, const sim::PaperOptions& options) {
  sim::PaperOverloadOptions out;
  const std::vector<std::string> names = args.list(kAdmission);
  const std::string name = names.size() == 1 ? names.front() : "";
  using Admission = sim::PaperAdmission;
  if (name == "baseline")
    out.admission = Admission::baseline;
  else if (name == "early")
    out.admission = Admission::early;
  else if (name == "predict")
    out.admission = Admission::predict;
  else if (name != "none")
    return user_error(err::kBadValue, "--rules paper has one --admission: none, baseline, early or predict",
                      "--admission");
  out.decode_s = to_seconds(args.duration(kDecodeTime));
  out.slack = args.number(kSlack);
  if (out.admission != Admission::none && options.decode_nodes == 0)
    return user_error(err::kBadValue, "--admission " + name + " needs decode nodes, as in --cluster 8p2d", "--cluster");
  return out;
}

/// Steps are kept until the end: bounds the memory a stranger's trace can ask for.
Result<void> check_decode_size(const std::vector<TraceRequest>& trace, const std::string& path) {
  constexpr uint64_t kOutputTokensMax = 500'000'000;
  uint64_t total = 0;
  for (const auto& r : trace) total += r.output_tokens;
  if (total <= kOutputTokensMax) return {};
  return user_error(err::kTraceInvalid,
                    "the requests have " + std::to_string(total) + " output tokens; at most " +
                        std::to_string(kOutputTokensMax) +
                        " are simulated: use --limit, or --cluster without decode nodes",
                    path);
}

Json figures(const sim::PaperOptions& options, const sim::PaperRun& run) {
  Json out = Json::object({{"policy", options.prefill.rule->policy}});
  if (const auto fetch_rule = options.prefill.rule->fetch_rule) {
    const bool threshold = fetch_rule == sched::FetchRule::threshold;
    out.set("fetch_rule", threshold ? "threshold" : "cost");
    if (threshold) out.set("theta", options.prefill.theta);
  }
  out.set("requests", run.placements.size());
  out.set("mean_ttft_s", run.ttft_s.mean).set("p50_ttft_s", run.ttft_s.p50);
  out.set("p90_ttft_s", run.ttft_s.p90).set("p99_ttft_s", run.ttft_s.p99);
  out.set("token_hit", run.token_hit).set("gpu_s_mean", run.gpu_s_mean).set("fetches", run.fetches);
  if (options.decode_nodes > 0) {
    out.set("mean_tbt_ms", run.tbt.mean * 1e3).set("p50_tbt_ms", run.tbt.p50 * 1e3);
    out.set("p90_tbt_ms", run.tbt.p90 * 1e3).set("p99_tbt_ms", run.tbt.p99 * 1e3);
    out.set("batch_mean", run.batch_mean).set("batch_max", run.batch_max);
  }
  return std::move(out.set("effective", run.effective));
}

void add_overload(const std::vector<TraceRequest>& trace, const sim::PaperOptions& options, const sim::PaperRun& run,
                  const sim::PaperOverload& overload, Json& out) {
  out.set("rejected", overload.rejected_ttft + overload.rejected_decode + overload.rejected_after);
  out.set("rejected_ttft", overload.rejected_ttft).set("rejected_decode", overload.rejected_decode);
  out.set("rejected_after_prefill", overload.rejected_after);
  out.set("wasted_gpu_s", overload.waste_s).set("gpu_s", overload.gpu_s);
  const double span_s = trace.back().timestamp_ms / 1000 / options.speedup;
  const double good = run.effective * static_cast<double>(trace.size());
  out.set("goodput_per_s", span_s > 0 ? Json(good / span_s) : Json());
}

void append_requests(const sim::PaperOptions& options, const std::vector<TraceRequest>& trace, const sim::PaperRun& run,
                     std::string& out) {
  for (size_t r = 0; r < trace.size(); ++r) {
    const sim::PaperPlacement& p = run.placements[r];
    Json line = Json::object({{"type", "request"}, {"policy", options.prefill.rule->policy}, {"index", r}});
    line.set("node", p.node).set("ttft_s", p.ttft_s).set("prefill_end_s", p.end_s).set("prefill_s", p.prefill_s);
    line.set("fetch_s", p.fetch_s).set("reused_tokens", p.reused_tokens);
    line.set("local_blocks", p.local_blocks).set("used_blocks", p.used_blocks);
    if (!run.fates.empty()) line.set("fate", sim::to_string(run.fates[r]));
    if (!run.tbt_s.empty()) line.set("tbt_ms", trace[r].output_tokens > 1 ? Json(run.tbt_s[r] * 1e3) : Json());
    out += line.dump() + "\n";
  }
}

std::string paper_table(const std::vector<Json>& points, bool decode) {
  std::vector<std::string> head = {"policy", "TTFT s mean", "p50", "p90", "p99", "hit %", "GPU s", "fetches", "good %"};
  if (decode) head.insert(head.end(), {"TBT ms mean", "p50", "p90", "p99", "batch mean", "max"});
  const bool admitting = points.front().has("rejected");
  if (admitting) head.insert(head.end(), {"rejected: TTFT", "decode", "after prefill", "wasted GPU s"});
  Table out(head);
  for (const Json& p : points) {
    const auto number = [&](const char* key, int decimals, double scale = 1) {
      return fixed(p[key].as_double() * scale, decimals);
    };
    std::string name(p["policy"].as_string());
    if (p.has("fetch_rule")) name += " (" + std::string(p["fetch_rule"].as_string()) + ")";
    std::vector<std::string> row = {name};
    for (const char* key : {"mean_ttft_s", "p50_ttft_s", "p90_ttft_s", "p99_ttft_s"}) row.push_back(number(key, 3));
    row.push_back(number("token_hit", 2, 100));
    row.push_back(number("gpu_s_mean", 3));
    row.push_back(thousands(static_cast<uint64_t>(p["fetches"].as_int())));
    row.push_back(number("effective", 2, 100));
    if (decode) {
      for (const char* key : {"mean_tbt_ms", "p50_tbt_ms", "p90_tbt_ms", "p99_tbt_ms"}) row.push_back(number(key, 1));
      row.push_back(number("batch_mean", 2));
      row.push_back(std::to_string(p["batch_max"].as_int()));
    }
    if (admitting) {
      for (const char* key : {"rejected_ttft", "rejected_decode", "rejected_after_prefill"})
        row.push_back(std::to_string(p[key].as_int()));
      row.push_back(number("wasted_gpu_s", 0));
    }
    out.add(std::move(row));
  }
  return out.text();
}

Json summary(const cli::Args& args, const sim::PaperOptions& options, const std::vector<Json>& points) {
  Json out = result_head("mc.sim.v1", args);
  out.set("trace", args.positional_one("TRACE")).set("rules", args.text(kRules));
  out.set("cluster", args.text(kCluster)).set("prefill_nodes", options.prefill.nodes);
  out.set("decode_nodes", options.decode_nodes);
  out.set("cache_blocks",
          options.prefill.cache_blocks == sim::kUnlimitedBlocks ? Json() : Json(options.prefill.cache_blocks));
  out.set("speedup", options.speedup).set("bandwidth_bytes_per_s", options.prefill.bytes_per_s);
  out.set("ttft_slo_s", options.ttft_slo_s).set("tbt_slo_ms", options.tbt_slo_s * 1e3);
  out.set("admission", args.text(kAdmission));
  return with_points(std::move(out), points);
}

}  // namespace

Result<int> simulate_paper(const cli::Args& args) {
  MC_TRY(options, read_options(args));
  MC_TRY(rules, read_policies(args));
  MC_TRY(admission, read_admission(args, options));
  MC_TRY(trace, read_sim_trace(args));
  if (options.decode_nodes > 0) MC_CHECK(check_decode_size(trace, args.positional_one("TRACE")));
  const sim::TraceBlocks blocks(trace);
  // Without a decision at arrival the reference chooses the decode node when prefill ends, else before it.
  const bool admitting = admission.admission != sim::PaperAdmission::none;
  MC_TRY(sink, Sink::open(args));
  std::vector<Json> points;
  std::string requests;
  for (const sim::PaperRule* rule : rules) {
    options.prefill.rule = rule;
    sim::PaperOverload overload;
    const sim::PaperRun run = admitting ? sim::run_paper_overload(trace, blocks, options, admission, overload)
                                        : sim::run_paper(trace, blocks, options);
    points.push_back(figures(options, run));
    if (admitting) add_overload(trace, options, run, overload, points.back());
    if (!args.text(kSaveRequests).empty()) append_requests(options, trace, run, requests);
    if (rules.size() > 1) MC_CHECK(sink.line(point_line(points.back())));
  }
  if (!args.text(kSaveRequests).empty()) MC_CHECK(write_output(args.text(kSaveRequests), requests, kSaveRequests));
  MC_CHECK(sink.text(paper_table(points, options.decode_nodes > 0)));
  MC_CHECK(sink.line(summary(args, options, points)));
  MC_CHECK(sink.finish());
  return 0;
}

}  // namespace mc::bench
