// `mc-bench sim TRACE`: the simulated cluster (lib/sim/cluster.h) under every policy and admission asked for. One
// combination is one result; several are a `point` each, and all of them in the last line. The same arguments give
// the same bytes.

#include <algorithm>

#include "base/assert.h"
#include "base/errors.h"
#include "base/fd.h"
#include "door/api_keys.h"
#include "host/profile.h"
#include "interruption.h"
#include "kv/eviction.h"
#include "print.h"
#include "sim.h"
#include "sim/cluster.h"
#include "sim/machines.h"
#include "sim_progress.h"
#include "sim_search.h"
#include "trace.h"

namespace mc::bench {

using namespace sim_flags;

namespace {

/// Blocks of 512 tokens that so many bytes hold.
uint64_t blocks_in(uint64_t bytes, const sched::Profile& profile) {
  return bytes / (sim::kTraceBlockTokens * profile.kv_bytes_per_token);
}

Result<void> read_caches(const cli::Args& args, SimSetup& out) {
  const sched::Profile& p = out.profile;
  out.options.dram_blocks = blocks_in(p.capacity.dram_bytes, p);
  out.options.ssd_blocks = blocks_in(p.capacity.ssd_bytes, p);
  // A node of both roles keeps its blocks in its VRAM, beside the running batch.
  if (out.options.shape.coupled > 0) out.options.dram_blocks = p.capacity.kv_tokens / sim::kTraceBlockTokens;
  if (!is_word(args, kDram)) out.options.dram_blocks = blocks_in(args.bytes(kDram), p);
  if (!is_word(args, kSsd)) out.options.ssd_blocks = blocks_in(args.bytes(kSsd), p);
  if (args.has(kSimEviction)) out.options.eviction = kv::find_eviction(args.text(kSimEviction));
  if (args.has(kDeviceBlocks)) out.options.device_blocks = args.count(kDeviceBlocks);
  const auto cache = word_of(args, kCacheBlocks);
  if (!cache)
    out.options.dram_blocks = args.count(kCacheBlocks);
  else if (*cache == CacheWord::unlimited)
    out.options.dram_blocks = sim::kUnlimitedBlocks;
  return {};
}

Result<void> read_sched(const cli::Args& args, sim::ClusterOptions& out) {
  out.sched.fetch_rule = choice_of(args, kFetchRule);
  out.sched.threshold = args.number(kTheta);
  if (!(out.sched.threshold >= 0)) return out_of_range(kTheta, args.text(kTheta), "at least 0");
  out.sched.ttft_slo_s = to_seconds(args.duration(kTtftSlo));
  out.sched.tbt_slo_s = to_seconds(args.duration(kTbtSlo));
  host::read_sched_flags(args, out.sched);
  return {};
}

/// Reads the order of requests, the quotas of tenants and the copies ahead of demand, as mc-conductor's flags of these
/// names.
Result<void> read_turns(const cli::Args& args, SimSetup& out) {
  sim::ClusterOptions& o = out.options;
  o.hold = args.on(kHold);
  if (!args.has(flags::kHoldOrder)) return {};
  o.hold_order = choice_of(args, flags::kHoldOrder);
  if (args.present(flags::kReplicate)) {
    o.replicate.replicas_max = static_cast<uint32_t>(std::min<uint64_t>(args.count(flags::kReplicate), 65535));
    o.replicate.bytes_per_s = static_cast<double>(args.bytes(flags::kReplicateRate));
    if (o.shape.coupled > 0)
      return user_error(err::kBadValue, "nodes that do both do not read each other's caches: there is nothing to copy",
                        "--replicate");
  }
  if (args.text(kApiKeys).empty()) return {};
  MC_TRY(keys, door::ApiKeys::open(args.text(kApiKeys)));
  o.tenants = keys.tenants();
  for (const sched::Tenant& tenant : o.tenants) out.salts[tenant.name] = keys.salt_of(tenant.name);
  return {};
}

}  // namespace

Result<sim::TraceBlocks> blocks_of(const std::vector<sim::TraceRequest>& trace, const SimSetup& setup) {
  if (setup.salts.empty()) return sim::TraceBlocks(trace);
  std::map<std::string, uint32_t> numbers = {{"", 0}};  // of salts
  std::vector<uint32_t> spaces;
  for (const sim::TraceRequest& request : trace) {
    const auto salt = request.tenant.empty() ? setup.salts.end() : setup.salts.find(request.tenant);
    if (!request.tenant.empty() && salt == setup.salts.end())
      return user_error(
          err::kBadValue,
          "the trace has requests of tenant '" + request.tenant + "', and the file of --api-keys does not",
          "--api-keys");
    const std::string& text = request.tenant.empty() ? request.tenant : salt->second;
    spaces.push_back(numbers.try_emplace(text, static_cast<uint32_t>(numbers.size())).first->second);
  }
  return sim::TraceBlocks(trace, spaces);
}

Result<SimSetup> read_setup(const cli::Args& args) {
  SimSetup out;
  // advise has no shape of its own, and no failures
  const auto shape = sim::parse_cluster(args.has(kCluster) ? args.text(kCluster) : "1p1d");
  if (!shape) return user_error(err::kBadValue, shape.error().what, "--cluster");
  sim::ClusterOptions& o = out.options;
  o.shape = *shape;
  MC_TRY(profile, host::open_profile(args.text(kProfile)));
  out.profile = std::move(profile);
  if (!is_word(args, kBandwidth)) {
    MC_TRY(bandwidth, positive(args, kBandwidth));
    out.profile.paths.net.bytes_per_s = out.profile.cost.read_bytes_per_s = bandwidth;
  }
  if (!is_word(args, kJoinStall)) out.profile.join_s = to_seconds(args.duration(kJoinStall));
  MC_CHECK(read_caches(args, out));
  MC_CHECK(read_sched(args, o));
  o.speedup = args.number(kSpeedup);
  MC_CHECK(read_turns(args, out));
  o.layer_wise = choice_of(args, kOverlap);
  if (args.present(kLoadByLayer)) o.by_layer_bytes = args.bytes(kLoadByLayer);
  o.coupled_way = choice_of(args, kCoupled);
  o.coupled_chunk_tokens = static_cast<uint32_t>(std::clamp<uint64_t>(args.count(kCoupledChunk), 1, 1u << 20));
  o.pipeline = static_cast<uint32_t>(std::clamp<uint64_t>(args.count(kPipeline), 1, sim::kClusterNodesMax));
  const bool searched = !args.has(kCluster) || (args.has(kFindRatio) && args.on(kFindRatio));
  const bool coupled = !searched && o.shape.coupled > 0;
  if (o.by_layer_bytes != UINT64_MAX && (o.pipeline > 1 || o.device_blocks > 0 || coupled))
    return user_error(err::kBadValue,
                      "--load-by-layer " + args.text(kLoadByLayer) + ": " +
                          (o.pipeline > 1 ? "a stage of a pipeline"
                           : coupled      ? "a node that prefills and decodes"
                                          : "a node whose KV goes to a device") +
                          " loads a prefix as a whole",
                      "--load-by-layer", "leave it out, or say off");
  if (!searched && o.shape.coupled == 0 && o.shape.prefill % o.pipeline != 0)
    return user_error(
        err::kBadValue,
        std::to_string(o.shape.prefill) + " prefill nodes are no whole groups of " + std::to_string(o.pipeline),
        "--pipeline");
  if (args.has(kSample)) o.sample_s = to_seconds(args.duration(kSample));
  o.seed = args.count(flags::kSeed);
  o.keep_samples = args.has(kSaveSamples) && !args.text(kSaveSamples).empty();
  for (const std::string& text : args.has(kFail) ? args.list(kFail) : std::vector<std::string>{}) {
    const auto failure = sim::parse_failure(text, o.shape);
    if (!failure) return user_error(err::kBadValue, failure.error().what, "--fail");
    o.failures.push_back(*failure);
  }
  for (const std::string& name : args.list(kPolicy)) {
    out.policies.push_back(sched::find_policy(name));
    MC_ASSERT(out.policies.back() != nullptr);
  }
  for (const std::string& name : args.list(kAdmission)) {
    out.admissions.push_back(sched::find_admission(name));
    MC_ASSERT(out.admissions.back() != nullptr);
  }
  if (out.policies.empty()) return user_error(err::kBadValue, "--policy names no policy", "--policy");
  if (out.admissions.empty()) return user_error(err::kBadValue, "--admission names no rule", "--admission");
  MC_CHECK(host::check_sched_flags(args, out.admissions));
  return out;
}

namespace {

Json group_list(const std::vector<sim::GroupFigures>& groups, const char* what, const sim::ClusterRun& run) {
  Json out = Json::array();
  for (const sim::GroupFigures& g : groups) {
    const bool is_number = std::string_view(what) == "priority";
    Json line = Json::object({{what, is_number ? Json(std::stoi(g.name)) : Json(g.name)}});
    line.set("requests", g.requests).set("served", g.served).set("good", g.good).set("rejected", g.rejected);
    line.set("rejected_quota", g.rejected_quota).set("effective", g.effective);
    line.set("goodput_per_s", run.span_s > 0 ? Json(g.goodput_per_s) : Json()).set("token_share", g.share);
    line.set("mean_ttft_s", g.ttft_s.mean).set("p50_ttft_s", g.ttft_s.p50).set("p90_ttft_s", g.ttft_s.p90);
    out.push(std::move(line.set("p99_ttft_s", g.ttft_s.p99)));
  }
  return out;
}

}  // namespace

Json cluster_figures(const sim::ClusterOptions& options, const sim::ClusterRun& run, const sim::ClusterFigures& f) {
  Json out = Json::object({{"policy", options.policy->name}});
  if (options.policy->name == "kv-centric")
    out.set("fetch_rule", options.sched.fetch_rule == sched::FetchRule::cost ? "cost" : "threshold");
  out.set("admission", options.sched.admission->name).set("hold", options.hold);
  out.set("hold_order", sim::to_string(options.hold_order)).set("held", run.held);
  out.set("requests", f.requests).set("served", f.served).set("good", f.good);
  const auto rate = [&](double per_s) { return run.span_s > 0 ? Json(per_s) : Json(); };  // null: no span, no rate
  out.set("goodput_per_s", rate(f.goodput_per_s)).set("goodput_per_s_low", rate(f.goodput_low));
  out.set("goodput_per_s_high", rate(f.goodput_high)).set("effective", f.effective);
  out.set("ttft_met", f.ttft_ok).set("tbt_met", f.tbt_ok);
  out.set("rejected", f.rejected_prefill + f.rejected_decode + f.rejected_after + f.rejected_node + f.rejected_length +
                          f.rejected_quota);
  out.set("rejected_ttft", f.rejected_prefill).set("rejected_decode", f.rejected_decode);
  out.set("rejected_after_prefill", f.rejected_after).set("rejected_no_node", f.rejected_node);
  out.set("rejected_too_long", f.rejected_length).set("rejected_quota", f.rejected_quota);
  const auto known = [&](Json value) { return run.partial ? Json() : value; };
  const auto put = [&](const std::string& name, const char* unit, const sim::Percentiles& p, double scale) {
    out.set("mean_" + name + unit, p.mean * scale).set("p50_" + name + unit, p.p50 * scale);
    out.set("p90_" + name + unit, p.p90 * scale).set("p99_" + name + unit, p.p99 * scale);
  };
  put("ttft", "_s", f.ttft_s, 1);
  put("tbt", "_ms", f.tbt_s, 1e3);
  put("client_tbt", "_ms", f.heard_tbt_s, 1e3);
  for (const auto& [name, seconds] : {std::pair("mean_handoff_ms", f.handoff_s.mean),
                                      {"p50_handoff_ms", f.handoff_s.p50},
                                      {"p90_handoff_ms", f.handoff_s.p90},
                                      {"p99_handoff_ms", f.handoff_s.p99}})
    out.set(name, known(seconds * 1e3));
  out.set("token_hit", f.token_hit).set("dram_hit", f.dram_hit).set("remote_hit", f.remote_hit);
  out.set("ssd_hit", f.ssd_hit).set("gpu_s", f.gpu_s).set("gpu_s_mean", f.gpu_s_mean);
  out.set("wasted_gpu_s", known(f.wasted_gpu_s)).set("fetches", known(run.fetches));
  out.set("moved_bytes", known(run.moved_bytes));
  const double nodes = options.shape.coupled > 0 ? options.shape.coupled : options.shape.prefill;
  out.set("prefill_busy", known(run.end_s > 0 ? run.prefill_busy_s / run.end_s / nodes : 0));
  out.set("batch_mean", known(f.batch_mean)).set("batch_max", known(run.rows_max));
  out.set("retried", run.retried).set("preempted", known(run.preempted));
  out.set("duration_s", run.end_s);
  if (options.replicate.replicas_max > 0) {
    out.set("copies", run.copies).set("copies_used", known(run.copies_used)).set("copied_bytes", run.copied_bytes);
    out.set("copied_blocks", run.copied_blocks).set("copied_blocks_used", known(run.copied_blocks_used));
  }
  if (!f.tenants.empty()) out.set("tenants", group_list(f.tenants, "tenant", run));
  if (!f.priorities.empty()) out.set("priorities", group_list(f.priorities, "priority", run));
  return out;
}

namespace {

/// The fate of rejected requests if they had been let in: each of a sample is let in alone, and all later decisions
/// are made again.
void add_counterfactual(const std::vector<sim::TraceRequest>& trace, const sim::TraceBlocks& blocks,
                        sim::ClusterOptions options, const sim::ClusterRun& run, uint64_t count, SimProgress& progress,
                        Json& out) {
  std::vector<uint32_t> rejected;
  uint64_t accepted = 0, missed = 0;
  for (uint32_t r = 0; r < trace.size(); ++r) {
    const sim::Fate fate = run.requests[r].fate;
    const bool late = fate == sim::Fate::rejected_after;  // let in, and failed
    if (fate == sim::Fate::served || late)
      ++accepted, missed += !sim::is_good(run.requests[r], options);
    else
      rejected.push_back(r);
  }
  Rng rng = Rng(options.seed).fork("counterfactual");
  for (size_t i = 0; i < rejected.size(); ++i) std::swap(rejected[i], rejected[i + rng.below(rejected.size() - i)]);
  rejected.resize(std::min<size_t>(rejected.size(), count));
  options.keep_samples = false;
  uint64_t would_miss = 0;
  for (const uint32_t r : rejected) {
    options.force = r;
    progress.next("with request " + std::to_string(r) + " let in");
    would_miss += !sim::is_good(sim::run_cluster(trace, blocks, options).requests[r], options);
  }
  out.set("rejected_checked", rejected.size());
  out.set("rejected_would_miss",
          rejected.empty() ? Json() : Json(static_cast<double>(would_miss) / static_cast<double>(rejected.size())));
  out.set("accepted_missed",
          accepted == 0 ? Json() : Json(static_cast<double>(missed) / static_cast<double>(accepted)));
}

void append_requests(const sim::ClusterOptions& options, const std::vector<sim::TraceRequest>& trace,
                     const sim::ClusterRun& run, std::string& out) {
  for (size_t i = 0; i < trace.size(); ++i) {
    const sim::RequestRecord& r = run.requests[i];
    Json line = Json::object({{"type", "request"}, {"policy", options.policy->name}});
    line.set("admission", options.sched.admission->name).set("index", i).set("fate", sim::to_string(r.fate));
    line.set("good", sim::is_good(r, options)).set("attempts", r.attempts);
    line.set("prefill", r.prefill).set("decode", r.decode);
    line.set("predicted_ttft_s", r.predicted_ttft_s).set("predicted_tbt_ms", r.predicted_tbt_s * 1e3);
    line.set("ttft_s", r.ttft_s).set("tbt_ms", r.tbt_s > 0 ? Json(r.tbt_s * 1e3) : Json());
    line.set("client_tbt_ms", r.tbt_s > 0 ? Json(r.heard_tbt_s * 1e3) : Json());
    line.set("tpot_ms", r.mean_gap_s > 0 ? Json(r.mean_gap_s * 1e3) : Json());
    line.set("handoff_ms", run.partial ? Json() : Json(r.handoff_s * 1e3));
    line.set("queue_s", r.queue_s).set("prefill_s", r.prefill_s).set("end_s", r.end_s);
    if (!trace[i].tenant.empty()) line.set("tenant", trace[i].tenant);
    if (trace[i].priority != 0) line.set("priority", trace[i].priority);
    line.set("dram_tokens", r.dram_tokens).set("remote_tokens", r.remote_tokens).set("ssd_tokens", r.ssd_tokens);
    out += line.dump() + "\n";
  }
}

void append_samples(const sim::ClusterOptions& options, const sim::ClusterRun& run, std::string& out) {
  for (size_t i = 0; i < run.replicas.size(); ++i) {
    const auto head = [&](const char* type) {
      Json line = Json::object({{"type", type}, {"policy", options.policy->name}});
      return std::move(line.set("admission", options.sched.admission->name).set("at_s", run.samples[0][i].at_s));
    };
    for (size_t n = 0; n < run.nodes.size(); ++n) {
      const sim::NodeSample& s = run.samples[n][i];
      Json line = head("node");
      line.set("node", run.nodes[n]).set("load", s.load).set("queue_s", s.queue_s);
      out += line.set("rows", s.rows).set("kv_tokens", s.kv_tokens).dump() + "\n";
    }
    for (size_t k = 0; k < run.replica_ranks.size(); ++k)
      out += head("replicas").set("rank", run.replica_ranks[k]).set("replicas", run.replicas[i][k]).dump() + "\n";
  }
}

/// Without --wide a table has the columns that fit a terminal of 80.
std::string table(const std::vector<Json>& points, bool wide) {
  const auto chosen = [&](std::vector<std::string> all) {
    if (wide) return all;
    std::vector<std::string> out;
    for (const size_t column : {0, 1, 2, 8, 10, 13, 14}) out.push_back(std::move(all[column]));
    return out;
  };
  std::vector<std::string> header{"policy",       "admission",   "goodput /s", "95 %", "good %", "rejected",
                                  "wasted GPU s", "TTFT s mean", "p50",        "p90",  "p99",    "TBT ms mean",
                                  "p90",          "p99",         "hit %",      "GPU s"};
  if (!wide) header[8] = "TTFT s p50", header[13] = "TBT ms p99";
  Table out(chosen(std::move(header)));
  for (const Json& p : points) {
    const auto number = [&](const char* key, int decimals, double scale = 1) -> std::string {
      return p[key].is_null() ? "-" : fixed(p[key].as_double() * scale, decimals);
    };
    const std::string low = number("goodput_per_s_low", 3), high = number("goodput_per_s_high", 3);
    std::string policy(p["policy"].as_string());
    if (p.has("fetch_rule")) policy += " (" + std::string(p["fetch_rule"].as_string()) + ")";
    std::string admission(p["admission"].as_string());
    if (p["hold"].as_bool()) admission += ", held";
    out.add(chosen({policy, admission, number("goodput_per_s", 3), low == "-" ? low : low + "-" + high,
                    number("effective", 2, 100), std::to_string(p["rejected"].as_int()), number("wasted_gpu_s", 0),
                    number("mean_ttft_s", 3), number("p50_ttft_s", 3), number("p90_ttft_s", 3), number("p99_ttft_s", 3),
                    number("mean_tbt_ms", 1), number("p90_tbt_ms", 1), number("p99_tbt_ms", 1),
                    number("token_hit", 2, 100), number("gpu_s_mean", 3)}));
  }
  return out.text();
}

/// The result of --counterfactual: a line for each policy and admission that rejected requests.
std::string counterfactual_text(const std::vector<Json>& points) {
  std::string out;
  for (const Json& p : points) {
    if (!p.has("rejected_checked")) continue;
    out += std::string(p["policy"].as_string()) + ", admission " + std::string(p["admission"].as_string()) + ": ";
    const auto percent = [&](const char* key) { return fixed(100 * p[key].as_double(), 1) + " %"; };
    if (p["rejected_would_miss"].is_null())
      out += "nobody was rejected";
    else
      out += percent("rejected_would_miss") + " of " + p["rejected_checked"].dump() +
             " rejected requests would have missed a bound if let in";
    out += p["accepted_missed"].is_null() ? "\n" : "; " + percent("accepted_missed") + " of the accepted did\n";
  }
  return out;
}

/// Tenants and priorities of all points, in tables of their own; "" where there are none.
std::string group_tables(const std::vector<Json>& points) {
  std::string out;
  for (const auto& [list, what] : {std::pair("tenants", "tenant"), {"priorities", "priority"}}) {
    Table table({"policy", "admission", what, "requests", "goodput /s", "good %", "rejected", "by quota", "TTFT s mean",
                 "p50", "p90", "p99", "tokens %"});
    bool any = false;
    for (const Json& p : points) {
      for (const Json& g : p[list].items()) {
        any = true;
        const auto number = [&](const char* key, int decimals, double scale = 1) -> std::string {
          return g[key].is_null() ? "-" : fixed(g[key].as_double() * scale, decimals);
        };
        table.add({std::string(p["policy"].as_string()), std::string(p["admission"].as_string()),
                   g[what].is_string() ? std::string(g[what].as_string()) : g[what].dump(),
                   std::to_string(g["requests"].as_int()), number("goodput_per_s", 3), number("effective", 2, 100),
                   std::to_string(g["rejected"].as_int()), std::to_string(g["rejected_quota"].as_int()),
                   number("mean_ttft_s", 3), number("p50_ttft_s", 3), number("p90_ttft_s", 3), number("p99_ttft_s", 3),
                   number("token_share", 1, 100)});
      }
    }
    if (any) out += "\n" + table.text();
  }
  return out;
}

/// The copies ahead of demand, for points that replicate; "" without such points.
std::string copies_table(const std::vector<Json>& points) {
  Table table({"policy", "admission", "copies", "used", "GB copied", "blocks used %"});
  if (points.empty() || !points.front().has("copies")) return "";
  for (const Json& p : points) {
    const double blocks = std::max(1.0, p["copied_blocks"].as_double());
    const bool known = !p["copies_used"].is_null();
    table.add({std::string(p["policy"].as_string()), std::string(p["admission"].as_string()),
               std::to_string(p["copies"].as_int()), known ? std::to_string(p["copies_used"].as_int()) : "-",
               fixed(p["copied_bytes"].as_double() * 1e-9, 1),
               known ? fixed(100 * p["copied_blocks_used"].as_double() / blocks, 1) : "-"});
  }
  return "\n" + table.text();
}

Json summary(const cli::Args& args, const SimSetup& setup, const std::vector<Json>& points) {
  Json out = result_head("mc.sim.v1", args);
  const sim::ClusterOptions& o = setup.options;
  out.set("trace", args.positional_one("TRACE")).set("rules", args.text(kRules)).set("cluster", o.shape.text());
  out.set("prefill_nodes", o.shape.prefill).set("decode_nodes", o.shape.decode);
  out.set("coupled_nodes", o.shape.coupled).set("profile", setup.profile.name);
  out.set("cache_blocks", o.dram_blocks == sim::kUnlimitedBlocks ? Json() : Json(o.dram_blocks));
  out.set("ssd_blocks", o.ssd_blocks).set("device_blocks", o.device_blocks).set("speedup", o.speedup);
  out.set("eviction", o.eviction->name);
  out.set("bandwidth_bytes_per_s", setup.profile.paths.net.bytes_per_s);
  out.set("ttft_slo_s", o.sched.ttft_slo_s).set("tbt_slo_ms", o.sched.tbt_slo_s * 1e3);
  return with_points(std::move(out), points);
}

}  // namespace

namespace {

Result<int> search(const cli::Args& args, SimSetup& setup, const std::vector<sim::TraceRequest>& trace) {
  MC_TRY(blocks, blocks_of(trace, setup));
  sim::ClusterOptions& options = setup.options;
  options.profile = &setup.profile;
  options.keep_samples = false;
  MC_TRY(share, read_share(args));
  const bool ratio = args.on(kFindRatio);
  if (ratio && args.on(kFindMaxRate))
    return user_error(err::kUsage, "--find-ratio keeps the rate of the trace, and --find-max-rate changes it",
                      "--find-ratio",
                      "give one of them, or use mc-bench advise, which finds the split and then the highest rate");
  const uint32_t nodes = options.shape.prefill + options.shape.decode;
  if (ratio && nodes <= options.pipeline)
    return user_error(
        err::kBadValue,
        "--find-ratio splits prefill nodes, in groups of --pipeline, and decode nodes, as in --cluster 8p8d",
        "--cluster");
  MC_TRY(sink, Sink::open(args));
  SimProgress progress(args, trace.size());
  std::vector<SimPoint> points;
  for (const sched::Policy* policy : setup.policies)
    for (const sched::Admission* admission : setup.admissions) {
      options.policy = policy, options.sched.admission = admission;
      if (ratio) {
        for (SimPoint& point : find_ratio(trace, blocks, options, nodes, progress)) points.push_back(std::move(point));
        continue;
      }
      points.push_back(find_max_rate(trace, blocks, options, share, progress));
      if (points.back().speedup > 0) continue;
      return user_error(
          err::kBadValue,
          "not even at 1/64 of the trace's rate are " + fixed(share * 100, 1) + " % of the requests within both bounds",
          "--share");
    }
  const size_t best = ratio ? best_of(points) : 0;
  Table table({ratio ? "cluster (* best)" : "cluster", "policy", "admission", "requests/s", "goodput /s", "good %",
               "TTFT s mean", "p90", "TBT ms mean", "p90"});
  for (size_t i = 0; i < points.size(); ++i) {
    const SimPoint& p = points[i];
    const auto rate = [&](double per_s, const char* before = "") {
      return p.rate_per_s > 0 ? before + fixed(per_s, 3) : std::string("-");
    };
    MC_CHECK(sink.line(point_line(p.json)));
    table.add({p.shape.text() + (ratio && i == best ? " *" : ""), std::string(p.json["policy"].as_string()),
               std::string(p.json["admission"].as_string()), rate(p.rate_per_s, p.is_search_limit ? ">= " : ""),
               rate(p.figures.goodput_per_s), fixed(p.figures.effective * 100, 2), fixed(p.figures.ttft_s.mean, 3),
               fixed(p.figures.ttft_s.p90, 3), fixed(p.figures.tbt_s.mean * 1e3, 1),
               fixed(p.figures.tbt_s.p90 * 1e3, 1)});
  }
  MC_CHECK(sink.text(table.text()));
  Json out = result_head("mc.sim.v1", args);
  out.set("trace", args.positional_one("TRACE")).set("rules", "cluster").set("profile", setup.profile.name);
  out.set("ttft_slo_s", options.sched.ttft_slo_s).set("tbt_slo_ms", options.sched.tbt_slo_s * 1e3).set("share", share);
  if (ratio || points.size() == 1) {
    for (const JsonMember& member : points[best].json.members()) out.set(member.key, member.value);
  }
  Json list = Json::array();
  for (const SimPoint& p : points) list.push(point_line(p.json));
  out.set("points", std::move(list));
  MC_CHECK(sink.line(out));
  MC_CHECK(sink.finish());
  return 0;
}

Result<sim::ClusterRun> run_by_rules(const cli::Args& args, const std::vector<sim::TraceRequest>& trace,
                                     const sim::TraceBlocks& blocks, const sim::ClusterOptions& options) {
  if (choice_of(args, kRules) == Rules::cluster) return sim::run_cluster(trace, blocks, options);
  auto run = sim::run_machines(trace, blocks, options);
  if (!run && run.error().code == Code::unsupported)
    return user_error(err::kBadValue, run.error().what, "--rules machines");
  return run;
}

}  // namespace

Result<int> simulate_cluster(const cli::Args& args) {
  MC_TRY(setup, read_setup(args));
  MC_TRY(trace, read_sim_trace(args));
  if (args.on(kFindMaxRate) || args.on(kFindRatio)) return search(args, setup, trace);
  MC_TRY(blocks, blocks_of(trace, setup));
  MC_TRY(sink, Sink::open(args));
  std::vector<Json> points;
  std::string requests, samples;
  setup.options.profile = &setup.profile;
  SimProgress progress(args, trace.size());
  setup.options.progress = progress.watcher();
  // A run may take minutes and a comparison has many runs: an interrupt prints the finished ones.
  const auto write = [&](bool interrupted) -> Result<void> {
    MC_CHECK(sink.text(table(points, args.on(kWide)) + counterfactual_text(points) + copies_table(points) +
                       group_tables(points)));
    MC_CHECK(sink.line(summary(args, setup, points).set("interrupted", interrupted)));
    return sink.finish();
  };
  MC_TRY(interruption, Interruption::open([&] { (void)write(true); }));
  const bool many = setup.policies.size() * setup.admissions.size() > 1;
  for (const sched::Policy* policy : setup.policies)
    for (const sched::Admission* admission : setup.admissions) {
      setup.options.policy = policy;
      setup.options.sched.admission = admission;
      progress.next(std::string(policy->name) + " with admission " + std::string(admission->name));
      MC_TRY(run, run_by_rules(args, trace, blocks, setup.options));
      Json point = cluster_figures(setup.options, run, sim::figures_of(trace, setup.options, run));
      if (args.count(kCounterfactual) > 0)
        add_counterfactual(trace, blocks, setup.options, run, args.count(kCounterfactual), progress, point);
      const auto lock = interruption->lock();
      points.push_back(std::move(point));
      if (!args.text(kSaveRequests).empty()) append_requests(setup.options, trace, run, requests);
      if (setup.options.keep_samples) append_samples(setup.options, run, samples);
      if (many) MC_CHECK(sink.line(point_line(points.back())));
    }
  if (!args.text(kSaveRequests).empty()) MC_CHECK(write_output(args.text(kSaveRequests), requests, kSaveRequests));
  if (!args.text(kSaveSamples).empty()) MC_CHECK(write_output(args.text(kSaveSamples), samples, kSaveSamples));
  const auto lock = interruption->lock();
  MC_CHECK(write(false));
  return 0;
}

}  // namespace mc::bench
