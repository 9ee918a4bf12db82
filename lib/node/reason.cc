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
};
// In the enum's order. What a worker reported of every attempt is a failed node to the client: each attempt was
// retried elsewhere first.
constexpr ReasonRow kReasons[] = {
    {Reason::none, "", Kind::limit, err::kInternal},
    {Reason::deadline_exceeded, "deadline_exceeded", Kind::limit, err::kDeadlineExceeded},
    {Reason::predicted_slo_miss, "predicted_slo_miss", Kind::limit, err::kPredictedSloMiss},
    {Reason::no_prefill, "no_prefill", Kind::limit, err::kNoPrefill},
    {Reason::no_decode, "no_decode", Kind::limit, err::kNoDecode},
    {Reason::no_pair, "no_pair", Kind::limit, err::kInternal},
    {Reason::queue_full, "queue_full", Kind::limit, err::kQueueFull},
    {Reason::tenant_quota, "tenant_quota", Kind::limit, err::kTenantQuota},
    {Reason::context_length_exceeded, "context_length_exceeded", Kind::limit, err::kContextLength},
    {Reason::kv_transfer, "kv_transfer", Kind::fault, err::kNodeFailed},
    {Reason::draining, "draining", Kind::limit, err::kDraining},
    {Reason::invalid, "invalid", Kind::fault, err::kInvalidField},
    {Reason::not_found, "not_found", Kind::fault, err::kNodeFailed},
    {Reason::busy, "busy", Kind::limit, err::kNodeFailed},
    {Reason::timeout, "timeout", Kind::fault, err::kDeadlineExceeded},
    {Reason::peer_lost, "peer_lost", Kind::fault, err::kNodeFailed},
    {Reason::corrupt, "corrupt", Kind::fault, err::kNodeFailed},
    {Reason::no_space, "no_space", Kind::limit, err::kNotEnoughMemory},
    {Reason::unsupported, "unsupported", Kind::fault, err::kInternal},
    {Reason::io, "io", Kind::fault, err::kNodeFailed},
    {Reason::cancelled, "cancelled", Kind::limit, err::kCancelled},
    {Reason::layout, "layout", Kind::fault, err::kNodeFailed},
    {Reason::too_long, "too_long", Kind::limit, err::kInternal},
    {Reason::unknown_peer, "unknown_peer", Kind::fault, err::kNodeFailed},
    {Reason::internal, "internal", Kind::fault, err::kInternal},
};
static_assert(std::size(kReasons) == static_cast<size_t>(kReasonLast) + 1);

const ReasonRow& row_of(Reason reason) {
  const ReasonRow& row = kReasons[static_cast<size_t>(reason)];
  MC_ASSERT(row.reason == reason);
  return row;
}

constexpr std::string_view kStages[] = {"",        "route",    "queue",  "fetch",  "accept",
                                        "prefill", "transfer", "decode", "answer", "unknown"};
constexpr std::string_view kFinishes[] = {"", "stop", "length", "abort"};
constexpr std::string_view kCancels[] = {"client_gone", "stop", "failed", "deadline", "superseded"};
constexpr std::string_view kStates[] = {"ready", "drain", "partial"};

/// The place of the word in the table; `otherwise` when it has none.
template <class Enum, size_t kCount>
Enum named(const std::string_view (&words)[kCount], std::string_view word, Enum otherwise) {
  const auto* const at = std::find(std::begin(words), std::end(words), word);
  return at == std::end(words) ? otherwise : static_cast<Enum>(at - words);
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

std::string_view to_string(RequestStage stage) {
  return kStages[static_cast<size_t>(stage)];
}

RequestStage stage_named(std::string_view word) {
  return named(kStages, word, RequestStage::unknown);
}

std::string_view to_string(Finish finish) {
  return kFinishes[static_cast<size_t>(finish)];
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
    case Held::Kind::turn: return "turn";
    case Held::Kind::prefix: return "prefix:" + held.node;
  }
  return "";
}

Held held_named(std::string_view text) {
  constexpr std::string_view kPrefix = "prefix:";
  if (text.starts_with(kPrefix)) return {Held::Kind::prefix, NodeId(text.substr(kPrefix.size()))};
  return {text == "turn" ? Held::Kind::turn : Held::Kind::none, ""};
}

std::string_view to_string(NodeState state) {
  return kStates[static_cast<size_t>(state)];
}

}  // namespace mc::node
