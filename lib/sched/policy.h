// A policy is a pure function from a snapshot of the cluster to a placement: it has no clock, no socket and no state.
// The live conductor and the simulator call one and the same function (Mooncake 6).
//
// To add one: lib/sched/policy_<name>.cc with a `const Policy`, and its line in policies.cc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/rng.h"
#include "sched/admission.h"
#include "sched/bars.h"
#include "sched/cost.h"
#include "sched/transfer_costs.h"

namespace mc::sched {

// The fields that every decision reads of every node fit in one cache line or half of one. Reading the cache lines of a
// thousand nodes is most of the cost of a decision.

/// One prefill node. Blocks are counted from the start of the request's chain.
struct alignas(64) PrefillView {
  std::string name;
  double up_s = 1e9;             // seconds since the node joined; read by slow start only
  Cost cost;                     // its prefill coefficients begin the second cache line, which decisions read
  double queue_s = 0;            // predicted seconds until a new request would start; never negative
  double load_s = 0;             // seconds of reading the resident blocks that are on the node's disk
  uint32_t resident_blocks = 0;  // leading run that is readable here, or will be when the queue has ended
  bool accepting = true;         // false: draining, or pinned elsewhere by the request
  bool measured = true;          // false: the node has computed no prompt yet, and its cost is an assumption
  bool has_device = false;       // true: it copies cached blocks to a device (Snapshot::devices)
  uint32_t unfinished = 0;       // requests that are placed here and have no first token yet
  int holder = -1;               // index of the node in Snapshot::holders; -1 = look it up by name
};
static_assert(offsetof(PrefillView, cost) + offsetof(Cost, prefill_s) == 64 && sizeof(PrefillView) == 128);

/// The tier in the memory of a prefill node's device.
struct DeviceView {
  uint32_t blocks = 0;  // part of PrefillView::resident_blocks that is on the device
  double block_s = 0;   // seconds of copying one block from the host to the device
};

/// A node of any role whose blocks other nodes may read. Its name is in Snapshot::holder_names.
struct HolderView {
  uint32_t transfers_leaving = 0;  // transfers to other nodes
  uint32_t readable_blocks = 0;
  uint32_t pending_blocks = 0;  // leading run that will be readable in `pending_s`
  uint32_t slot = 0;            // of the node, in Snapshot::transfers
  double pending_s = 0;
  uint32_t disk_blocks = 0;  // part of readable_blocks that is on disk; nodes write the ends of prompts first
  double disk_block_s = 0;   // seconds of reading one of them
  double leaving_bytes = 0;  // bytes that these transfers still have to send; 0 with transfers = unknown
};

/// A run of the prompt's blocks that a holder has. kv::NodeRun is such a run before the board knows its holder's index;
/// FetchRun (sched/fetch_plan.h) is the part of a run that is fetched.
struct HolderRun {
  int holder = -1;  // index into Snapshot::holders
  uint32_t first = 0, end = 0;
  uint32_t disk_blocks = 0;  // number of its blocks that are on disk, the last ones
};

struct alignas(64) DecodeView {
  uint64_t kv_tokens = 0;        // context tokens of the rows
  uint64_t capacity_tokens = 0;  // tokens that the pages of the node hold
  uint32_t rows = 0;             // running + arriving + committed requests
  bool accepting = true;
  bool measured = true;  // false: the node has made no step yet, and its cost is an assumption
  Cost cost;
  uint32_t arrived_rows = 0;  // rows whose KV is on the node
  int holder = -1;            // index of the node in Snapshot::holders; -1 = look it up by name
  uint64_t arrived_kv_tokens = 0;
  std::string name;
};

/// A decode node that computes short prompts itself (sched/inline_place.h).
struct InlineView {
  uint32_t decode = 0;        // index into Snapshot::decode
  uint32_t tokens_max = 0;    // uncached tokens of a prompt that it computes
  uint32_t local_blocks = 0;  // leading run of the prompt that is in its memory
  double queue_s = 0;         // predicted seconds until it has computed the prompts that are placed there
  bool measured = true;       // false: the node has computed no prompt yet, and its cost is an assumption
};

/// A request on its way to a decode node or decoding there, for admission that looks ahead.
struct Inflight {
  double arrives_s = 0;     // seconds from now until its KV is on the decode node; negative: the KV is there since then
  uint32_t decode = 0;      // index into Snapshot::decode
  uint32_t tokens = 0;      // tokens of its context now, or at its arrival
  uint32_t answered = 0;    // tokens of the answer so far
  uint32_t answer_max = 0;  // limit of its answer; 0 = no limit
};

enum class FetchRule : uint8_t { cost, threshold };

struct Options {
  /// Fills every candidate with the values of its own placement. Otherwise a candidate that cannot win may keep the
  /// values without a fetch. The choice is equal in both cases.
  bool complete = false;
  FetchRule fetch_rule = FetchRule::cost;
  double threshold = 1.0;  // kvcache_balancing_threshold of Algorithm 1
  double ttft_slo_s = 0;   // 0 = no bound
  double tbt_slo_s = 0;
  double slow_start_s = 0;               // seconds for which a new node is not assumed to be as idle as it is; 0 = none
  const Admission* admission = nullptr;  // null: find_admission("committed")
  /// The first token is sent with the second. The hand-off to decode then counts as part of TTFT, whose bound is
  /// hundreds of times the TBT bound, and not as a gap between tokens.
  bool first_with_second = false;
  /// Stickiness: this prefill node replaces the policy's choice unless it is worse by more than a tenth of the
  /// predicted TTFT and prefer_s. "" = none.
  std::string prefer;
  double prefer_s = 0.02;
  bool may_inline = true;  // the request may be computed by a decode node alone
  AdmissionOptions admitting;
};

struct Snapshot {
  uint32_t tokens = 0;         // prompt length
  uint32_t answer_tokens = 0;  // limit of the answer
  uint32_t block_tokens = 64;
  uint64_t block_bytes = 0;  // bytes of one page on the wire
  std::vector<PrefillView> prefill;
  std::vector<DeviceView> devices;  // index as in `prefill`; of nodes with PrefillView::has_device alone
  std::vector<HolderView> holders;
  std::vector<std::string> holder_names;  // index as in `holders`
  std::vector<DecodeView> decode;
  std::vector<InlineView> inlines;  // empty in most clusters
  /// Runs behind the leading run of every node, by first block. Nearly always empty, because one node has all blocks or
  /// none has more.
  std::vector<HolderRun> later_runs;
  std::vector<Bar> bars;                     // pairs of accepting nodes that are barred; nearly always empty
  std::vector<Inflight> inflight;            // all requests of the decode nodes; read by admission that looks ahead
  const Lengths* lengths = nullptr;          // lengths of finished answers
  const TransferCosts* transfers = nullptr;  // costs of reads between two nodes, as of `now`; null: none is known
  TimePoint now{};

  void add_holder(std::string name, const HolderView& view = {}) {
    holders.push_back(view);
    holder_names.push_back(std::move(name));
  }
};

/// One prefill node that the decision compared; `explain` shows it.
struct Candidate {
  uint32_t node = 0;  // index into Snapshot::prefill
  uint32_t local_blocks = 0;
  // Index into Snapshot::holders of the node that part of the prefix is fetched from; -1 = no fetch. With blocks that
  // this holder lacks, it is the first of several (sched/fetch_plan.h).
  int holder = -1;
  uint32_t fetch_blocks = 0;
  double wait_s = 0;       // seconds until the holder has computed the fetched blocks
  double load_s = 0;       // seconds of reading the local blocks that are on disk
  double to_device_s = 0;  // seconds of copying cached blocks to the device, beside the computing
  double queue_s = 0, fetch_s = 0, prefill_s = 0, ttft_s = 0;
  double handicap_s = 0;  // slow start: seconds added to the queue of a new node
  double rank_s() const { return ttft_s + handicap_s; }
};

/// A decode node that may compute the prompt itself, next to the best pair of nodes; `explain` shows it.
struct InlineCandidate {
  uint32_t decode = 0;  // index into Snapshot::decode
  uint32_t local_blocks = 0;
  double queue_s = 0, prefill_s = 0, ttft_s = 0;
  double gap_s = 0;  // longest time between two tokens of the node's requests: a step with the chunk in its pass
  bool measured = true;
};

struct Placement {
  int candidate = -1;  // index into candidates, -1 = rejected
  int decode = -1;     // index into Snapshot::decode
  double ttft_s = 0, tbt_s = 0;
  NoPlace reason = NoPlace::none;         // why there is no candidate
  double predicted_s = 0, allowed_s = 0;  // predicted value and limit of the bound that failed
  /// The best decode node that may compute the prompt itself. `is_inlined`: it does, and no prefill node is used;
  /// `candidate` is then the prefill node that was worse.
  std::optional<InlineCandidate> inlined;
  bool is_inlined = false;
  double handed_over_s = 0;  // predicted seconds until the KV of `candidate` is on `decode`; only beside `inlined`
  Verdict verdict;           // the values that admission used, also when it admitted the request
  std::vector<Candidate> candidates;
};

struct Policy {
  std::string_view name;
  std::string_view summary;
  /// Index of the winner in `candidates`, or -1. The candidates are accepting prefill nodes.
  int (*choose)(const Snapshot&, const Options&, std::span<Candidate> candidates, Rng&);
};

std::span<const Policy* const> policies();
const Policy* find_policy(std::string_view name);

/// The candidates with the least predicted TTFT, at most `count`, the chosen one first. `why` shows them.
void best_candidates(const Placement& placement, size_t count, std::vector<uint32_t>& out);

/// Tokens that `blocks` reused blocks save. At least one prompt token is always computed.
inline uint32_t reused_tokens(const Snapshot& snapshot, uint32_t blocks) {
  if (snapshot.tokens == 0) return 0;
  const uint64_t tokens = static_cast<uint64_t>(blocks) * snapshot.block_tokens;
  return static_cast<uint32_t>(tokens < snapshot.tokens ? tokens : snapshot.tokens - 1);
}
inline Work work_left(const Snapshot& snapshot, uint32_t blocks) {
  return {static_cast<double>(snapshot.tokens), static_cast<double>(reused_tokens(snapshot, blocks))};
}
/// A node that reads blocks: its cost, and its index in Snapshot::holders (-1 = no learnt cost applies).
struct BlockReader {
  const Cost& cost;
  int holder = -1;
};
inline BlockReader reader_of(const PrefillView& node) {
  return {node.cost, node.holder};
}
/// The learnt cost of reads from this holder; nullopt = none is known.
inline std::optional<TransferCost> learnt_cost(const Snapshot& snapshot, const BlockReader& reader, int holder) {
  if (!snapshot.transfers || reader.holder < 0) return std::nullopt;
  return snapshot.transfers->find(snapshot.holders[static_cast<size_t>(holder)].slot,
                                  snapshot.holders[static_cast<size_t>(reader.holder)].slot, snapshot.now);
}
/// The seconds of read_seconds(), where `seconds(bytes, leaving)` are those of a read beside so many transfers.
template <class Seconds>
double shared_seconds(const Seconds& seconds, double bytes, double leaving, double leaving_bytes) {
  const double shared_s = seconds(bytes, leaving);
  return leaving_bytes > 0 ? std::min(shared_s, seconds(bytes + leaving_bytes, 0)) : shared_s;
}
/// Seconds of reading bytes from a holder which sends other transfers, with so many bytes left (0 = unknown). The
/// sender's link is shared evenly by the transfers that leave it, so these bytes go as slowly as all transfers
/// together, but behind no more than the bytes that the other transfers have left.
inline double read_seconds(const Snapshot& snapshot, const BlockReader& reader, int holder, double bytes,
                           double leaving, double leaving_bytes) {
  if (const auto learnt = learnt_cost(snapshot, reader, holder))
    return shared_seconds([&](double more, double others) { return learnt->seconds(more, others); }, bytes, leaving,
                          leaving_bytes);
  return shared_seconds([&](double more, double others) { return reader.cost.read(more, others); }, bytes, leaving,
                        leaving_bytes);
}
/// Seconds until the reader has fetched blocks from the holder. Blocks on the sender's disk are read before they are
/// sent. They are the last ones of the prompt.
inline double fetch_seconds(const Snapshot& snapshot, const BlockReader& reader, int holder, uint32_t blocks,
                            uint32_t disk_blocks) {
  const HolderView& from = snapshot.holders[static_cast<size_t>(holder)];
  const double bytes = static_cast<double>(blocks) * static_cast<double>(snapshot.block_bytes);
  return std::min(blocks, disk_blocks) * from.disk_block_s +
         read_seconds(snapshot, reader, holder, bytes, from.transfers_leaving, from.leaving_bytes);
}
inline double fetch_seconds(const Snapshot& snapshot, const BlockReader& reader, int holder, uint32_t blocks) {
  return fetch_seconds(snapshot, reader, holder, blocks, snapshot.holders[static_cast<size_t>(holder)].disk_blocks);
}
/// Whether the prefill node is this holder. A node does not fetch from itself.
inline bool is_self(const Snapshot& snapshot, const PrefillView& node, int holder) {
  return node.holder >= 0 ? node.holder == holder : snapshot.holder_names[static_cast<size_t>(holder)] == node.name;
}
/// Number of the prefill node's resident blocks that are on its disk.
inline uint32_t disk_blocks_of(const Snapshot& snapshot, const PrefillView& node) {
  return node.holder < 0 ? 0 : snapshot.holders[static_cast<size_t>(node.holder)].disk_blocks;
}
/// Marks a condition in a loop over nodes as nearly never true, so that the compiler emits a jump. With a conditional
/// move, each round would wait for the round before.
constexpr bool rarely(bool condition) {
  return __builtin_expect_with_probability(condition, 0, 0.999) != 0;
}
/// Number of the prefill node's first `blocks` blocks that are on its device.
inline uint32_t device_blocks_of(const Snapshot& snapshot, uint32_t node, uint32_t blocks) {
  return snapshot.prefill[node].has_device ? std::min(blocks, snapshot.devices[node].blocks) : 0;
}
/// Seconds in which the prefill node copies to its device what the device lacks of the first `blocks` blocks.
inline double to_device_seconds(const Snapshot& snapshot, uint32_t node, uint32_t blocks) {
  if (!rarely(snapshot.prefill[node].has_device)) return 0;
  return snapshot.devices[node].block_s * (blocks - device_blocks_of(snapshot, node, blocks));
}
/// Seconds from the start of the run to its first token. The blocks that are not on the device are copied to it layer
/// by layer, each layer while the one before is computed (Mooncake 5.2).
inline double compute_seconds(double prefill_s, double to_device_s) {
  return std::max(prefill_s, to_device_s);
}
/// Fills the times of a candidate that fetches `fetch_blocks` more blocks from `holder` (-1 = none).
void predict(const Snapshot& snapshot, Candidate& candidate);
/// The decode node with the least predicted step among those with room; -1 = none. Bars are ignored.
int choose_decode(const Snapshot& snapshot);
inline double predict_tbt(const Snapshot& snapshot, const DecodeView& node) {
  return node.cost.step(node.rows + 1, static_cast<double>(node.kv_tokens + snapshot.tokens));
}
/// The whole decision: policy, decode choice, inlined prefill, admission. Pure apart from the draws from `rng`. The
/// candidates are the prefill nodes that no bar separates from the chosen decode node.
Placement place(const Snapshot& snapshot, const Policy& policy, const Options& options, Rng& rng);
/// Writes the decision into a placement whose memory is reused.
void place(const Snapshot& snapshot, const Policy& policy, const Options& options, Rng& rng, Placement& out);

}  // namespace mc::sched
