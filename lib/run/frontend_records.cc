// GET /requests/ID, what `mc-conductor why` asks for: where a request went, what each stage took, what had
// been predicted, and which nodes were weighed. Records of the last requests stay in memory; no text is kept.

#include <algorithm>

#include "base/errors.h"
#include "run/frontend.h"
#include "run/misses.h"

namespace mc::run {
namespace {

constexpr size_t kRecordsMax = 2000;  // about 2 KiB each
constexpr size_t kListedMax = 50;     // running requests in a list, and as many ended ones

Json considered_json(const node::RequestSummary& summary) {
  Json out = Json::array();
  for (const node::Considered& c : summary.considered) {
    Json row = Json::object({{"node", c.node}, {"match_blocks", c.local_blocks}, {"fetch_from", c.fetch_from}});
    row.set("fetch_blocks", c.fetch_blocks).set("queue_ms", c.queue_s * 1e3).set("fetch_ms", c.fetch_s * 1e3);
    row.set("prefill_ms", c.prefill_s * 1e3).set("ttft_ms", c.ttft_s * 1e3);
    out.push(std::move(row));
  }
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

}  // namespace

void Frontend::Timing::put(const node::RequestSummary& j, TimePoint now, Json& out) const {
  out.set("prompt_tokens", prompt_tokens).set("output_tokens", tokens);
  out.set("prefill_node", j.prefill).set("decode_node", j.decode).set("attempts", j.attempts);
  out.set("tenant", tenant.empty() ? "default" : tenant).set("priority", priority);
  out.set("held_ms", j.held_s * 1e3).set("held_for", to_string(j.held_for));
  out.set("queue_ms", j.report.queue_ms).set("accept_ms", j.report.accept_ms).set("fetch_ms", j.report.fetch_ms);
  out.set("prefill_ms", j.report.compute_ms).set("chunks", j.report.chunks);
  const bool has_first = first != kNever;
  out.set("ttft_ms", has_first ? Json(to_ms(first - submitted)) : Json());
  out.set("decode_ms", has_first ? Json(to_ms(last - first)) : Json());
  out.set("total_ms", to_ms(now - submitted));
  out.set("predicted_ttft_ms", j.predicted_ttft_s * 1e3).set("predicted_tbt_ms", j.predicted_tbt_s * 1e3);
  out.set("cached_local_tokens", j.report.cached_local).set("cached_remote_tokens", j.report.cached_remote);
  out.set("miss_reason", first_miss(j.report.misses, MissReader::operators));
  out.set("misses", misses_json(j.report.misses, MissReader::operators));
  out.set("fallback", wire::describe(j.report.fallback));
  out.set("considered", considered_json(j)).set("failed_attempts", failed_json(j)).set("set_aside", j.set_aside);
}

void Frontend::keep_record(const node::Reply& reply, const Timing& timing, TimePoint now) {
  const bool failed = reply.kind == node::Reply::Kind::failed, rejected = reply.kind == node::Reply::Kind::rejected;
  Json out = Json::object({{"id", reply.req}, {"x_request_id", timing.client_id}});
  out.set("outcome", rejected ? "rejected" : failed ? "failed" : "finished");
  out.set("reason", failed || rejected ? to_string(reply.reason) : to_string(reply.finish));
  if (failed || rejected) out.set("stage", to_string(reply.stage)).set("message", reply.message);
  if (rejected)
    out.set("bound", sched::to_string(reply.bound))
        .set("predicted_ms", reply.predicted_ms)
        .set("allowed_ms", reply.allowed_ms);
  timing.put(reply.summary, now, out);
  records_.emplace_back(reply.req, std::move(out));
  if (records_.size() > kRecordsMax) records_.pop_front();
}

/// The record of a running request. Before its first token it waits, is prefilled, or is handed to decode.
Json Frontend::Timing::running(const RequestId& req, TimePoint now) const {
  Json out = Json::object({{"id", req}, {"x_request_id", client_id}, {"outcome", "running"}});
  if (first != kNever) {
    put(journey, now, out.set("stage", "decode"));
    return out;
  }
  out.set("stage", "queue or prefill").set("prompt_tokens", prompt_tokens).set("output_tokens", tokens);
  return std::move(out.set("total_ms", to_ms(now - submitted)));
}

/// Our id of what an answer calls itself: cmpl-X and chatcmpl-X are req_X; others are left as they are.
std::string request_id(const std::string& id) {
  for (const std::string_view kind : {"cmpl-", "chatcmpl-"})
    if (id.starts_with(kind)) return "req_" + id.substr(kind.size());
  return id;
}

/// Answers with the running requests, then the requests that ended last, newest first.
void Frontend::request_list(http::Responder out) {
  loop_->post([this, out](TimePoint now, node::Actions&) {
    Json list = Json::array();
    for (const auto& [req, timing] : timings_) {
      if (list.size() == kListedMax) break;
      list.push(timing.running(req, now));
    }
    for (auto it = records_.rbegin(); it != records_.rend() && list.size() < 2 * kListedMax; ++it)
      list.push(it->second);
    Json brief = Json::array();
    for (const Json& one : list.items()) {
      Json row = Json::object();
      for (const char* key : {"id", "x_request_id", "outcome", "reason", "stage", "prefill_node", "decode_node",
                              "prompt_tokens", "output_tokens", "ttft_ms", "total_ms"})
        if (one.has(key)) row.set(key, one[key]);
      brief.push(std::move(row));
    }
    out.respond(http::json_response(200, Json::object({{"requests", std::move(brief)}}).dump()));
  });
}

// The newest of a client's id wins: clients repeat theirs.
void Frontend::request_record(const std::string& asked, http::Responder out) {
  if (asked.empty()) return request_list(std::move(out));
  const std::string id = request_id(asked);
  loop_->post([this, id, out](TimePoint now, node::Actions&) {
    for (auto it = records_.rbegin(); it != records_.rend(); ++it)
      if (it->first == id || it->second["x_request_id"].as_string() == id)
        return out.respond(http::json_response(200, it->second.dump()));
    for (const auto& [req, timing] : timings_) {
      if (req != id && timing.client_id != id) continue;
      return out.respond(http::json_response(200, timing.running(req, now).dump()));
    }
    out.respond(http::error_response(err::kNotFound, "no record of request " + id.substr(0, 128) + "; the last " +
                                                         std::to_string(kRecordsMax) +
                                                         " are kept, under our id or the client's x-request-id"));
  });
}

}  // namespace mc::run
