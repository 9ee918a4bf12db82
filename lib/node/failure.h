// The report of a failed request by a worker, and the conductor's reading of the report: the node at fault, and the
// reason for the client.
#pragma once

#include <cstdint>
#include <string>

#include "node/reason.h"
#include "wire/messages.h"

namespace mc::node {

struct Failure {
  RequestStage stage = RequestStage::unknown;
  Reason cause = Reason::internal;
  bool retryable = false;
};

/// False for a failure of a run that the request has on every node.
bool may_retry(Code code);
Failure failure_of(const wire::Failed& message);
wire::Failed report_of(const RequestId& req, uint32_t attempt, const Failure& failure, std::string message);

/// The node at fault: the prefill node alone, the decode node alone, or the pair (the nodes could not agree, or bytes
/// were lost between them). nobody: a full queue, an SLO that would be missed, a deadline, or a client.
enum class Blame : uint8_t { nobody, prefill, decode, pair };
Blame blame_of(const Failure& failure);

/// The reason for the client, the record and the metrics. A failure between nodes is never reported as an error of the
/// client: it is kv_transfer or internal.
Reason reason_of(const Failure& failure);

}  // namespace mc::node
