#include "verbs/request_text.h"

#include <algorithm>
#include <cstdio>
#include <vector>

#include "base/table.h"
#include "base/units.h"
#include "node/node.h"
#include "verbs/json_text.h"
#include "verbs/misses_text.h"

namespace mc::verbs {
namespace {

std::string or_dash(const Json& value) {
  return value.as_string().empty() ? "-" : text_of(value);
}

std::string fixed(double value) {
  char text[64];
  std::snprintf(text, sizeof text, "%.1f", value);
  return text;
}

std::string ms(const Json& value) {
  return value.is_number() ? fixed(value.as_double()) : "-";
}

/// The blocks that a candidate fetches, and from which nodes: "60 of c0", "20 of p1+40 of c0".
std::string fetch_text(const Json& candidate) {
  std::string out;
  for (const Json& source : candidate["sources"].items())
    out += (out.empty() ? "" : "+") + count(source["blocks"]) + " of " + text_of(source["node"]);
  return out.empty() ? "-" : out;
}

/// Text of the reads of a decode node from holders: ", reads 60 blocks of c0".
std::string read_text(const Json& sources) {
  std::string out;
  for (const Json& source : sources.items())
    out += (out.empty() ? ", reads " : " + ") + count(source["blocks"]) + " blocks of " + text_of(source["node"]);
  return out;
}

/// One row a candidate. `reusable` is the number of blocks that a node could have, or null if it is not known. The
/// columns of disks are there if a candidate has blocks on its disk.
std::string candidates_table(const Json& candidates, const Json& reusable) {
  const auto rows = candidates.items();
  const bool disks = std::any_of(rows.begin(), rows.end(), [](const Json& c) { return c["disk_blocks"].as_int() > 0; });
  const bool copies =
      std::any_of(rows.begin(), rows.end(), [](const Json& c) { return c["to_device_ms"].as_double() > 0; });
  const bool verdicts = std::any_of(rows.begin(), rows.end(), [](const Json& c) { return c.has("verdict"); });
  std::vector<std::string> head = {"NODE", "MATCH"};
  if (disks) head.insert(head.end(), {"ON SSD"});
  head.insert(head.end(), {"FETCH", "QUEUE ms"});
  if (disks) head.insert(head.end(), {"LOAD ms"});
  head.insert(head.end(), {"FETCH ms"});
  if (copies) head.insert(head.end(), {"TO GPU ms"});
  head.insert(head.end(), {"PREFILL ms", "TTFT ms"});
  if (verdicts) head.insert(head.end(), {"VERDICT"});
  Table table(head);
  if (verdicts) table.left({"VERDICT"});
  for (const Json& c : rows) {
    const std::string node = or_dash(c["node"]) + (c["inlined"].as_bool() ? " inlined" : "");
    std::vector<std::string> row = {node, count(c["match_blocks"])};
    if (reusable.is_number()) row.back() += "/" + count(reusable);
    if (disks) row.push_back(count(c["disk_blocks"]));
    row.insert(row.end(), {fetch_text(c), ms(c["queue_ms"])});
    if (disks) row.push_back(ms(c["load_ms"]));
    const bool is_guess = c["unmeasured"].as_bool(), is_fetch_guess = c["fetch_unmeasured"].as_bool();
    row.push_back(ms(c["fetch_ms"]) + (is_fetch_guess ? "+" : ""));
    if (copies) row.push_back(ms(c["to_device_ms"]));
    row.insert(row.end(), {ms(c["prefill_ms"]), ms(c["ttft_ms"]) + (is_guess ? "*" : "")});
    if (verdicts) row.push_back(text_of(c["verdict"]));
    table.add(std::move(row));
  }
  const bool guessed =
      std::any_of(rows.begin(), rows.end(), [](const Json& c) { return c["fetch_unmeasured"].as_bool(); });
  const bool starred = std::any_of(rows.begin(), rows.end(), [](const Json& c) { return c["unmeasured"].as_bool(); });
  return table.text() +
         (starred ? "* unmeasured: predicted from what the node announced, before its first prompt\n" : "") +
         (guessed ? "+ unmeasured: no read between the two nodes is known\n" : "");
}

/// The stages of a request, with what each one did.
std::string stages_table(const Json& r) {
  Table table({"STAGE", "ms", ""});
  table.left({""});
  const auto row = [&](const char* name, const char* key, const std::string& note) {
    if (r[key].is_number()) table.add({name, ms(r[key]), note});
  };
  const node::Held held = node::held_named(r["held_for"].as_string());
  if (held.kind == node::Held::Kind::prefix)
    row("hold", "held_ms", "waited here while " + held.node + " computed its prefix");
  else if (held.kind == node::Held::Kind::turn)
    row("hold", "held_ms", "waited here for its turn");
  row("queue", "queue_ms", "");
  row("accept", "accept_ms", "");
  if (r["load_ms"].as_double() > 0) row("load", "load_ms", count(r["cached_disk_tokens"]) + " tokens from disk");
  const std::string fallback = text_of(r["fallback"]);
  const double hidden_ms = r["fetch_hidden_ms"].as_double();
  row("fetch", "fetch_ms",
      count(r["cached_remote_tokens"]) + " tokens from others" +
          (hidden_ms > 0 ? ", and " + fixed(hidden_ms) + " ms more while computing" : "") +
          (fallback.empty() ? "" : ", failed: " + fallback));
  row("prefill", "prefill_ms", count(r["cached_local_tokens"]) + " tokens were here");
  for (const Json& miss : r["misses"].items()) table.add({"", "", missed_line(miss)});
  std::string from;
  for (const JsonMember& node : r["kv_from"].members())
    from += (from.empty() ? "" : ", ") + count(node.value) + " tokens from " + node.key;
  for (const Json& read : r["reads"].items())
    table.add({"read", ms(read["ms"]),
               count(read["tokens"]) + " tokens from " + or_dash(read["from"]) + " into " + or_dash(read["to"])});
  const std::string lost = text_of(r["kv_fallback"]);
  if (!from.empty()) row("KV", "kv_holders_ms", from + (lost.empty() ? "" : ", failed: " + lost));
  if (r["ttft_ms"].is_number()) {
    double stages_ms = 0;
    for (const char* key : {"held_ms", "queue_ms", "accept_ms", "load_ms", "fetch_ms", "prefill_ms"})
      stages_ms += r[key].as_double();
    table.add({"other", fixed(std::max(0.0, r["ttft_ms"].as_double() - stages_ms)),
               r["attempts"].as_int() > 1 ? "attempts before, and messages" : "messages between the programs"});
  }
  row("TTFT", "ttft_ms", fixed(r["predicted_ttft_ms"].as_double()) + " ms predicted");
  row("decode", "decode_ms", "");
  row("total", "total_ms", "");
  return table.text();
}

/// "stop", "failed: kv_transfer", "running, decode".
std::string outcome_text(const Json& r) {
  const std::string outcome = text_of(r["outcome"]), reason = text_of(r["reason"]);
  if (outcome == "finished" && !reason.empty()) return reason;
  if (outcome == "running") return r["ttft_ms"].is_number() ? "decoding" : "waiting";
  return outcome + (reason.empty() ? "" : ": " + reason);
}

}  // namespace

std::string explanation_text(const Json& e) {
  std::string out = "prompt " + count(e["prompt_tokens"]) + " tokens = " + count(e["blocks"]) + " blocks of " +
                    count(e["block_tokens"]) + " + " + count(e["tail_tokens"]) + " tail, " +
                    count(e["reusable_blocks"]) + " reusable; deadline " +
                    format_duration(std::chrono::milliseconds(e["deadline_ms"].as_int())) + "\n";
  out += candidates_table(e["candidates"], e["reusable_blocks"]);
  for (const Json& h : e["holders"].items())
    if (h["match_blocks"].as_int() > 0) {
      out += text_of(h["node"]) + " holds " + count(h["match_blocks"]) + " blocks";
      if (h["disk_blocks"].as_int() > 0) out += ", " + count(h["disk_blocks"]) + " of them on its disk";
      out += "\n";
    }
  if (const Json& d = e["decode"]; d.is_object())
    out += "decode " + text_of(d["node"]) + ": " + count(d["rows"]) + " requests, TBT " + ms(d["tbt_ms"]) +
           " ms predicted" + (d["unmeasured"].as_bool() ? ", unmeasured" : "") + read_text(d["sources"]) +
           (d["inlined"].as_bool() ? ", computes the prompt itself" : "") + "\n";
  if (const Json& hold = e["hold"]; hold["waits"].as_bool())
    out += "hold: " + count(hold["held"]) + " requests wait here, its turn is predicted in " + ms(hold["before_ms"]) +
           " ms\n";
  return out + "admit: " + (e["admit"].as_bool() ? "yes" : "no, " + text_of(e["reason"])) + "\n";
}

std::string record_text(const Json& r) {
  const std::string reason = text_of(r["reason"]);
  std::string out = or_dash(r["id"]) + "  " + or_dash(r["outcome"]) + (reason.empty() ? "" : ", " + reason) + "\n";
  out += "prompt " + count(r["prompt_tokens"]) + " tokens, answer " + count(r["output_tokens"]) + "   " +
         or_dash(r["prefill_node"]) + " -> " + or_dash(r["decode_node"]);
  out += "   " + count(r["attempts"]) + (r["attempts"].as_int() == 1 ? " attempt\n" : " attempts\n");
  if (r["outcome"].as_string() == "running") out += "stage: " + or_dash(r["stage"]) + "\n";
  if (r.has("message")) out += or_dash(r["stage"]) + ": " + or_dash(r["message"]) + "\n";
  out += stages_table(r);
  for (const Json& f : r["failed_attempts"].items())
    out += "failed on " + or_dash(f["prefill"]) + " -> " + or_dash(f["decode"]) + " in " + or_dash(f["stage"]) + ": " +
           or_dash(f["reason"]) + "\n";
  if (r["set_aside"].as_int() > 0) out += count(r["set_aside"]) + " pairs or nodes that fail requests were not used\n";
  return r["considered"].size() == 0 ? out : out + candidates_table(r["considered"], Json());
}

std::string requests_table(const Json& requests, size_t columns) {
  constexpr size_t kIdLeast = 8;
  const auto with_ids_of = [&](size_t id_max) {
    Table table({"ID", "OUTCOME", "NODES", "IN", "OUT", "TTFT ms", "TOTAL ms"});
    table.left({"OUTCOME", "NODES"});
    for (const Json& r : requests.items()) {
      std::string id = or_dash(r["id"]);
      if (id.size() > id_max) id = id.substr(0, id_max - 2) + "..";
      table.add({std::move(id), outcome_text(r), or_dash(r["prefill_node"]) + ">" + or_dash(r["decode_node"]),
                 count(r["prompt_tokens"]), count(r["output_tokens"]), ms(r["ttft_ms"]), ms(r["total_ms"])});
    }
    return table.text();
  };
  std::string text = with_ids_of(SIZE_MAX);
  const size_t width = text.find('\n');
  if (width <= columns) return text;
  size_t longest = 0;
  for (const Json& r : requests.items()) longest = std::max(longest, r["id"].as_string().size());
  return with_ids_of(std::max(kIdLeast, longest - std::min(longest, width - columns)));
}

}  // namespace mc::verbs
