// Requests from submission to the last reply: their attempts on nodes, their tokens in order to the client, their ends.
//
//   Submit -> placed(p, d) -> first token -> decoding -> finished
//     |  '-> held (sched/line.h: its turn has not come) -> placed | rejected in park_max or as late
//     |         |  failed, retryable: attempt + 1, prompt + tokens so far
//     |         '-> parked (no node of a role is left) -> placed | failed at the deadline
//     '-> rejected (no node, or a promise would be broken)
//
// Flights follows the requests and updates the books (Members, Board, Line). The conductor decides where they go.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "node/answer_tokens.h"
#include "node/evicted_blocks.h"
#include "node/failure.h"
#include "node/members.h"
#include "node/node.h"
#include "node/refusal.h"
#include "node/tenants.h"
#include "sched/sched.h"

namespace mc::node {

/// The names of a request's blocks. The workers compute equal names.
struct RequestBlocks {
  NamespaceId ns;
  std::string prefill_attention, decode_attention;
  std::vector<BlockHash> hashes;
  uint64_t members_version = 0;  // version of the members whose namespace gave the names
};

/// One attempt on a pair of nodes.
struct Attempt {
  uint32_t number = 0;     // 0 = no attempt was made yet
  NodeId prefill, decode;  // one and the same where the decode node computes the prompt itself
  InstanceId prefill_instance, decode_instance;
  sched::Booking booking;
  bool first_token = false;   // the prefill node has sent it
  bool handed_over = false;   // the decode node has sent a token
  bool fetch_waited = false;  // the source had to compute the blocks first, so the fetch is no measure of the network
  TimePoint placed_at{}, expected_at{}, first_token_at{};  // expected_at: predicted end of prefill
  std::vector<wire::PromptLogprob> prompt_logprobs;        // log-probabilities of prompt tokens 1, 2, ...
  wire::Bytes embedding;                                   // see wire::FirstToken
  /// Whether the decode node computes the prompt itself.
  bool is_inlined() const { return number > 0 && prefill_instance == decode_instance; }
};

/// Whether bytes of cached blocks failed their checksum in an attempt of a request.
enum class Damage : uint8_t {
  none,
  met,      // in an attempt that has failed
  avoided,  // this attempt reuses nothing, see wire::RequestSpec
};

struct Request {
  Submit submit;
  uint32_t tenant = 0;
  bool admitted = false;  // counted as admitted for its tenant
  TimePoint arrived{}, deadline{};
  TimePoint expires = kNever;       // held: from this time on the TTFT bound cannot be met
  TimePoint parked_until = kNever;  // end of the wait for a node
  TimePoint timer = kNever;         // time of the request's next check, or earlier
  TimePoint answer_began = kNever;  // time of the answer's first token, of whichever attempt
  double work_s = 0;                // predicted seconds of prefill when it was held
  RequestBlocks blocks;
  AnswerTokens answer;
  Attempt attempt;
  uint32_t failures = 0;
  Damage damage = Damage::none;
  bool may_inline = true;              // false: a decode node that was to compute the prompt itself did not
  bool was_refused = false;            // by a decode node, for the bound of TBT; a second refusal rejects it
  NodeId avoid;                        // node of the last failure
  std::vector<sched::Part> failed_on;  // pairs that failed this request
  RequestSummary summary;

  bool is_placed() const { return attempt.booking.placed; }
  /// Number of tokens of the prompt and the answer so far.
  uint32_t tokens() const { return static_cast<uint32_t>(submit.ids.size() + answer.size()); }
  bool may_reuse() const { return submit.may_reuse() && damage != Damage::avoided; }
  RequestStage stage() const;
  sched::Part pair() const { return {attempt.prefill, attempt.decode}; }
  /// The description of the request for the nodes of the next attempt. Its deadline is counted from `now`.
  wire::RequestSpec spec(double tbt_slo_s, TimePoint now) const;
  /// The leading blocks of the prompt that may come from a cache.
  std::span<const BlockHash> reusable(uint32_t block_tokens) const;
};

class Flights {
 public:
  /// The parts of the conductor that hold the books. All outlive Flights.
  struct Books {
    Members& members;
    sched::Board& board;
    sched::Line& line;
    sched::Breakers& breakers;
    Tenants& tenants;
    const EvictedBlocks& evicted;
  };
  Flights(const Books& books, bool first_with_second) : books_(books), first_with_second_(first_with_second) {}

  // ---- looking ----
  Request& add(const Submit& submit, TimePoint deadline, TimePoint now);
  Request* find(const RequestId& req);
  /// null also when another attempt of the request is under way.
  Request* find(const RequestId& req, uint32_t attempt);
  const std::map<RequestId, Request>& all() const { return requests_; }
  size_t size() const { return requests_.size(); }
  /// Requests that are placed on the node, with the stage of their work there.
  std::vector<std::pair<RequestId, RequestStage>> on_node(const NodeId& name) const;
  std::vector<RequestId> ids(const std::function<bool(const Request&)>& wanted) const;

  // ---- time ----
  /// Must be called when a request may become due earlier than before. A request that becomes due later is noticed when
  /// its timer ends.
  void watch(Request& r);
  /// Requests whose deadline, TTFT bound or wait for a node has passed.
  std::vector<RequestId> due(TimePoint now);
  TimePoint next_wakeup() const { return timers_.empty() ? kNever : timers_.begin()->first; }

  // ---- attempts ----
  /// Starts an attempt. `attempt` names the nodes and holds the booking.
  void depart(Request& r, Attempt attempt, TimePoint now);
  /// Ends the attempt and removes its booking.
  void unplace(Request& r, TimePoint now);
  /// The node from which the request fetches blocks is gone.
  void forget_source(int slot);
  /// Charges the failed attempt to the breakers of the nodes at fault and to the summary.
  void blame(Request& r, const Failure& failure, TimePoint now);
  static void cancel_workers(const Request& r, CancelReason reason, Actions& out);

  // ---- what workers send ----
  void on_prompt_logprobs(const Received& event, const wire::PromptLogprobs& told);
  void on_first_token(const Received& event, const wire::FirstToken& first, TimePoint now, Actions& out);
  void on_kv_report(const Received& event, const wire::KvReport& report, TimePoint now);
  void on_tokens(const Received& event, const wire::Tokens& tokens, TimePoint now, Actions& out);

  // ---- ends ----
  void finish(Request& r, Finish finish, TimePoint now, Actions& out);
  void reject(Request& r, RequestStage stage, Refusal why, TimePoint now, Actions& out);
  void fail(Request& r, RequestStage stage, Refusal why, TimePoint now, Actions& out);

  /// Each submitted request is unfinished, or has ended as one of finished, failed, rejected and cancelled.
  struct Stats {
    uint64_t submitted = 0, finished = 0, failed = 0, rejected = 0, cancelled = 0, retried = 0;
    uint64_t prompt_tokens = 0, answer_tokens = 0;
    uint64_t computed = 0, cached_local = 0, cached_remote = 0;  // prompt tokens of requests with a first token
    uint64_t from_holders = 0;  // prompt tokens that decode nodes read from other nodes than the prefill node
    /// Requests rejected because a bound was predicted to be missed.
    std::map<sched::Bound, uint64_t> missed = {{sched::Bound::ttft, 0}, {sched::Bound::tbt, 0}, {sched::Bound::kv, 0}};
    uint64_t inlined = 0;                     // prompts that decode nodes computed themselves
    uint64_t set_aside = 0;                   // times that a breaker opened
    uint64_t held_turn = 0, held_prefix = 0;  // requests that were held, by what they waited for
  };
  Stats& stats() { return stats_; }
  const Stats& stats() const { return stats_; }
  /// Prediction errors over recent requests that succeeded at the first attempt.
  struct PredictionErrors {
    sched::RelativeError ttft, tbt;            // errors of the values that admission decides by
    sched::RelativeError prefill, step, read;  // errors of the parts, over all nodes
  };
  const PredictionErrors& prediction_errors() const { return errors_; }
  /// The learnt cost of reads from one node into another (sched/transfer_costs.h).
  struct Link {
    NodeId from, to;
    sched::TransferCost cost;
    double usual_s_per_byte = 0;  // of sources that `to` has not read from
    Duration age{};               // since the last read
    /// How many times slower than usual the link is; below 1 = faster.
    double slowness() const { return cost.s_per_byte / usual_s_per_byte; }
  };
  std::vector<Link> links(TimePoint now) const;

  void check() const;

 private:
  static TimePoint due_of(const Request& r, bool held);
  void succeed(const sched::Part& part);
  void learn_prefill(const Request& r, const wire::PrefillReport& report, TimePoint now);
  void learn_reads(const Request& r, const NodeId& reader, std::span<const wire::EndedRead> reads, TimePoint now);
  void end_prefill(Request& r, TimePoint now, bool finished);
  void give(Request& r, AnswerTokens::Token token, Finish finish, TimePoint now, Actions& out);
  Reply refusal(const Refusal& why, RequestStage stage, Reply::Kind kind);
  void end(Request& r, Reply reply, TimePoint now, Actions& out);

  Books books_;
  bool first_with_second_;
  std::map<RequestId, Request> requests_;
  std::set<std::pair<TimePoint, RequestId>> timers_;  // time of each request's next check, or earlier
  Stats stats_;
  PredictionErrors errors_;
};

}  // namespace mc::node
