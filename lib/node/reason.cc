#include "node/reason.h"

#include <algorithm>
#include <iterator>

#include "base/assert.h"

namespace mc::node {
namespace {

enum class Kind : uint8_t { fault, limit };

struct ReasonRow {
  Reason reason;
  std::string_view word;
  Kind kind;
  err::Number number;
  std::string_view meaning;
  std::string_view next;
};
// The rows are in the order of the enum. The last attempt's worker reason is shown to the client as a failed node,
// because each attempt was retried elsewhere first.
constexpr ReasonRow kReasons[] = {
    {Reason::none, "", Kind::limit, err::kInternal, "", ""},
    {Reason::deadline_exceeded, "deadline_exceeded", Kind::limit, err::kDeadlineExceeded,
     "the deadline of the request passed",
     "mc-conductor why shows the stage that took the time; raise --deadline or x-mc-deadline-ms"},
    {Reason::predicted_slo_miss, "predicted_slo_miss", Kind::limit, err::kPredictedSloMiss,
     "the predicted TTFT or TBT was beyond its bound",
     "retry after Retry-After, add nodes, or raise --ttft-slo or --tbt-slo"},
    {Reason::no_prefill, "no_prefill", Kind::limit, err::kNoPrefill, "no prefill node is ready",
     "start mc-prefill; mc-conductor ps lists the nodes and their states"},
    {Reason::no_decode, "no_decode", Kind::limit, err::kNoDecode, "no decode node is ready",
     "start mc-decode; mc-conductor ps lists the nodes and their states"},
    {Reason::no_pair, "no_pair", Kind::limit, err::kInternal,
     "every pair of a prefill and a decode node has an open breaker, because requests failed there",
     "read the logs of the nodes; a pair is tried again after its pause"},
    {Reason::queue_full, "queue_full", Kind::limit, err::kQueueFull, "the limit of waiting requests is reached",
     "retry after Retry-After, lower the rate, or add nodes"},
    {Reason::tenant_quota, "tenant_quota", Kind::limit, err::kTenantQuota, "the tenant has used up its quota",
     "retry after Retry-After, or raise the quota in the --api-keys file"},
    {Reason::context_length_exceeded, "context_length_exceeded", Kind::limit, err::kContextLength,
     "prompt and answer are longer than the context", "shorten the prompt, or lower max_tokens"},
    {Reason::kv_transfer, "kv_transfer", Kind::fault, err::kNodeFailed,
     "the KV of the prompt did not reach the decode node",
     "read the logs of both nodes; mc-bench doctor tests the path between hosts"},
    {Reason::draining, "draining", Kind::limit, err::kDraining, "the conductor or the node is stopping",
     "send the request again when it has been restarted"},
    {Reason::invalid, "invalid", Kind::fault, err::kInvalidField, "a worker refused the request as wrong",
     "compare the versions of the nodes; the message names the field"},
    {Reason::not_found, "not_found", Kind::fault, err::kNodeFailed,
     "a worker no longer had data that the request needs",
     "the request was retried elsewhere; the log of the worker names the data"},
    {Reason::busy, "busy", Kind::limit, err::kNodeFailed, "a worker had no room for the request",
     "add nodes, or lower the rate"},
    {Reason::timeout, "timeout", Kind::fault, err::kDeadlineExceeded, "a worker did not answer in time",
     "check load and network of the node that the record names"},
    {Reason::peer_lost, "peer_lost", Kind::fault, err::kNodeFailed, "a node, or the connection to it, was lost",
     "mc-conductor ps lists the nodes that are left; the log of the lost node names the cause"},
    {Reason::corrupt, "corrupt", Kind::fault, err::kNodeFailed, "bytes failed their checksum",
     "check memory and network of the nodes that the record names"},
    {Reason::no_space, "no_space", Kind::limit, err::kNotEnoughMemory, "the node had no memory free for the request",
     "raise --kv-mem or the memory limit of the process, or lower the rate"},
    {Reason::unsupported, "unsupported", Kind::fault, err::kUnsupportedField,
     "the node cannot compute what the request asks for",
     "leave out what the message names; nodes with --runner costed have no model and no tokenizer"},
    {Reason::io, "io", Kind::fault, err::kNodeFailed, "the operating system refused a read or a write",
     "read the log of the node that the record names"},
    {Reason::cancelled, "cancelled", Kind::limit, err::kCancelled,
     "the client disconnected, or the request was cancelled", ""},
    {Reason::layout, "layout", Kind::fault, err::kNodeFailed, "the nodes store KV in different layouts",
     "start all nodes with one model, one --block-tokens and one --kv-dtype"},
    {Reason::too_long, "too_long", Kind::limit, err::kInternal, "the prompt is longer than the node can hold",
     "raise --kv-mem on the node, or shorten the prompt"},
    {Reason::unknown_peer, "unknown_peer", Kind::fault, err::kNodeFailed,
     "a node does not list the node that it must work with",
     "mc-conductor ps shows whether both are ready; the request was retried"},
    {Reason::internal, "internal", Kind::fault, err::kInternal, "a bug in this program, or a reason of a newer version",
     "report it with the log of the node that the record names"},
};
static_assert(std::size(kReasons) == static_cast<size_t>(kReasonLast) + 1);

const ReasonRow& row_of(Reason reason) {
  const ReasonRow& row = kReasons[static_cast<size_t>(reason)];
  MC_ASSERT(row.reason == reason);
  return row;
}

struct WordRow {
  std::string_view word;
  std::string_view meaning;
};
constexpr WordRow kStages[] = {
    {"", ""},
    {"route", "at the conductor, before its nodes were chosen"},
    {"queue", "in the queue of the prefill node"},
    {"fetch", "the prefill node fetched cached blocks from other nodes"},
    {"accept", "the prefill node waited until the decode node had pages for the request"},
    {"prefill", "the prefill node computed the prompt"},
    {"transfer", "the decode node read the KV of the prompt"},
    {"decode", "the decode node generated tokens"},
    {"answer", "the conductor wrote the text"},
    {"unknown", "a stage of a newer version"},
};
static_assert(std::size(kStages) == static_cast<size_t>(RequestStage::unknown) + 1);
constexpr WordRow kFinishes[] = {
    {"", ""},
    {"stop", "the model ended its answer, or a stop string came"},
    {"length", "the answer reached its limit of tokens"},
    {"abort", "the client disconnected"},
};
constexpr std::string_view kTurn = "turn", kPrefix = "prefix:";
constexpr ReasonWord kHeldWords[] = {
    {kTurn, "its turn among the requests of all tenants", "add prefill nodes if held_ms is large"},
    {"prefix:NODE", "NODE was computing a prefix that the request then reused", "--hold off stops such waits"},
};
constexpr ReasonWord kBoundWords[] = {
    {sched::to_string(sched::Bound::ttft), "the time to the first token", "raise --ttft-slo, or add prefill nodes"},
    {sched::to_string(sched::Bound::tbt), "the time between tokens", "raise --tbt-slo, or add decode nodes"},
    {sched::to_string(sched::Bound::kv), "the KV pages of the decode node", "raise --kv-mem of the decode nodes"},
};
static_assert(std::size(kBoundWords) == static_cast<size_t>(sched::Bound::kv));
constexpr std::string_view kCancels[] = {"client_gone", "stop", "failed", "deadline", "superseded"};
constexpr std::string_view kStates[] = {"ready", "drain", "partial"};

/// The index of the word in the table; `otherwise` when the table lacks it.
template <class Enum, size_t kCount>
Enum named(const WordRow (&rows)[kCount], std::string_view word, Enum otherwise) {
  const auto* const at = std::ranges::find(rows, word, &WordRow::word);
  return at == std::end(rows) ? otherwise : static_cast<Enum>(at - rows);
}

}  // namespace

std::string_view to_string(Reason reason) {
  return row_of(reason).word;
}

Reason reason_named(std::string_view word) {
  for (const ReasonRow& row : kReasons)
    if (row.word == word) return row.reason;
  return Reason::internal;
}

err::Number number_of(Reason reason) {
  return row_of(reason).number;
}

bool is_fault(Reason reason) {
  return row_of(reason).kind == Kind::fault;
}

Reason reason_of(sched::NoPlace reason) {
  switch (reason) {
    case sched::NoPlace::none: return Reason::none;
    case sched::NoPlace::no_prefill: return Reason::no_prefill;
    case sched::NoPlace::no_decode: return Reason::no_decode;
    case sched::NoPlace::no_pair: return Reason::no_pair;
    case sched::NoPlace::predicted_slo_miss: return Reason::predicted_slo_miss;
  }
  return Reason::internal;
}

Reason reason_of(Code code) {
  switch (code) {
    case Code::ok: return Reason::none;
    case Code::invalid: return Reason::invalid;
    case Code::not_found: return Reason::not_found;
    case Code::busy: return Reason::busy;
    case Code::timeout: return Reason::timeout;
    case Code::peer_lost: return Reason::peer_lost;
    case Code::corrupt: return Reason::corrupt;
    case Code::no_space: return Reason::no_space;
    case Code::unsupported: return Reason::unsupported;
    case Code::io: return Reason::io;
    case Code::cancelled: return Reason::cancelled;
  }
  return Reason::internal;
}

wire::CopyEnd copy_end_of(Code code) {
  using wire::CopyEnd;
  switch (code) {
    case Code::ok: return CopyEnd::complete;
    case Code::invalid: return CopyEnd::invalid;
    case Code::not_found: return CopyEnd::not_found;
    case Code::busy: return CopyEnd::busy;
    case Code::timeout: return CopyEnd::timeout;
    case Code::peer_lost: return CopyEnd::peer_lost;
    case Code::corrupt: return CopyEnd::corrupt;
    case Code::no_space: return CopyEnd::no_space;
    case Code::unsupported: return CopyEnd::unsupported;
    case Code::io: return CopyEnd::io;
    case Code::cancelled: return CopyEnd::cancelled;
  }
  return CopyEnd::other;
}

wire::CopyEnd copy_end_of(wire::Fallback fallback) {
  using wire::CopyEnd, wire::Fallback;
  switch (fallback) {
    case Fallback::none: return CopyEnd::complete;
    case Fallback::peer_lost: return CopyEnd::peer_lost;
    case Fallback::lease_timeout: return CopyEnd::lease_timeout;
    case Fallback::read_timeout: return CopyEnd::read_timeout;
    case Fallback::absent: return CopyEnd::not_found;
    case Fallback::evicted: return CopyEnd::evicted;
    case Fallback::layout: return CopyEnd::layout;
    case Fallback::unknown_peer: return CopyEnd::unknown_peer;
    case Fallback::not_published_yet: return CopyEnd::not_published_yet;
    case Fallback::bad_grant: return CopyEnd::bad_grant;
    case Fallback::no_pages: return CopyEnd::no_pages;
    case Fallback::refused: return CopyEnd::busy;
    case Fallback::corrupt: return CopyEnd::corrupt;
    case Fallback::transfer: return CopyEnd::io;
    case Fallback::disk: return CopyEnd::disk;
    case Fallback::stage: return CopyEnd::stage;
  }
  return CopyEnd::other;
}

std::string_view to_string(RequestStage stage) {
  return kStages[static_cast<size_t>(stage)].word;
}

RequestStage stage_named(std::string_view word) {
  return named(kStages, word, RequestStage::unknown);
}

std::string_view to_string(Finish finish) {
  return kFinishes[static_cast<size_t>(finish)].word;
}

Finish finish_named(std::string_view word) {
  return named(kFinishes, word, Finish::stop);
}

std::string_view to_string(CancelReason reason) {
  return kCancels[static_cast<size_t>(reason)];
}

std::string to_string(const Held& held) {
  switch (held.kind) {
    case Held::Kind::none: return "";
    case Held::Kind::turn: return std::string(kTurn);
    case Held::Kind::prefix: return std::string(kPrefix) + held.node;
  }
  return "";
}

Held held_named(std::string_view text) {
  if (text.starts_with(kPrefix)) return {Held::Kind::prefix, NodeId(text.substr(kPrefix.size()))};
  return {text == kTurn ? Held::Kind::turn : Held::Kind::none, ""};
}

std::string_view to_string(NodeState state) {
  return kStates[static_cast<size_t>(state)];
}

std::vector<ReasonGroup> reason_groups() {
  std::vector<ReasonGroup> out = {
      {"Why requests end", "reason of a record, of mc_requests_total and of an error's code", {}},
      {"Stages of a request", "stage of a record", {}},
      {"Bounds that a prediction misses", "bound of a record", {std::begin(kBoundWords), std::end(kBoundWords)}},
      {"Why requests are held", "held_for of a record", {std::begin(kHeldWords), std::end(kHeldWords)}},
      {"Why blocks were computed", "misses and miss_reason of a record, and mc_kv_miss_total", {}},
      {"Why fetches were given up", "fallback of a record, after fetch:", {}},
  };
  for (const ReasonRow& row : kReasons)
    if (!row.word.empty()) out[0].words.push_back({row.word, row.meaning, row.next});
  for (const WordRow& row : kFinishes)
    if (!row.word.empty()) out[0].words.push_back({row.word, row.meaning, ""});
  for (const WordRow& row : kStages)
    if (!row.word.empty()) out[1].words.push_back({row.word, row.meaning, ""});
  for (const wire::MissRow& row : wire::miss_rows())
    if (!row.name.empty()) out[4].words.push_back({row.name, row.meaning, row.next});
  for (const wire::FallbackRow& row : wire::fallback_rows())
    if (!row.name.empty()) out[5].words.push_back({row.name, row.meaning, ""});
  return out;
}

}  // namespace mc::node
