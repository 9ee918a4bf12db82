#include "sim/clients.h"

#include <algorithm>

#include "base/assert.h"

namespace mc::sim {

node::Submit Clients::request(std::vector<uint32_t> ids, uint32_t max_tokens, Duration deadline,
                              std::string salt) const {
  node::Submit submit;
  submit.ids = std::move(ids);
  submit.salt = std::move(salt);
  submit.stopping.max_tokens = max_tokens;
  submit.deadline = deadline;
  const uint64_t number = outcomes_.size() + 1;
  if (options_.priorities) {
    submit.priority = static_cast<int>(number % 5) - 2;
    if (number % 3 == 0) submit.session = "s" + std::to_string(number % 7);
  }
  if (const size_t turn = number % (options_.tenants.size() + 1); turn > 0)
    submit.tenant = options_.tenants[turn - 1].name;
  return submit;
}

RequestId Clients::add(node::Submit& submit, TimePoint now) {
  const RequestId req = "req_" + std::to_string(outcomes_.size() + 1);
  Outcome& outcome = outcomes_[req];
  outcome.asked.ids = submit.ids;
  outcome.asked.max_tokens = submit.stopping.max_tokens;
  outcome.submitted = now;
  outcome.deadline = now + submit.deadline;
  outcome.asked.tenant = submit.tenant;
  outcome.asked.pin_prefill = submit.pin_prefill, outcome.asked.pin_decode = submit.pin_decode;
  submit.req = req;
  submit.sampling.temperature = 0;
  if (options_.profile == nullptr) submit.stopping.stop_ids = {kStopToken};
  return req;
}

void Clients::lose(const RequestId& req, TimePoint now) {
  Outcome& outcome = outcomes_.at(req);
  over(outcome, node::Finish::none, node::Reason::peer_lost, now);
  outcome.connection_lost = true;
}

void Clients::lose_all(TimePoint now) {
  for (const auto& [req, outcome] : outcomes_)
    if (!outcome.is_over()) lose(req, now);
}

void Clients::abort(const RequestId& req, TimePoint now) {
  Outcome& outcome = outcomes_.at(req);
  if (!outcome.is_over()) over(outcome, node::Finish::abort, node::Reason::none, now);
}

std::string Outcome::end() const {
  return std::string(finish != node::Finish::none ? to_string(finish) : to_string(reason));
}

void Clients::over(Outcome& outcome, node::Finish finish, node::Reason reason, TimePoint now) {
  MC_ASSERT(!outcome.is_over());
  outcome.ended = now;
  outcome.finish = finish;
  outcome.reason = reason;
  ++ended_;
  MC_ASSERT(ended_ <= outcomes_.size());
}

// The check uses the conductor's own view: a drain that it has not received yet does not bind it.
void Clients::check_dispatch(const node::Conductor& conductor, const std::string& to, const wire::PrefillStart& start,
                             TimePoint now) {
  const Outcome& outcome = outcomes_.at(start.spec.req);
  for (const auto& n : conductor.nodes(now))
    if (n.name == to || n.name == start.decode) {
      if (n.state == node::NodeState::drain)
        findings_.add(now, start.spec.req + " went to " + n.name + ", which drains");
      if (!n.lacks.empty()) findings_.add(now, start.spec.req + " went to " + n.name + ": " + n.lacks);
    }
  if ((!outcome.asked.pin_prefill.empty() && outcome.asked.pin_prefill != to) ||
      (!outcome.asked.pin_decode.empty() && outcome.asked.pin_decode != start.decode))
    findings_.add(now, start.spec.req + " went to " + to + " and " + start.decode + " past its pin");
}

void Clients::check_rejection(const Outcome& outcome, const node::Reply& reply, TimePoint now) {
  const bool missed = reply.kind == node::Reply::Kind::rejected && reply.reason == node::Reason::predicted_slo_miss;
  if (missed == (reply.bound == sched::Bound::none))
    findings_.add(now, reply.req + ": " + std::string(to_string(reply.reason)) + " for the bound '" +
                           std::string(to_string(reply.bound)) + "'");
  if (missed && reply.bound != sched::Bound::kv && !(reply.predicted_ms > reply.allowed_ms && reply.allowed_ms > 0))
    findings_.add(now, reply.req + ": rejected although " + reply.message);
  if (missed && !outcome.answer.empty()) findings_.add(now, reply.req + ": rejected after its first token");
}

void Clients::on_reply(const node::Reply& reply, TimePoint now) {
  Outcome& outcome = outcomes_.at(reply.req);
  if (outcome.is_over()) return findings_.add(now, reply.req + ": a reply after the last one");
  if (reply.kind == node::Reply::Kind::token) {
    if (reply.index != outcome.answer.size())
      return findings_.add(now, reply.req + ": token " + std::to_string(reply.index) + " came as number " +
                                    std::to_string(outcome.answer.size()));
    if (outcome.answer.empty())
      outcome.first_token = now, outcome.summary = reply.summary;
    else
      outcome.gaps_s.push_back(to_seconds(now - outcome.last_token));
    outcome.last_token = now;
    outcome.answer.push_back(reply.token);
    return;
  }
  outcome.stage = reply.stage;
  outcome.bound = reply.bound;
  outcome.allowed_s = reply.allowed_ms * 1e-3;
  outcome.attempts = reply.summary.attempts;
  outcome.failed = reply.summary.failed;
  check_rejection(outcome, reply, now);
  over(outcome, reply.finish, reply.reason, now);
  if (now > outcome.deadline + options_.client_grace)
    findings_.add(now,
                  reply.req + ": ended " + std::to_string(to_ms(now - outcome.deadline)) + " ms after its deadline");
  const auto expected = oracle(options_, outcome.asked.ids, outcome.asked.max_tokens);
  const size_t count = outcome.answer.size();
  const bool whole = outcome.served();
  if (count > expected.size() || !std::equal(outcome.answer.begin(), outcome.answer.end(), expected.begin()))
    findings_.add(now, reply.req + ": wrong token among the " + std::to_string(count) + " answered");
  else if (whole && count != expected.size())
    findings_.add(now, reply.req + ": ended by " + outcome.end() + " after " + std::to_string(count) + " of " +
                           std::to_string(expected.size()) + " tokens");
}

}  // namespace mc::sim
