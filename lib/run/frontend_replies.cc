// Replies out: tokens to their answers, ends, and the conductor's metrics.

#include <algorithm>
#include <new>

#include "base/errors.h"
#include "base/log.h"
#include "base/memory_reserve.h"
#include "run/frontend.h"

namespace mc::run {

/// An answer grows with what its client asked for (n, log-probabilities): without memory for it, it fails alone.
/// `work` is a call of the answer's.
template <class Work>
bool Frontend::grow(Answer& answer, Work work) {
  try {
    const FailsAlone alone;
    return work();
  } catch (const std::bad_alloc&) {
    log_warn("answer given up: not enough memory");
  }
  answer.out_of_memory();
  for (const auto& req : answer.unfinished())
    if (answers_.contains(req)) loop_->deliver(node::ClientCancel{req, node::CancelReason::failed});
  return false;
}

void Frontend::on_reply(const node::Reply& reply) {
  const auto it = answers_.find(reply.req);
  if (it == answers_.end()) return;
  const std::shared_ptr<Answer> answer = it->second;
  const TimePoint now = SystemClock::instance().now();
  RequestProgress& timing = records_.running(reply.req);
  if (reply.kind == node::Reply::Kind::token) {
    if (reply.index == 0) {
      timing.first = now;
      timing.journey = reply.summary;
      log_debug("first token", {{"req", reply.req},
                                {"prefill", reply.summary.prefill},
                                {"decode", reply.summary.decode},
                                {"ttft_ms", to_ms(now - timing.submitted)}});
      metrics_.first_token(timing, reply, now);
    } else {
      metrics_.next_token(timing, now);
    }
    timing.last = now;
    if (!answer->is_prompt_alone()) ++timing.tokens;
    // A stop string ends the request here; the workers learn it from the conductor.
    if (grow(*answer, [&] { return answer->on_token(reply.req, reply); }))
      loop_->deliver(node::ClientCancel{reply.req, node::CancelReason::stop});
    return;
  }
  const bool failed = reply.kind == node::Reply::Kind::failed, rejected = reply.kind == node::Reply::Kind::rejected;
  const std::string reason(failed || rejected ? to_string(reply.reason) : to_string(reply.finish));
  metrics_.end(timing, reply, answer->is_prompt_alone(), now);
  for (const node::FailedAttempt& attempt : reply.summary.failed)
    log_info("request was retried", {{"req", reply.req},
                                     {"prefill", attempt.prefill},
                                     {"decode", attempt.decode},
                                     {"stage", to_string(attempt.stage)},
                                     {"why", to_string(attempt.reason)}});
  if (failed)
    log_warn("request failed", {{"req", reply.req},
                                {"x_request_id", timing.client_id},
                                {"stage", to_string(reply.stage)},
                                {"code", reason},
                                {"why", reply.message}});
  else
    log_debug("request ended", {{"req", reply.req},
                                {"x_request_id", timing.client_id},
                                {"outcome", rejected ? "rejected" : "finished"},
                                {"reason", reason},
                                {"output_tokens", timing.tokens},
                                {"total_ms", to_ms(now - timing.submitted)}});
  records_.end(reply, now);
  answers_.erase(it);
  if (!grow(*answer, [&] { return answer->on_end(reply.req, reply); })) return;
  if (!answer->failed()) metrics_.longest_choice(answer->longest_choice());
  // One choice failed: the answer is an error already, the others need not run on.
  for (const auto& req : answer->unfinished())
    if (answers_.contains(req)) loop_->deliver(node::ClientCancel{req, node::CancelReason::failed});
}

void Frontend::fail_all() {
  pool_->stop();
  for (const auto& [req, answer] : std::map(answers_)) {
    node::Reply reply;
    reply.req = req;
    reply.kind = node::Reply::Kind::failed;
    reply.reason = node::Reason::draining;
    reply.stage = node::RequestStage::route;
    reply.message = "the conductor is stopping";
    on_reply(reply);
  }
}

}  // namespace mc::run
