#include "node/failure.h"

#include <algorithm>
#include <iterator>

namespace mc::node {
namespace {

struct StageName {
  std::string_view name;
  FailStage stage;
};
constexpr StageName kStages[] = {
    {"queue", FailStage::queue},     {"fetch", FailStage::fetch},       {"accept", FailStage::accept},
    {"prefill", FailStage::prefill}, {"transfer", FailStage::transfer}, {"decode", FailStage::decode},
};

/// Whether a cause says that something is broken, or that there is no room or no time.
enum class Kind : uint8_t { fault, limit };
struct CauseRow {
  std::string_view name;
  Cause cause;
  Kind kind;
};
constexpr CauseRow kCauses[] = {
    {"invalid", Cause::invalid, Kind::fault},
    {"not_found", Cause::not_found, Kind::fault},
    {"busy", Cause::busy, Kind::limit},
    {"timeout", Cause::timeout, Kind::fault},
    {"peer_lost", Cause::peer_lost, Kind::fault},
    {"corrupt", Cause::corrupt, Kind::fault},
    {"no_space", Cause::no_space, Kind::limit},
    {"unsupported", Cause::unsupported, Kind::fault},
    {"io", Cause::io, Kind::fault},
    {"cancelled", Cause::cancelled, Kind::limit},
    {"queue_full", Cause::queue_full, Kind::limit},
    {"layout", Cause::layout, Kind::fault},
    {"draining", Cause::draining, Kind::limit},
    {"too_long", Cause::too_long, Kind::limit},
    {"predicted_slo_miss", Cause::predicted_slo_miss, Kind::limit},
    {"unknown_peer", Cause::unknown_peer, Kind::fault},
    {"internal", Cause::internal, Kind::fault},
};

const CauseRow& row_of(Cause cause) {
  return *std::find_if(std::begin(kCauses), std::end(kCauses), [&](const CauseRow& row) { return row.cause == cause; });
}

bool between_nodes(FailStage stage) {
  return stage == FailStage::accept || stage == FailStage::transfer || stage == FailStage::fetch;
}

// A field that only the model can judge, such as an attention plan: prefill computes the request first.
bool is_clients(const Failure& f) {
  return f.stage == FailStage::prefill && f.cause == Cause::invalid && !f.retryable;
}

}  // namespace

std::string_view to_string(FailStage stage) {
  for (const StageName& row : kStages)
    if (row.stage == stage) return row.name;
  return "unknown";
}

Failure failure_of(const wire::Failed& message) {
  Failure out;
  out.retryable = message.retryable;
  for (const StageName& row : kStages)
    if (row.name == message.stage) out.stage = row.stage;
  for (const CauseRow& row : kCauses)
    if (row.name == message.code) out.cause = row.cause;
  return out;
}

Blame blame_of(const Failure& f) {
  if (row_of(f.cause).kind == Kind::limit || is_clients(f)) return Blame::nobody;
  if (f.cause == Cause::timeout && !f.retryable) return Blame::nobody;  // the request's deadline
  if (between_nodes(f.stage) || f.cause == Cause::peer_lost) return Blame::pair;
  return f.stage == FailStage::decode ? Blame::decode : Blame::prefill;
}

std::string_view reason_of(const Failure& f) {
  if (f.stage == FailStage::accept && f.cause == Cause::too_long) return "context_length_exceeded";
  if (is_clients(f)) return row_of(f.cause).name;
  switch (f.cause) {
    case Cause::timeout: return f.retryable && between_nodes(f.stage) ? "kv_transfer" : "deadline_exceeded";
    case Cause::not_found:
    case Cause::corrupt:
    case Cause::io:
      if (!between_nodes(f.stage)) break;
      [[fallthrough]];
    case Cause::invalid:
    case Cause::unsupported:
    case Cause::internal: return between_nodes(f.stage) ? "kv_transfer" : "internal";
    default: break;
  }
  return row_of(f.cause).name;
}

}  // namespace mc::node
