// The reasons of a request's end, the stages of its life, the causes of a wait, and the states of a node, as types.
// Decisions compare the types. One table gives the words for JSON, metrics labels and logs, and the MC number of the
// answer.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/errors.h"
#include "base/ids.h"
#include "base/result.h"
#include "sched/reason.h"
#include "wire/end_reason.h"
#include "wire/miss.h"

namespace mc::node {

/// Why a request was rejected or failed: first the conductor's own reasons, then reasons that workers report (a
/// mc::Code, or a reason of KvRefuse). `internal` also stands for an unknown word of a worker.
enum class Reason : uint8_t {
  none,
  deadline_exceeded,
  predicted_slo_miss,
  no_prefill,
  no_decode,
  no_pair,
  queue_full,
  tenant_quota,
  context_length_exceeded,
  kv_transfer,
  draining,
  invalid,
  not_found,
  busy,
  timeout,
  peer_lost,
  corrupt,
  no_space,
  unsupported,
  io,
  cancelled,
  layout,
  too_long,
  unknown_peer,
  internal,
};
inline constexpr Reason kReasonLast = Reason::internal;
/// "" for none.
std::string_view to_string(Reason reason);
/// The reason of that word; `internal` for an unknown word.
Reason reason_named(std::string_view word);
/// The error number for the HTTP client.
err::Number number_of(Reason reason);
/// A fault means that something is broken. A limit means that room or time is used up.
bool is_fault(Reason reason);
Reason reason_of(sched::NoPlace reason);
/// The reason with the name of the code; `none` for ok.
Reason reason_of(Code code);
/// The end of a copy whose read ended with the code, or for which the holder granted nothing. Both keep the word.
wire::CopyEnd copy_end_of(Code code);
wire::CopyEnd copy_end_of(wire::Fallback fallback);

/// The stage in which a request ended or failed. answer: the conductor was writing its text.
enum class RequestStage : uint8_t { none, route, queue, fetch, accept, prefill, transfer, decode, answer, unknown };
std::string_view to_string(RequestStage stage);
RequestStage stage_named(std::string_view word);

/// How a request ended without a failure. abort: its client cancelled it.
enum class Finish : uint8_t { none, stop, length, abort };
std::string_view to_string(Finish finish);
/// The finish of a worker's word; `stop` for an unknown word.
Finish finish_named(std::string_view word);

/// Why an attempt is cancelled: by the HTTP front end, or because the conductor gave the request up or placed it again.
enum class CancelReason : uint8_t { client_gone, stop, failed, deadline, superseded };
std::string_view to_string(CancelReason reason);

/// The cause of a request's wait at the conductor: its turn, or the node that was computing its prefix.
struct Held {
  enum class Kind : uint8_t { none, turn, prefix } kind = Kind::none;
  NodeId node;
  bool operator==(const Held&) const = default;
};
/// "", turn, or prefix:NODE.
std::string to_string(const Held& held);
Held held_named(std::string_view text);

/// partial: the leader of a pipeline that lacks a stage.
enum class NodeState : uint8_t { ready, drain, partial };
std::string_view to_string(NodeState state);

/// A word of the enums here, of sched/reason.h or of wire/miss.h, with its meaning.
struct ReasonWord {
  std::string_view word;
  std::string_view meaning;
  std::string_view next;  // next step for the operator or the client; "" when the meaning suffices
};
struct ReasonGroup {
  std::string_view title;
  std::string_view place;  // place where the words are printed
  std::vector<ReasonWord> words;
};
/// All words, for help and manual page.
std::vector<ReasonGroup> reason_groups();

}  // namespace mc::node
