// What a worker's report of a failure means to the conductor: the words of wire::Failed become enums here, once, and
// one table each answers whose fault it was and what the client is told.
#pragma once

#include <cstdint>
#include <string_view>

#include "wire/messages.h"

namespace mc::node {

/// Where a request was when it failed.
enum class FailStage : uint8_t { queue, fetch, accept, prefill, transfer, decode, unknown };
std::string_view to_string(FailStage stage);

/// The code of a worker's report: a mc::Code, or a reason of KvRefuse. A word that is none of them is internal.
enum class Cause : uint8_t {
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
  queue_full,
  layout,
  draining,
  too_long,
  predicted_slo_miss,
  unknown_peer,
  internal,
};

struct Failure {
  FailStage stage = FailStage::unknown;
  Cause cause = Cause::internal;
  bool retryable = false;
};

Failure failure_of(const wire::Failed& message);

/// What failed: the prefill node alone, the decode node alone, or the two together (they could not agree, or bytes did
/// not get across). nobody: a full queue, a promise that would be broken, a deadline, a client.
enum class Blame : uint8_t { nobody, prefill, decode, pair };
Blame blame_of(const Failure& failure);

/// The reason that the client, the record and the metrics are given. What happens between nodes is never the client's
/// error: kv_transfer or internal.
std::string_view reason_of(const Failure& failure);

}  // namespace mc::node
