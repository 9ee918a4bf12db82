// Requests from their submission to their last reply: attempts on nodes, tokens in order to the client, ends.
//
//   Submit -> placed(p, d) -> first token -> decoding -> finished
//     |  '-> held (sched/line.h: its turn has not come) -> placed | rejected in park_max or as late
//     |         |  failed, retryable: attempt + 1, prompt + tokens so far
//     |         '-> parked (no node of a role is left) -> placed | failed at the deadline
//     '-> rejected (no node, or a promise would be broken)
//
// Flights follows them and keeps the books (Members, Board, Line); the conductor says where they go.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "node/answer_tokens.h"
#include "node/failure.h"
#include "node/members.h"
#include "node/node.h"
#include "node/refusal.h"
#include "node/tenants.h"
#include "sched/sched.h"

namespace mc::node {

/// The names of a request's blocks, as the workers compute them too.
struct RequestBlocks {
  NamespaceId ns;
  std::string prefill_attention, decode_attention;
  std::vector<BlockHash> hashes;
  uint64_t members_version = 0;  // that they were named by
};

/// One try on a pair of nodes.
struct Attempt {
  uint32_t number = 0;  // 0 = none was made yet
  NodeId prefill, decode;
  InstanceId prefill_instance, decode_instance;
  sched::Booking booking;
  bool first_token = false;   // given by the prefill node
  bool handed_over = false;   // the decode node has given a token
  bool fetch_waited = false;  // its source had to compute the blocks first: no measure of the network
  TimePoint placed_at{}, expected_at{}, first_token_at{};  // expected_at: when prefill is predicted to end
  std::vector<wire::PromptLogprob> prompt_logprobs;        // of tokens 1, 2, ...
};

struct Request {
  Submit submit;
  uint32_t tenant = 0;
  bool admitted = false;  // counted at its tenant
  TimePoint arrived{}, deadline{};
  TimePoint expires = kNever;       // held: from then on it could not keep its TTFT promise
  TimePoint parked_until = kNever;  // it waits for a node until then
  TimePoint timer = kNever;         // not later than when it must be looked at
  double work_s = 0;                // of prefill, predicted when it was held
  RequestBlocks blocks;
  AnswerTokens answer;
  Attempt attempt;
  uint32_t failures = 0;
  NodeId avoid;                        // the node that failed last
  std::vector<sched::Part> failed_on;  // pairs that failed this request
  RequestSummary summary;

  bool is_placed() const { return attempt.booking.placed; }
  /// Prompt and answer so far.
  uint32_t tokens() const { return static_cast<uint32_t>(submit.ids.size() + answer.size()); }
  RequestStage stage() const;
  sched::Part pair() const { return {attempt.prefill, attempt.decode}; }
  /// The blocks at the front of its prompt that it may take from caches.
  std::span<const BlockHash> reusable(uint32_t block_tokens) const;
};

class Flights {
 public:
  /// The parts that the books are in; all outlive this one.
  struct Books {
    Members& members;
    sched::Board& board;
    sched::Line& line;
    sched::Breakers& breakers;
    Tenants& tenants;
  };
  Flights(const Books& books, bool first_with_second) : books_(books), first_with_second_(first_with_second) {}

  // ---- looking ----
  Request& add(const Submit& submit, TimePoint deadline, TimePoint now);
  Request* find(const RequestId& req);
  /// null also when another attempt than this one is under way.
  Request* find(const RequestId& req, uint32_t attempt);
  const std::map<RequestId, Request>& all() const { return requests_; }
  size_t size() const { return requests_.size(); }
  /// Placed requests that the node works on, with what they were doing there.
  std::vector<std::pair<RequestId, RequestStage>> on_node(const NodeId& name) const;
  std::vector<RequestId> ids(const std::function<bool(const Request&)>& wanted) const;

  // ---- time ----
  /// To be called when the request may be due earlier; later is found out when the timer ends.
  void watch(Request& r);
  /// Requests whose deadline, promise or wait for a node is over.
  std::vector<RequestId> due(TimePoint now);
  TimePoint next_wakeup() const { return timers_.empty() ? kNever : timers_.begin()->first; }

  // ---- attempts ----
  /// A new attempt, whose nodes and booking `attempt` says.
  void depart(Request& r, Attempt attempt, TimePoint now);
  /// The attempt is over: off the books.
  void unplace(Request& r, TimePoint now);
  /// The source of a request's blocks is gone.
  void forget_source(int slot);
  /// Charges the failed attempt to the nodes at fault, in the breakers and the summary.
  void blame(Request& r, const Failure& failure, TimePoint now);
  static void cancel_workers(const Request& r, CancelReason reason, Actions& out);

  // ---- what workers send ----
  void on_prompt_logprobs(const Received& event, const wire::PromptLogprobs& told);
  void on_first_token(const Received& event, const wire::FirstToken& first, TimePoint now, Actions& out);
  void on_tokens(const Received& event, const wire::Tokens& tokens, TimePoint now, Actions& out);

  // ---- ends ----
  void finish(Request& r, Finish finish, TimePoint now, Actions& out);
  void reject(Request& r, RequestStage stage, Refusal why, TimePoint now, Actions& out);
  void fail(Request& r, RequestStage stage, Refusal why, TimePoint now, Actions& out);

  /// Each request submitted is unfinished, or ended as one of finished, failed, rejected and cancelled.
  struct Stats {
    uint64_t submitted = 0, finished = 0, failed = 0, rejected = 0, cancelled = 0, retried = 0;
    uint64_t prompt_tokens = 0, cached_local = 0, cached_remote = 0, answer_tokens = 0;
    /// Rejected because a bound was predicted to be broken.
    std::map<sched::Bound, uint64_t> missed = {{sched::Bound::ttft, 0}, {sched::Bound::tbt, 0}, {sched::Bound::kv, 0}};
    uint64_t set_aside = 0;                   // times that a pair of nodes, or a node, was set aside
    uint64_t held_turn = 0, held_prefix = 0;  // requests that waited here, and what for
  };
  Stats& stats() { return stats_; }
  const Stats& stats() const { return stats_; }
  /// How far predictions were off, over recent requests that ran at their first attempt.
  struct PredictionErrors {
    sched::RelativeError ttft, tbt;            // of what admission decided by
    sched::RelativeError prefill, step, read;  // of all nodes' parts
  };
  const PredictionErrors& prediction_errors() const { return errors_; }

  void check() const;

 private:
  static TimePoint due_of(const Request& r, bool held);
  void learn_prefill(const Request& r, const wire::PrefillReport& report);
  void end_prefill(Request& r, TimePoint now);
  void give(Request& r, AnswerTokens::Token token, Finish finish, TimePoint now, Actions& out);
  Reply refusal(const Refusal& why, RequestStage stage, Reply::Kind kind);
  void end(Request& r, Reply reply, TimePoint now, Actions& out);

  Books books_;
  bool first_with_second_;
  std::map<RequestId, Request> requests_;
  std::set<std::pair<TimePoint, RequestId>> timers_;  // when each request must be looked at, or earlier
  Stats stats_;
  PredictionErrors errors_;
};

}  // namespace mc::node
