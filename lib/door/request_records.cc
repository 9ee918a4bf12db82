#include "door/request_records.h"

#include "base/assert.h"
#include "door/misses.h"

namespace mc::door {
namespace {

constexpr size_t kListedMax = 50;  // running requests in a list, and as many ended ones

/// The first bytes of a message, which may come from a node, up to a whole character.
std::string kept_message(std::string_view message) {
  if (message.size() <= RequestRecords::kMessageBytesMax) return std::string(message);
  std::string_view begin = message.substr(0, RequestRecords::kMessageBytesMax);
  while (!begin.empty() && (message[begin.size()] & 0xC0) == 0x80) begin.remove_suffix(1);
  return std::string(begin) + "...";
}

Json considered_json(const node::RequestSummary& summary) {
  Json out = Json::array();
  for (const node::Considered& c : summary.considered) {
    Json row = Json::object({{"node", c.node}, {"match_blocks", c.local_blocks}, {"fetch_from", c.fetch_from}});
    row.set("fetch_blocks", c.fetch_blocks).set("queue_ms", c.queue_s * 1e3).set("fetch_ms", c.fetch_s * 1e3);
    row.set("prefill_ms", c.prefill_s * 1e3).set("ttft_ms", c.ttft_s * 1e3);
    row.set("disk_blocks", c.disk_blocks).set("load_ms", c.load_s * 1e3).set("unmeasured", !c.measured);
    row.set("device_blocks", c.device_blocks).set("to_device_ms", c.to_device_s * 1e3);
    row.set("fetch_unmeasured", !c.fetch_measured);
    row.set("sources", sources_json(c.sources)).set("inlined", c.inlined);
    out.push(std::move(row));
  }
  return out;
}

/// The reads of both nodes from other nodes that ended whole.
Json reads_json(const node::RequestSummary& summary) {
  Json out = Json::array();
  const auto add = [&](const NodeId& to, const std::vector<wire::EndedRead>& reads) {
    for (const wire::EndedRead& read : reads)
      out.push(Json::object({{"from", read.node}, {"to", to}, {"tokens", read.tokens}, {"ms", read.ms}}));
  };
  add(summary.prefill, summary.report.reads);
  add(summary.decode, summary.kv.reads);
  return out;
}

Json failed_json(const node::RequestSummary& summary) {
  Json out = Json::array();
  for (const node::FailedAttempt& f : summary.failed)
    out.push(Json::object({{"prefill", f.prefill},
                           {"decode", f.decode},
                           {"stage", to_string(f.stage)},
                           {"reason", to_string(f.reason)}}));
  return out;
}

/// Writes the members that a request has from its first token on, running or ended.
void put(const RequestProgress& p, const node::RequestSummary& j, TimePoint now, Json& out) {
  out.set("prompt_tokens", p.prompt_tokens).set("output_tokens", p.tokens);
  out.set("prefill_node", j.prefill).set("decode_node", j.decode).set("attempts", j.attempts);
  out.set("tenant", p.tenant.empty() ? "default" : p.tenant).set("priority", p.priority);
  out.set("held_ms", j.held_s * 1e3).set("held_for", to_string(j.held_for));
  out.set("queue_ms", j.report.queue_ms).set("accept_ms", j.report.accept_ms).set("fetch_ms", j.report.fetch_ms);
  out.set("fetch_hidden_ms", j.report.fetch_hidden_ms).set("reads", reads_json(j));
  out.set("load_ms", j.report.load_ms).set("cached_disk_tokens", j.report.cached_disk);
  out.set("prefill_ms", j.report.compute_ms).set("chunks", j.report.chunks);
  const bool has_first = p.first != kNever;
  out.set("ttft_ms", has_first ? Json(to_ms(p.first - p.submitted)) : Json());
  out.set("decode_ms", has_first ? Json(to_ms(p.last - p.first)) : Json());
  out.set("total_ms", to_ms(now - p.submitted));
  out.set("predicted_ttft_ms", j.predicted_ttft_s * 1e3).set("predicted_tbt_ms", j.predicted_tbt_s * 1e3);
  out.set("cached_local_tokens", j.report.cached_local).set("cached_remote_tokens", j.report.cached_remote);
  out.set("miss_reason", first_miss(j.report.misses, MissReader::operators));
  out.set("misses", misses_json(j.report.misses, MissReader::operators));
  out.set("fallback", wire::describe(j.report.fallback));
  out.set("kv_from", kv_from_json(j)).set("kv_holders_ms", j.kv.holders_ms);
  out.set("kv_fallback", wire::to_string(j.kv.fallback));
  out.set("considered", considered_json(j)).set("failed_attempts", failed_json(j)).set("set_aside", j.set_aside);
}

/// The record of a running request. Before its first token it waits, is prefilled, or is handed to decode.
Json running_json(const RequestId& req, const RequestProgress& p, TimePoint now) {
  Json out = Json::object({{"id", req}, {"x_request_id", p.client_id}, {"outcome", "running"}});
  if (p.first != kNever) {
    put(p, p.summary, now, out.set("stage", "decode"));
    return out;
  }
  out.set("stage", "queue or prefill").set("prompt_tokens", p.prompt_tokens).set("output_tokens", p.tokens);
  return std::move(out.set("total_ms", to_ms(now - p.submitted)));
}

/// The request id of an answer's id: req_X of cmpl-X and chatcmpl-X. Other ids stay as they are.
std::string request_id(const std::string& id) {
  for (const std::string_view kind : {"cmpl-", "chatcmpl-"})
    if (id.starts_with(kind)) return "req_" + id.substr(kind.size());
  return id;
}

}  // namespace

Json kv_from_json(const node::RequestSummary& summary) {
  Json out = Json::object();
  const wire::KvReport& kv = summary.kv;
  if (kv.req.empty()) return out;
  if (kv.local > 0) out.set(summary.decode, kv.local);
  for (const auto& [node, tokens] : kv.holders) out.set(node, std::atoll(tokens.c_str()));
  if (kv.from_prefill > 0) out.set(summary.prefill, kv.from_prefill);
  return out;
}

Json sources_json(const std::vector<node::FetchSource>& sources) {
  Json out = Json::array();
  for (const node::FetchSource& s : sources) {
    MC_ASSERT(!s.node.empty() && s.blocks > 0);
    out.push(Json::object({{"node", s.node}, {"first_block", s.first_block}, {"blocks", s.blocks}}));
  }
  return out;
}

void RequestRecords::begin(const RequestId& req, RequestProgress progress) {
  const bool fresh = running_.emplace(req, std::move(progress)).second;
  MC_ASSERT(fresh);
}

void RequestRecords::end(const node::Reply& reply, TimePoint now) {
  const auto at = running_.find(reply.req);
  MC_ASSERT(at != running_.end());
  const RequestProgress& progress = at->second;
  const bool failed = reply.kind == node::Reply::Kind::failed, rejected = reply.kind == node::Reply::Kind::rejected;
  Json out = Json::object({{"id", reply.req}, {"x_request_id", progress.client_id}});
  out.set("outcome", rejected ? "rejected" : failed ? "failed" : "finished");
  out.set("reason", failed || rejected ? to_string(reply.reason) : to_string(reply.finish));
  if (failed || rejected) out.set("stage", to_string(reply.stage)).set("message", kept_message(reply.message));
  if (rejected)
    out.set("bound", sched::to_string(reply.bound))
        .set("predicted_ms", reply.predicted_ms)
        .set("allowed_ms", reply.allowed_ms);
  put(progress, reply.summary, now, out);
  ended_.emplace_back(reply.req, std::move(out));
  running_.erase(at);
  if (ended_.size() > kEndedMax) ended_.pop_front();
  MC_ASSERT_LE(ended_.size(), kEndedMax);
}

std::optional<Json> RequestRecords::find(const std::string& asked, TimePoint now) const {
  const std::string id = request_id(asked);
  for (auto it = ended_.rbegin(); it != ended_.rend(); ++it)
    if (it->first == id || it->second["x_request_id"].as_string() == id) return it->second;
  for (const auto& [req, progress] : running_)
    if (req == id || progress.client_id == id) return running_json(req, progress, now);
  return std::nullopt;
}

Json RequestRecords::list(TimePoint now) const {
  Json out = Json::array();
  const auto add = [&](const Json& one) {
    Json row = Json::object();
    for (const char* key : {"id", "x_request_id", "outcome", "reason", "stage", "prefill_node", "decode_node",
                            "prompt_tokens", "output_tokens", "ttft_ms", "total_ms"})
      if (one.has(key)) row.set(key, one[key]);
    out.push(std::move(row));
  };
  for (const auto& [req, progress] : running_) {
    if (out.size() == kListedMax) break;
    add(running_json(req, progress, now));
  }
  for (auto it = ended_.rbegin(); it != ended_.rend() && out.size() < 2 * kListedMax; ++it) add(it->second);
  MC_ASSERT_LE(out.size(), 2 * kListedMax);
  return out;
}

}  // namespace mc::door
