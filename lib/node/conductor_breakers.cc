// Pairs of nodes, and nodes, that fail requests: whose fault a failure was, and what placement may not use (sched/
// breaker.h has the rules). A first token shows that its prefill node works; a token of the decode node shows that the
// pair handed the request over and that the decode node works.

#include <algorithm>

#include "base/assert.h"
#include "node/conductor.h"

namespace mc::node {

// A retry goes past the pair that failed this request, whatever its breaker says.
void Conductor::blame(Request& r, const Failure& failure, TimePoint now) {
  r.summary.failed.push_back({r.prefill, r.decode, failure.stage, reason_of(failure)});
  const Blame who = blame_of(failure);
  if (who == Blame::nobody) return;
  if (who == Blame::pair) r.failed_on.push_back(pair_of(r));
  // A node that went since takes its record with it.
  const Node *prefill = find_node(r.prefill), *decode = find_node(r.decode);
  const bool prefill_here = prefill && prefill->instance == r.prefill_instance;
  const bool decode_here = decode && decode->instance == r.decode_instance;
  if ((who != Blame::decode && !prefill_here) || (who != Blame::prefill && !decode_here)) return;
  const auto [of_pair, of_prefill, of_decode] = parts_of(r);
  const sched::Part& part = who == Blame::pair ? of_pair : who == Blame::prefill ? of_prefill : of_decode;
  breakers_.failed(part, r.submit.req, r.placed_at, now);
}

void Conductor::handed_over(Request& r) {
  r.handed_over = true;
  if (breakers_.empty()) return;
  breakers_.succeeded(pair_of(r));
  breakers_.succeeded({"", r.decode});
}

/// The request was placed: where a part waits for a probe, it is that.
void Conductor::probe_parts(const Request& r) {
  if (breakers_.empty()) return;
  for (const sched::Part& part : parts_of(r)) breakers_.placed(part, r.submit.req);
}

/// The attempt is over: a probe that showed nothing makes room for the next.
void Conductor::leave_parts(const Request& r) {
  if (breakers_.empty()) return;
  for (const sched::Part& part : parts_of(r)) breakers_.left(part, r.submit.req);
}

// What the request may not use although the nodes accept; the least bad pair is left to it when there is no other.
void Conductor::set_bars(const Request& r, TimePoint now) {
  sched::Snapshot& s = board_.snapshot;
  s.bars.clear();
  if (breakers_.empty() && r.failed_on.empty()) return;
  const auto bar = [&](const sched::Part& part, double left_s) {
    const Node *prefill = find_node(part.prefill), *decode = find_node(part.decode);
    sched::Bar out{prefill ? board_.places[prefill->ordinal].prefill : -1,
                   decode ? board_.places[decode->ordinal].decode : -1, left_s};
    if ((out.prefill >= 0 || part.prefill.empty()) && (out.decode >= 0 || part.decode.empty())) s.bars.push_back(out);
  };
  for (const auto& [part, entry] : breakers_.entries())
    if (sched::Breakers::is_shut(entry)) bar(part, std::max(0.0, to_seconds(entry.until - now)));
  for (const sched::Part& part : r.failed_on) bar(part, 0);
  sched::lift_least_bad(s);
}

void Conductor::tell_breakers(Actions& out) {
  for (sched::Breakers::Change& change : breakers_.take_changes()) {
    stats_.set_aside += change.state == sched::BreakerState::open;
    out.push_back(BreakerChanged{std::move(change.part.prefill), std::move(change.part.decode), change.state,
                                 change.failures, change.backoff});
  }
}

// The breakers of nodes and pairs that are set aside. A probe is a request that is placed on one of them.
void Conductor::check_breakers() const {
  breakers_.check();
  for (const auto& [part, entry] : breakers_.entries()) {
    MC_ASSERT(part.prefill.empty() || nodes_.contains(part.prefill));
    MC_ASSERT(part.decode.empty() || nodes_.contains(part.decode));
    if (entry.probe.empty()) continue;
    const Request& r = requests_.at(entry.probe);
    MC_ASSERT(r.placed && (part.prefill.empty() || part.prefill == r.prefill));
    MC_ASSERT(part.decode.empty() || part.decode == r.decode);
  }
}

}  // namespace mc::node
