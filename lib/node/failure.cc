#include "node/failure.h"

namespace mc::node {
namespace {

bool between_nodes(RequestStage stage) {
  return stage == RequestStage::accept || stage == RequestStage::transfer || stage == RequestStage::fetch;
}

// The request has a field that only the model can check: an attention plan, which the prefill node is the first to
// compute with, or a grammar, which any token of the answer may be the first not to follow. Or it asks for something
// that nodes of this kind do not compute.
bool is_clients(const Failure& f) {
  return (f.stage == RequestStage::prefill || f.stage == RequestStage::decode) &&
         (f.cause == Reason::invalid || f.cause == Reason::unsupported) && !f.retryable;
}

}  // namespace

bool may_retry(Code code) {
  return code != Code::invalid && code != Code::unsupported;
}

Failure failure_of(const wire::Failed& message) {
  Failure out{stage_named(message.stage), reason_named(message.code), message.retryable};
  // The words come from a peer, and may be empty.
  if (out.stage == RequestStage::none) out.stage = RequestStage::unknown;
  if (out.cause == Reason::none) out.cause = Reason::internal;
  return out;
}

wire::Failed report_of(const RequestId& req, uint32_t attempt, const Failure& failure, std::string message) {
  return {req,
          attempt,
          std::string(to_string(failure.stage)),
          std::string(to_string(failure.cause)),
          std::move(message),
          failure.retryable,
          0,
          0};
}

Blame blame_of(const Failure& f) {
  if (!is_fault(f.cause) || is_clients(f)) return Blame::nobody;
  if (f.cause == Reason::timeout && !f.retryable) return Blame::nobody;  // the deadline of the request
  if (between_nodes(f.stage) || f.cause == Reason::peer_lost) return Blame::pair;
  return f.stage == RequestStage::decode ? Blame::decode : Blame::prefill;
}

Reason reason_of(const Failure& f) {
  if (f.stage == RequestStage::accept && f.cause == Reason::too_long) return Reason::context_length_exceeded;
  if (is_clients(f)) return f.cause;
  switch (f.cause) {
    case Reason::timeout:
      return f.retryable && between_nodes(f.stage) ? Reason::kv_transfer : Reason::deadline_exceeded;
    case Reason::not_found:
    case Reason::corrupt:
    case Reason::io:
      if (!between_nodes(f.stage)) break;
      [[fallthrough]];
    case Reason::invalid:
    case Reason::unsupported:
    case Reason::internal: return between_nodes(f.stage) ? Reason::kv_transfer : Reason::internal;
    default: break;
  }
  return f.cause;
}

}  // namespace mc::node
