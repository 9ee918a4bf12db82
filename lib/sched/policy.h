// A policy is a pure function from a snapshot of the cluster to a placement: no clock, no socket, no
// state. The live conductor and the simulator call the same one (Mooncake 6).
//
// To add one: lib/sched/policy_<name>.cc with a `const Policy`, and its line in policies.cc.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/rng.h"
#include "sched/admission.h"
#include "sched/bars.h"
#include "sched/cost.h"

namespace mc::sched {

// The fields that every decision reads of every node lie in one cache line, or half of one: reading the lines of a
// thousand nodes is most of the cost of a decision.

/// One prefill node. Blocks are counted from the start of the request's chain.
struct alignas(64) PrefillView {
  double queue_s = 0;            // predicted seconds until a new request would start; never negative
  uint32_t resident_blocks = 0;  // leading run readable here, or that will be when the queue is done
  bool accepting = true;         // false: draining, or pinned elsewhere by the request
  Cost cost;
  double up_s = 1e9;        // since it joined the cluster; read for slow start only
  uint32_t unfinished = 0;  // requests placed here and not yet at their first token
  int holder = -1;          // the same node in Snapshot::holders; -1 = to be found by name
  std::string name;
};

/// Any node (prefill, decode or cache) that others may read blocks from; its name is in Snapshot::holder_names.
struct HolderView {
  uint32_t readable_blocks = 0;    // leading run readable now
  uint32_t pending_blocks = 0;     // leading run readable once `pending_s` have passed
  uint32_t transfers_leaving = 0;  // to other nodes
  double pending_s = 0;
  double leaving_bytes = 0;  // what those transfers still have to send; 0 with transfers = not known
};

struct alignas(64) DecodeView {
  uint64_t kv_tokens = 0;        // context tokens of its rows
  uint64_t capacity_tokens = 0;  // what its pages hold
  uint32_t rows = 0;             // running + arriving + committed requests
  bool accepting = true;
  Cost cost;
  uint32_t arrived_rows = 0;  // of `rows`: those whose KV is here
  uint64_t arrived_kv_tokens = 0;
  std::string name;
};

/// A request on its way, for admission that looks ahead.
struct Inflight {
  double arrives_s = 0;     // from now until its KV is on the decode node; negative: that long ago
  uint32_t decode = 0;      // index into Snapshot::decode
  uint32_t tokens = 0;      // context it has, or will arrive with
  uint32_t answered = 0;    // tokens of the answer so far
  uint32_t answer_max = 0;  // most it may have; 0 = not bounded
};

enum class FetchRule : uint8_t { cost, threshold };

struct Options {
  /// Fill in every candidate as if it were chosen. Otherwise one that cannot win may be left as it is without a
  /// fetch; the choice is the same.
  bool complete = false;
  FetchRule fetch_rule = FetchRule::cost;
  double threshold = 1.0;  // kvcache_balancing_threshold of Algorithm 1
  double ttft_slo_s = 0;   // 0 = no bound
  double tbt_slo_s = 0;
  double slow_start_s = 0;               // for so long a new node is not taken to be as idle as it is; 0 = at once
  const Admission* admission = nullptr;  // null: find_admission("committed")
  /// The first token is sent with the second: the hand-off to decode is then part of TTFT, whose bound is hundreds of
  /// times TBT's, and not a gap between tokens.
  bool first_with_second = false;
  /// Stickiness: this prefill node is taken in place of the policy's choice when it is little worse: by a tenth of
  /// the predicted TTFT and prefer_s. "" = none.
  std::string prefer;
  double prefer_s = 0.02;
  AdmissionOptions admitting;
};

struct Snapshot {
  uint32_t tokens = 0;         // prompt length
  uint32_t answer_tokens = 0;  // most that may be generated
  uint32_t block_tokens = 64;
  uint64_t block_bytes = 0;  // bytes of one page on the wire
  std::vector<PrefillView> prefill;
  std::vector<HolderView> holders;
  std::vector<std::string> holder_names;  // of the same length
  std::vector<DecodeView> decode;
  std::vector<Bar> bars;             // pairs of accepting nodes that are set aside all the same; nearly always empty
  std::vector<Inflight> inflight;    // all requests of the decode nodes; read by admission that looks ahead
  const Lengths* lengths = nullptr;  // of answers seen so far

  void add_holder(std::string name, const HolderView& view = {}) {
    holders.push_back(view);
    holder_names.push_back(std::move(name));
  }
};

/// One prefill node considered for the request; kept for `explain`.
struct Candidate {
  uint32_t node = 0;  // index into Snapshot::prefill
  uint32_t local_blocks = 0;
  int holder = -1;  // index into Snapshot::holders when part of the prefix is fetched
  uint32_t fetch_blocks = 0;
  double wait_s = 0;  // until the holder has computed what is fetched
  double queue_s = 0, fetch_s = 0, prefill_s = 0, ttft_s = 0;
  double handicap_s = 0;  // slow start: what a new node's queue is taken to be longer by
  double rank_s() const { return ttft_s + handicap_s; }
};

struct Placement {
  int candidate = -1;  // index into candidates, -1 = rejected
  int decode = -1;     // index into Snapshot::decode
  double ttft_s = 0, tbt_s = 0;
  NoPlace reason = NoPlace::none;         // why there is no candidate
  double predicted_s = 0, allowed_s = 0;  // the bound that failed
  Verdict verdict;                        // what admission saw, also when it let the request pass
  std::vector<Candidate> candidates;
};

struct Policy {
  std::string_view name;
  std::string_view summary;
  /// Index into `candidates` of the winner, or -1. Candidates cover accepting prefill nodes only.
  int (*choose)(const Snapshot&, const Options&, std::span<Candidate> candidates, Rng&);
};

std::span<const Policy* const> policies();
const Policy* find_policy(std::string_view name);

/// The candidates with the least predicted TTFT, the chosen one first, at most `count`, for the answer
/// to `why`.
void best_candidates(const Placement& placement, size_t count, std::vector<uint32_t>& out);

/// Tokens that `blocks` reused blocks save: at least one prompt token is always computed.
inline uint32_t reused_tokens(const Snapshot& snapshot, uint32_t blocks) {
  if (snapshot.tokens == 0) return 0;
  const uint64_t tokens = static_cast<uint64_t>(blocks) * snapshot.block_tokens;
  return static_cast<uint32_t>(tokens < snapshot.tokens ? tokens : snapshot.tokens - 1);
}
inline Work work_left(const Snapshot& snapshot, uint32_t blocks) {
  return {static_cast<double>(snapshot.tokens), static_cast<double>(reused_tokens(snapshot, blocks))};
}
/// The sender's link is shared evenly by what leaves it: our bytes go as slowly as all transfers together, but
/// behind no more than the bytes that are left of them.
inline double fetch_seconds(const Snapshot& snapshot, const Cost& cost, const HolderView& holder, uint32_t blocks) {
  const double bytes = static_cast<double>(blocks) * static_cast<double>(snapshot.block_bytes);
  const double shared_s = cost.read(bytes, holder.transfers_leaving);
  return holder.leaving_bytes > 0 ? std::min(shared_s, cost.read(bytes + holder.leaving_bytes, 0)) : shared_s;
}
/// Marks a condition in a loop over nodes as nearly never true, so that the compiler emits a jump. A select would make
/// each round wait for the round before.
constexpr bool rarely(bool condition) {
  return __builtin_expect_with_probability(condition, 0, 0.999) != 0;
}
/// Fills the times of a candidate that fetches `fetch_blocks` more from `holder` (-1 = nothing).
void predict(const Snapshot& snapshot, Candidate& candidate);
/// The decode node with the least predicted step among those with room; -1 = none. Bars are not looked at.
int choose_decode(const Snapshot& snapshot);
inline double predict_tbt(const Snapshot& snapshot, const DecodeView& node) {
  return node.cost.step(node.rows + 1, static_cast<double>(node.kv_tokens + snapshot.tokens));
}
/// The whole decision: policy, decode choice, admission. Pure apart from the draws from `rng`. The candidates are
/// those prefill nodes that no bar keeps from the decode node that was chosen.
Placement place(const Snapshot& snapshot, const Policy& policy, const Options& options, Rng& rng);
/// The same into a placement whose memory is used again.
void place(const Snapshot& snapshot, const Policy& policy, const Options& options, Rng& rng, Placement& out);

}  // namespace mc::sched
