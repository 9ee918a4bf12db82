// The text forms of shapes and failures, and the figures of a run.

#include "sim/cluster.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <type_traits>

#include "base/rng.h"
#include "base/units.h"
#include "sim/cluster_engine.h"

namespace mc::sim {
namespace {

// The share of good requests in samples with replacement is a mean of draws from a coin: its counts are drawn
// request by request, so that the interval holds for any trace length.
void bootstrap(uint64_t seed, ClusterFigures& out) {
  constexpr int kSamples = 1000;
  Rng rng = Rng(seed).fork("bootstrap");
  const double n = static_cast<double>(out.requests), p = static_cast<double>(out.good) / n;
  std::vector<double> shares;
  for (int i = 0; i < kSamples; ++i) {
    uint64_t good = 0;
    if (n * p > 200 && n * (1 - p) > 200) {  // a binomial count, by its normal limit
      good = static_cast<uint64_t>(std::llround(std::clamp(n * p + std::sqrt(n * p * (1 - p)) * rng.normal(), 0.0, n)));
    } else {
      for (uint64_t r = 0; r < out.requests; ++r) good += rng.below(out.requests) < out.good;
    }
    shares.push_back(static_cast<double>(good) / n);
  }
  std::sort(shares.begin(), shares.end());
  out.goodput_low = shares[kSamples / 40], out.goodput_high = shares[kSamples - 1 - kSamples / 40];
}

/// Figures of the requests by key; nothing where all have the same.
template <typename Key, typename NameOf>
std::vector<GroupFigures> groups_of(const std::vector<TraceRequest>& trace, const ClusterOptions& options,
                                    const ClusterRun& run, const Key& key, const NameOf& name_of) {
  std::map<std::invoke_result_t<Key, const TraceRequest&>, std::pair<GroupFigures, std::vector<double>>> groups;
  double all_tokens = 0;
  for (size_t i = 0; i < trace.size(); ++i) {
    const RequestRecord& r = run.requests[i];
    auto& [group, ttft_s] = groups[key(trace[i])];
    ++group.requests;
    group.good += is_good(r, options);
    group.rejected += r.fate != Fate::served && r.fate != Fate::unfinished;
    group.rejected_quota += r.fate == Fate::rejected_quota;
    if (r.fate != Fate::served) continue;
    ++group.served;
    ttft_s.push_back(r.ttft_s);
    const double tokens = static_cast<double>(trace[i].input_tokens + std::max<uint64_t>(1, trace[i].output_tokens));
    group.share += tokens, all_tokens += tokens;
  }
  std::vector<GroupFigures> out;
  if (groups.size() < 2) return out;
  for (auto& [its_key, entry] : groups) {
    auto& [group, ttft_s] = entry;
    group.name = name_of(its_key);
    group.effective = static_cast<double>(group.good) / static_cast<double>(group.requests);
    group.goodput_per_s = run.span_s > 0 ? static_cast<double>(group.good) / run.span_s : 0;
    group.share = all_tokens > 0 ? group.share / all_tokens : 0;
    group.ttft_s = percentiles(std::move(ttft_s));
    out.push_back(std::move(group));
  }
  return out;
}

}  // namespace

std::string ClusterShape::text() const {
  if (coupled > 0) return std::to_string(coupled) + "m";
  return std::to_string(prefill) + "p" + std::to_string(decode) + "d";
}

Result<ClusterShape> parse_cluster(std::string_view text) {
  const auto bad = [&](const std::string& why) {
    return Error{Code::invalid, "'" + std::string(text.substr(0, 40)) + "' " + why};
  };
  const auto count = [&](std::string_view digits) -> uint32_t {
    const auto n = parse_u64(digits, 1, kClusterNodesMax);
    return n ? static_cast<uint32_t>(*n) : 0;
  };
  ClusterShape out;
  const size_t p = text.find('p');
  if (text.ends_with('m')) {
    out.coupled = count(text.substr(0, text.size() - 1));
  } else if (text.ends_with('d') && p != std::string_view::npos) {
    out.prefill = count(text.substr(0, p));
    out.decode = count(text.substr(p + 1, text.size() - p - 2));
  } else {
    return bad(
        "is no cluster; write 8p8d (prefill and decode nodes) or 16m (nodes that do both); 8p alone is for --rules "
        "paper");
  }
  if (out.coupled == 0 && (out.prefill == 0 || out.decode == 0))
    return bad("needs 1 to " + std::to_string(kClusterNodesMax) + " nodes of each kind");
  return out;
}

Result<NodeFailure> parse_failure(std::string_view text, const ClusterShape& shape) {
  const auto bad = [&](const std::string& why) {
    return Error{Code::invalid, "'" + std::string(text.substr(0, 40)) + "' " + why};
  };
  const size_t sign = text.find('@');
  if (sign == std::string_view::npos || sign < 2)
    return bad("is no failure; write p3@120s, or d0@1m-5m for a node that comes back");
  NodeFailure out;
  out.role = text[0];
  const uint32_t count = out.role == 'p'   ? shape.prefill
                         : out.role == 'd' ? shape.decode
                         : out.role == 'm' ? shape.coupled
                                           : 0;
  const auto index = parse_u64(text.substr(1, sign - 1), 0, kClusterNodesMax);
  if (!index || *index >= count) return bad("names no node of " + shape.text());
  out.index = static_cast<uint32_t>(*index);
  std::string_view times = text.substr(sign + 1);
  const size_t dash = times.find('-');
  const auto from = parse_duration(times.substr(0, dash));
  if (!from) return bad("needs a time as in p3@120s");
  out.at_s = to_seconds(*from);
  if (dash == std::string_view::npos) return out;
  const auto back = parse_duration(times.substr(dash + 1));
  if (!back || to_seconds(*back) <= out.at_s) return bad("needs a later time to come back, as in d0@1m-5m");
  out.back_s = to_seconds(*back);
  return out;
}

std::string_view to_string(Fate fate) {
  switch (fate) {
    case Fate::unfinished: return "unfinished";
    case Fate::served: return "served";
    case Fate::rejected_prefill: return "rejected_ttft";
    case Fate::rejected_decode: return "rejected_decode";
    case Fate::rejected_after: return "rejected_after_prefill";
    case Fate::rejected_node: return "rejected_no_node";
    case Fate::rejected_length: return "rejected_too_long";
    case Fate::rejected_quota: return "rejected_quota";
  }
  return "unfinished";
}

std::string_view to_string(HoldOrder order) {
  switch (order) {
    case HoldOrder::arrival: return "arrival";
    case HoldOrder::work: return "work";
  }
  return "arrival";
}

bool is_good(const RequestRecord& r, const ClusterOptions& options) {
  return r.fate == Fate::served && (options.sched.ttft_slo_s <= 0 || r.ttft_s <= options.sched.ttft_slo_s) &&
         (options.sched.tbt_slo_s <= 0 || r.tbt_s <= options.sched.tbt_slo_s);
}

ClusterRun run_cluster(const std::vector<TraceRequest>& trace, const TraceBlocks& blocks,
                       const ClusterOptions& options) {
  return ClusterEngine(trace, blocks, options).run();
}

ClusterFigures figures_of(const std::vector<TraceRequest>& trace, const ClusterOptions& options,
                          const ClusterRun& run) {
  ClusterFigures out;
  out.requests = trace.size();
  std::vector<double> ttft, tbt, heard, handoff;
  double input = 0, dram = 0, remote = 0, ssd = 0, ttft_ok = 0, tbt_ok = 0;
  for (size_t i = 0; i < trace.size(); ++i) {
    const RequestRecord& r = run.requests[i];
    out.good += is_good(r, options);
    out.rejected_prefill += r.fate == Fate::rejected_prefill;
    out.rejected_decode += r.fate == Fate::rejected_decode;
    out.rejected_after += r.fate == Fate::rejected_after;
    out.rejected_node += r.fate == Fate::rejected_node;
    out.rejected_length += r.fate == Fate::rejected_length;
    out.rejected_quota += r.fate == Fate::rejected_quota;
    out.gpu_s += r.prefill_s;
    if (r.fate != Fate::served) out.wasted_gpu_s += r.prefill_s;
    if (r.prefill_s > 0) {
      input += static_cast<double>(trace[i].input_tokens);
      dram += r.dram_tokens, remote += r.remote_tokens, ssd += r.ssd_tokens;
    }
    if (r.fate != Fate::served) continue;
    ++out.served;
    ttft.push_back(r.ttft_s);
    ttft_ok += options.sched.ttft_slo_s <= 0 || r.ttft_s <= options.sched.ttft_slo_s;
    tbt_ok += options.sched.tbt_slo_s <= 0 || r.tbt_s <= options.sched.tbt_slo_s;
    if (r.tbt_s <= 0) continue;
    tbt.push_back(r.tbt_s), heard.push_back(r.heard_tbt_s), handoff.push_back(r.handoff_s);
  }
  const double served = std::max<double>(1, static_cast<double>(out.served));
  out.ttft_ok = ttft_ok / served, out.tbt_ok = tbt_ok / served;
  out.gpu_s_mean = out.gpu_s / served;
  out.ttft_s = percentiles(std::move(ttft)), out.tbt_s = percentiles(std::move(tbt));
  out.heard_tbt_s = percentiles(std::move(heard));
  out.handoff_s = percentiles(std::move(handoff));
  if (input > 0) {
    out.dram_hit = dram / input, out.remote_hit = remote / input, out.ssd_hit = ssd / input;
    out.token_hit = out.dram_hit + out.remote_hit + out.ssd_hit;
  }
  out.batch_mean = run.decode_busy_s > 0 ? run.row_s / run.decode_busy_s : 0;
  out.tenants = groups_of(
      trace, options, run, [](const TraceRequest& r) { return std::string_view(r.tenant); },
      [](std::string_view name) { return std::string(name.empty() ? "default" : name); });
  out.priorities = groups_of(
      trace, options, run, [](const TraceRequest& r) { return r.priority; },
      [](int priority) { return std::to_string(priority); });
  if (trace.empty()) return out;
  out.effective = static_cast<double>(out.good) / static_cast<double>(out.requests);
  bootstrap(options.seed, out);
  const double rate = run.span_s > 0 ? static_cast<double>(out.requests) / run.span_s : 0;
  out.goodput_per_s = out.effective * rate;
  out.goodput_low *= rate, out.goodput_high *= rate;
  return out;
}

}  // namespace mc::sim
