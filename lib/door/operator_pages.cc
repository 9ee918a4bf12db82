#include "door/operator_pages.h"

#include <algorithm>

#include "base/assert.h"
#include "door/request_records.h"
#include "wire/codec.h"

namespace mc::door {
namespace {

/// The pairs of nodes, and the nodes, that are set aside because requests failed at them.
Json breakers_json(const sched::Breakers& breakers, TimePoint now) {
  Json out = Json::array();
  for (const auto& [part, entry] : breakers.entries()) {
    if (entry.state == sched::BreakerState::closed) continue;
    const bool open = entry.state == sched::BreakerState::open;
    Json row = Json::object({{"prefill", part.prefill}, {"decode", part.decode}});
    row.set("state", sched::to_string(entry.state)).set("failures", entry.failures);
    row.set("retry_in_ms", open ? std::max(0.0, to_ms(entry.until - now)) : 0.0).set("probe", entry.probe);
    out.push(std::move(row));
  }
  return out;
}

constexpr size_t kTransfersMax = 256;

/// The learnt costs of reads between two nodes, the slowest links first.
Json transfers_json(const node::Conductor& conductor, TimePoint now) {
  auto all = conductor.flights().links(now);
  std::ranges::stable_sort(all, [](const auto& a, const auto& b) { return a.slowness() > b.slowness(); });
  all.resize(std::min(all.size(), kTransfersMax));
  Json out = Json::array();
  for (const node::Flights::Link& t : all) {
    Json row = Json::object({{"from", t.from}, {"to", t.to}, {"reads", t.cost.reads}, {"age_s", to_seconds(t.age)}});
    row.set("latency_ms", t.cost.fixed_s * 1e3).set("bytes_per_s", 1 / t.cost.s_per_byte);
    row.set("usual_bytes_per_s", 1 / t.usual_s_per_byte);
    out.push(std::move(row));
  }
  return out;
}

/// The prefill nodes that the placement compared, and the decode node that may compute the prompt itself.
Json candidates_json(const node::Conductor::Explanation& e) {
  const auto& p = e.placement;
  Json out = Json::array();
  for (size_t i = 0; i < p.candidates.size(); ++i) {
    const auto& c = p.candidates[i];
    Json row = Json::object();
    row.set("node", e.snapshot.prefill[c.node].name).set("match_blocks", c.local_blocks);
    row.set("fetch_from", c.holder < 0 ? "" : e.snapshot.holder_names[static_cast<size_t>(c.holder)]);
    row.set("sources", sources_json(e.sources[i]));
    row.set("fetch_blocks", c.fetch_blocks).set("wait_ms", c.wait_s * 1e3).set("queue_ms", c.queue_s * 1e3);
    row.set("fetch_ms", c.fetch_s * 1e3).set("prefill_ms", c.prefill_s * 1e3).set("ttft_ms", c.ttft_s * 1e3);
    row.set("slow_start_ms", c.handicap_s * 1e3);
    row.set("disk_blocks", sched::disk_blocks_of(e.snapshot, e.snapshot.prefill[c.node]));
    row.set("load_ms", c.load_s * 1e3);
    row.set("device_blocks", sched::device_blocks_of(e.snapshot, c.node, c.local_blocks));
    row.set("to_device_ms", c.to_device_s * 1e3);
    row.set("unmeasured", !e.snapshot.prefill[c.node].measured);
    row.set("fetch_unmeasured", !sched::is_fetch_measured(e.snapshot, c));
    const bool is_best = static_cast<int>(i) == p.candidate && !p.is_inlined;
    row.set("inlined", false).set("verdict", is_best ? "winner" : p.candidate < 0 ? "rejected" : "slower");
    out.push(std::move(row));
  }
  if (!p.inlined) return out;
  const sched::InlineCandidate& c = *p.inlined;
  Json row =
      Json::object({{"node", e.snapshot.decode[c.decode].name}, {"match_blocks", c.local_blocks}, {"fetch_from", ""}});
  row.set("sources", Json::array()).set("fetch_blocks", 0).set("wait_ms", 0.0).set("queue_ms", c.queue_s * 1e3);
  row.set("fetch_ms", 0.0).set("prefill_ms", c.prefill_s * 1e3).set("ttft_ms", c.ttft_s * 1e3);
  row.set("slow_start_ms", 0.0).set("disk_blocks", 0).set("load_ms", 0.0).set("unmeasured", !c.measured);
  row.set("device_blocks", 0).set("to_device_ms", 0.0);
  row.set("fetch_unmeasured", false).set("inlined", true).set("gap_ms", c.gap_s * 1e3);
  row.set("verdict", p.is_inlined ? "winner" : p.candidate < 0 ? "rejected" : "slower");
  out.push(std::move(row));
  return out;
}

}  // namespace

Json cluster_json(const node::Conductor& conductor, const std::string& model, const std::string& url, TimePoint now) {
  Json nodes = Json::array();
  for (const auto& n : conductor.nodes(now)) {
    const auto& load = n.load;
    const double hits =
        load.prompt_tokens ? static_cast<double>(load.hit_tokens) / static_cast<double>(load.prompt_tokens) : 0;
    Json node = Json::object();
    node.set("id", n.name).set("role", wire::to_string(n.role)).set("state", to_string(n.state)).set("http", n.http);
    node.set("url", n.http.empty() ? "" : "http://" + n.http);
    node.set("control", n.control_uri).set("instance", n.instance.hex()).set("model", n.model);
    node.set("device", n.device);
    node.set("running", load.running).set("waiting", load.waiting).set("requests", n.requests);
    node.set("queue_s", n.queue_s).set("kv_tokens", load.kv_tokens).set("tbt_ms", load.tbt_s * 1e3);
    node.set("page_bytes", n.page_bytes).set("pages_total", load.pages_free + load.pages_private + load.pages_cached);
    node.set("pages_free", load.pages_free).set("pages_private", load.pages_private);
    node.set("pages_cached", load.pages_cached).set("pages_pinned", load.pages_pinned).set("leases", load.leases);
    node.set("blocks_indexed", n.indexed.count).set("hit_rate", hits).set("up_s", to_seconds(n.up));
    node.set("disk_capacity_bytes", load.disk_capacity_bytes).set("disk_bytes", load.disk_bytes);
    node.set("disk_blocks", load.disk_blocks).set("disk_block_ms", load.disk_block_s * 1e3);
    node.set("disk_lost", load.disk_lost).set("disk_hit_tokens", load.disk_hit_tokens);
    node.set("device_pages", load.device_pages).set("device_pages_held", load.device_pages_held);
    node.set("device_blocks", load.device_blocks).set("device_block_ms", load.device_block_s * 1e3);
    node.set("device_loaded_blocks", load.device_loaded_blocks);
    node.set("device_evicted_blocks", load.device_evicted_blocks);
    node.set("heartbeats", n.heartbeats)
        .set("prefill_error", n.prefill_error)
        .set("step_error", n.step_error)
        .set("lacks", n.lacks)
        .set("last_error", load.last_error);
    Json labels = Json::object();
    for (const auto& [key, value] : n.labels) labels.set(key, value);
    node.set("labels", std::move(labels));
    nodes.push(std::move(node));
  }
  const auto& s = conductor.flights().stats();
  Json out = Json::object();
  out.set("model", model).set("url", url).set("nodes", std::move(nodes));
  out.set("requests_unfinished", conductor.flights().size());
  Json totals = Json::object();
  totals.set("submitted", s.submitted).set("finished", s.finished).set("failed", s.failed).set("rejected", s.rejected);
  totals.set("cancelled", s.cancelled).set("retried", s.retried).set("prompt_tokens", s.prompt_tokens);
  totals.set("cached_local_tokens", s.cached_local).set("cached_remote_tokens", s.cached_remote);
  totals.set("answer_tokens", s.answer_tokens);
  const auto& copies = conductor.copies().stats();
  totals.set("copies", copies.copies).set("copied_blocks", copies.blocks).set("copies_failed", copies.failed);
  out.set("totals", std::move(totals));
  Json tenants = Json::array();
  for (const auto& t : conductor.tenants().statuses(now))
    tenants.push(Json::object({{"tenant", t.name},
                               {"held", t.waiting},
                               {"unfinished", t.unfinished},
                               {"bucket_tokens", t.level},
                               {"tokens", t.tokens},
                               {"submitted", t.submitted},
                               {"rejected", t.rejected}}));
  out.set("held", conductor.line().size()).set("copying", conductor.copies().size());
  out.set("breakers", breakers_json(conductor.breakers(), now));
  out.set("transfers", transfers_json(conductor, now));
  out.set("tenants", std::move(tenants));
  return out;
}

Json explanation_json(const node::Conductor::Explanation& e, const node::Submit& submit) {
  MC_ASSERT(e.snapshot.block_tokens > 0);
  Json out = Json::object();
  out.set("prompt_tokens", submit.ids.size()).set("block_tokens", e.snapshot.block_tokens);
  out.set("blocks", e.hashes.size()).set("reusable_blocks", e.reusable_blocks);
  out.set("tail_tokens", submit.ids.size() % e.snapshot.block_tokens);
  out.set("deadline_ms", to_ms(submit.deadline));
  out.set("ttft_slo_ms", submit.ttft_slo_s * 1e3).set("tbt_slo_ms", submit.tbt_slo_s * 1e3);
  Json hashes = Json::array();
  for (const auto& hash : e.hashes) hashes.push(hash.hex());
  out.set("block_hashes", std::move(hashes));
  const auto& p = e.placement;
  MC_ASSERT_LT(p.candidate, static_cast<int>(p.candidates.size()));
  MC_ASSERT_LT(p.decode, static_cast<int>(e.snapshot.decode.size()));
  MC_ASSERT_EQ(e.snapshot.holders.size(), e.snapshot.holder_names.size());
  MC_ASSERT_EQ(e.sources.size(), p.candidates.size());
  out.set("candidates", candidates_json(e));
  Json holders = Json::array();
  for (size_t i = 0; i < e.snapshot.holders.size(); ++i) {
    const auto& h = e.snapshot.holders[i];
    holders.push(Json::object({{"node", e.snapshot.holder_names[i]},
                               {"match_blocks", h.readable_blocks},
                               {"pending_blocks", h.pending_blocks},
                               {"disk_blocks", h.disk_blocks},
                               {"disk_block_ms", h.disk_block_s * 1e3}}));
  }
  out.set("holders", std::move(holders));
  Json bars = Json::array();
  for (const sched::Bar& bar : e.snapshot.bars)
    bars.push(
        Json::object({{"prefill", bar.prefill < 0 ? "" : e.snapshot.prefill[static_cast<size_t>(bar.prefill)].name},
                      {"decode", bar.decode < 0 ? "" : e.snapshot.decode[static_cast<size_t>(bar.decode)].name},
                      {"retry_in_ms", bar.left_s * 1e3}}));
  out.set("set_aside", std::move(bars));
  if (p.decode >= 0) {
    const auto& d = e.snapshot.decode[static_cast<size_t>(p.decode)];
    out.set("decode", Json::object({{"node", d.name},
                                    {"rows", d.rows},
                                    {"kv_tokens", d.kv_tokens},
                                    {"tbt_ms", p.tbt_s * 1e3},
                                    {"unmeasured", !d.measured},
                                    {"inlined", p.is_inlined},
                                    {"sources", sources_json(e.decode_sources)}}));
  }
  out.set("admit", p.candidate >= 0 && !e.refusal);
  const std::string_view no_place = e.unready != node::Reason::none ? to_string(e.unready) : to_string(p.reason);
  out.set("reason", e.refusal ? std::string_view(e.refusal->message) : no_place);
  out.set("tenant", submit.tenant.empty() ? "default" : submit.tenant).set("priority", submit.priority);
  out.set("hold", Json::object({{"waits", e.holds}, {"held", e.held}, {"before_ms", e.before_s * 1e3}}));
  out.set("replicate", Json::object({{"blocks", e.demand.blocks},
                                     {"load", e.demand.load},
                                     {"replicas", e.demand.replicas},
                                     {"copy_from", e.copy_from},
                                     {"copy_to", e.copy_to}}));
  const sched::Verdict& v = p.verdict;
  out.set("admission", Json::object({{"stage", sched::phase_of(v.bound)},
                                     {"load_prefill", v.load_prefill},
                                     {"load_decode", v.load_decode},
                                     {"rows", v.rows},
                                     {"kv_tokens", v.kv_tokens},
                                     {"at_ms", v.at_s * 1e3},
                                     {"predicted_ms", v.predicted_s * 1e3},
                                     {"allowed_ms", v.allowed_s * 1e3}}));
  out.set("predicted_ttft_ms", p.ttft_s * 1e3).set("predicted_tbt_ms", p.tbt_s * 1e3);
  return out;
}

}  // namespace mc::door
