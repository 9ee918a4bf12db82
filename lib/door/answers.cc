#include "door/answers.h"

#include <new>

#include "base/assert.h"
#include "base/errors.h"
#include "base/log.h"
#include "base/memory_reserve.h"
#include "door/call_runner.h"

namespace mc::door {
namespace {
constexpr Duration kSilenceMax = 10s;  // of a stream before its first token; proxies close silent connections
}

void Answers::start(const std::shared_ptr<AnswerJob>& job) {
  const http::Responder& out = job->answer->out();
  if (is_draining_) return out.respond(http::error_response(err::kDraining, "the server is stopping"));
  const TimePoint now = SystemClock::instance().now();
  if (now - job->received >= job->deadline)
    return out.respond(late_response(job->received, job->complete, job->deadline));
  MC_ASSERT(!job->submits.empty());
  for (auto& submit : job->submits) {
    MC_ASSERT(!answers_.contains(submit.req));
    submit.deadline = job->deadline - (now - job->received);
    MC_ASSERT(submit.deadline > Duration(0));
    answers_[submit.req] = job->answer;
    RequestProgress progress;
    progress.submitted = progress.last = now;
    progress.prompt_tokens = static_cast<uint32_t>(submit.ids.size());
    progress.max_tokens = submit.stopping.max_tokens;
    progress.client_id = job->client_id;
    progress.tenant = submit.tenant;
    progress.priority = submit.priority;
    records_.begin(submit.req, std::move(progress));
  }
  out.on_close([this, weak = std::weak_ptr<Answer>(job->answer)](http::CloseReason) {
    loop_.post([this, weak](TimePoint, node::Actions&) {
      if (const auto answer = weak.lock())
        for (const auto& req : answer->unfinished())
          loop_.deliver(node::ClientCancel{req, node::CancelReason::client_gone});
    });
  });
  for (const auto& submit : job->submits)
    log_debug("request", {{"req", submit.req},
                          {"x_request_id", job->client_id},
                          {"tenant", submit.tenant},
                          {"prompt_tokens", submit.ids.size()},
                          {"max_tokens", submit.stopping.max_tokens}});
  metrics_.submitted(job->submits.size());
  for (auto& submit : job->submits) {
    if (!answers_.contains(submit.req)) continue;
    if (job->answer->failed()) {  // an earlier choice was rejected: nobody would read this one
      answers_.erase(submit.req);
      records_.drop(submit.req);
      continue;
    }
    const TimePoint began = SystemClock::instance().now();
    loop_.deliver(submit);
    metrics_.decided(SystemClock::instance().now() - began);
  }
}

/// Does `work`, which makes the answer grow with what its client asked for (n, log-probabilities). When memory runs
/// out, only this answer fails.
template <class Work>
bool Answers::grow(Answer& answer, Work work) {
  try {
    const FailsAlone alone;
    return work();
  } catch (const std::bad_alloc&) {
    log_warn("answer given up: not enough memory");
  }
  answer.out_of_memory();
  for (const auto& req : answer.unfinished())
    if (answers_.contains(req)) loop_.deliver(node::ClientCancel{req, node::CancelReason::failed});
  return false;
}

void Answers::begin_silent_streams(TimePoint now) {
  for (const auto& [req, answer] : answers_) {
    const RequestProgress& progress = records_.running(req);
    if (progress.first == kNever && now - progress.submitted >= kSilenceMax) answer->begin_stream();
  }
}

void Answers::on_reply(const node::Reply& reply) {
  const auto it = answers_.find(reply.req);
  if (it == answers_.end()) return;
  const std::shared_ptr<Answer> answer = it->second;  // stays while its last choice is erased
  const TimePoint now = SystemClock::instance().now();
  if (reply.kind == node::Reply::Kind::token) return on_token(*answer, reply, now);
  on_end(*answer, reply, now);
}

void Answers::on_token(Answer& answer, const node::Reply& reply, TimePoint now) {
  RequestProgress& progress = records_.running(reply.req);
  if (reply.index == 0) {
    progress.first = now;
    progress.summary = reply.summary;
    log_debug("first token", {{"req", reply.req},
                              {"prefill", reply.summary.prefill},
                              {"decode", reply.summary.decode},
                              {"ttft_ms", to_ms(now - progress.submitted)}});
    metrics_.first_token(progress, reply, now);
  } else {
    MC_ASSERT(progress.first != kNever);  // the conductor gives each token once, in order
    metrics_.next_token(progress, now);
  }
  progress.last = now;
  if (!answer.is_prompt_alone()) ++progress.tokens;
  // A stop string ends the request here; the workers learn it from the conductor.
  if (grow(answer, [&] { return answer.on_token(reply.req, reply); }))
    loop_.deliver(node::ClientCancel{reply.req, node::CancelReason::stop});
}

void Answers::on_end(Answer& answer, const node::Reply& reply, TimePoint now) {
  const RequestProgress& progress = records_.running(reply.req);
  const bool failed = reply.kind == node::Reply::Kind::failed, rejected = reply.kind == node::Reply::Kind::rejected;
  const std::string reason(failed || rejected ? to_string(reply.reason) : to_string(reply.finish));
  metrics_.end(progress, reply, answer.is_prompt_alone(), now);
  if (failed)
    log_warn("request failed", {{"req", reply.req},
                                {"x_request_id", progress.client_id},
                                {"stage", to_string(reply.stage)},
                                {"code", reason},
                                {"why", reply.message}});
  else
    log_debug("request ended", {{"req", reply.req},
                                {"x_request_id", progress.client_id},
                                {"outcome", rejected ? "rejected" : "finished"},
                                {"reason", reason},
                                {"output_tokens", progress.tokens},
                                {"total_ms", to_ms(now - progress.submitted)}});
  records_.end(reply, now);
  const size_t known = answers_.erase(reply.req);
  MC_ASSERT_EQ(known, 1u);
  if (!grow(answer, [&] { return answer.on_end(reply.req, reply); })) return;
  if (!answer.failed()) metrics_.longest_choice(answer.longest_choice());
  // One choice failed: the answer is an error already, the others need not run on.
  for (const auto& req : answer.unfinished())
    if (answers_.contains(req)) loop_.deliver(node::ClientCancel{req, node::CancelReason::failed});
}

void Answers::fail_all() {
  for (const auto& [req, answer] : std::map(answers_)) {
    node::Reply reply;
    reply.req = req;
    reply.kind = node::Reply::Kind::failed;
    reply.reason = node::Reason::draining;
    const bool has_begun = records_.running(req).first != kNever;
    reply.stage = has_begun ? node::RequestStage::decode : node::RequestStage::route;
    reply.message = "the conductor is stopping";
    on_reply(reply);
  }
  MC_ASSERT(answers_.empty());
}

}  // namespace mc::door
