// How a worker reports the failure of a request, and how the conductor reads the report: whose fault it was, and the
// reason that the client is given.
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

Failure failure_of(const wire::Failed& message);
wire::Failed report_of(const RequestId& req, uint32_t attempt, const Failure& failure, std::string message);
/// How a pipeline stage reports the end of a run: "ok" for Reason::none.
std::string stage_code(Reason cause);
Reason cause_of(const wire::StageDone& done);

/// What failed: the prefill node alone, the decode node alone, or the two together (they could not agree, or bytes did
/// not get across). nobody: a full queue, a promise that would be broken, a deadline, a client.
enum class Blame : uint8_t { nobody, prefill, decode, pair };
Blame blame_of(const Failure& failure);

/// The reason that the client, the record and the metrics are given. What happens between nodes is never the client's
/// error: kv_transfer or internal.
Reason reason_of(const Failure& failure);

}  // namespace mc::node
