// Reasons of a request's end, stages of its life, what it waited for, and states of nodes, as types. Decisions compare
// these; one table makes the words that JSON, metrics labels and logs print and the MC number of the answer.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/errors.h"
#include "base/ids.h"
#include "base/result.h"
#include "sched/reason.h"

namespace mc::node {

/// Why a request was rejected or failed: the conductor's own reasons, then those that workers report (a mc::Code, or
/// a reason of KvRefuse). `internal` also stands for a word that no worker has.
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
/// `internal` for a word that is no reason.
Reason reason_named(std::string_view word);
/// The error that an HTTP client is given.
err::Number number_of(Reason reason);
/// A fault says that something is broken; a limit says that there is no room or no time.
bool is_fault(Reason reason);
Reason reason_of(sched::NoPlace reason);
/// The reason of the same name; `none` for ok.
Reason reason_of(Code code);

/// Where a request was when it ended or failed. answer: while the conductor wrote its text.
enum class RequestStage : uint8_t { none, route, queue, fetch, accept, prefill, transfer, decode, answer, unknown };
std::string_view to_string(RequestStage stage);
RequestStage stage_named(std::string_view word);

/// How a request that did not fail ended; abort: by its client.
enum class Finish : uint8_t { none, stop, length, abort };
std::string_view to_string(Finish finish);
/// By the word of a worker; `stop` for one that no worker has.
Finish finish_named(std::string_view word);

/// Why an attempt is called off: by the front, or because the conductor gave the request up or placed it elsewhere.
enum class CancelReason : uint8_t { client_gone, stop, failed, deadline, superseded };
std::string_view to_string(CancelReason reason);

/// What a request waited for at the conductor: its turn, or `node`, which was computing its prefix.
struct Held {
  enum class Kind : uint8_t { none, turn, prefix } kind = Kind::none;
  NodeId node;
  bool operator==(const Held&) const = default;
};
/// "", turn, or prefix:NODE.
std::string to_string(const Held& held);
Held held_named(std::string_view text);

/// partial: the leader of a pipeline whose other stages are not all here.
enum class NodeState : uint8_t { ready, drain, partial };
std::string_view to_string(NodeState state);

/// A word of the tables above, of sched/reason.h or of wire/miss.h, with its meaning.
struct ReasonWord {
  std::string_view word;
  std::string_view meaning;
  std::string_view next;  // step for the operator or the client; "" if the meaning says enough
};
struct ReasonGroup {
  std::string_view title;
  std::string_view place;  // where the words are printed
  std::vector<ReasonWord> words;
};
/// All words, for help and manual page.
std::vector<ReasonGroup> reason_groups();

}  // namespace mc::node
