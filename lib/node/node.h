// The contract between a role's logic and the world. A role is a state machine: it is given one event
// and the time, and appends the actions it wants done. It owns no socket, thread or clock, so the
// live host (lib/host) and the simulator (lib/sim) drive the very same code.
//
//            events                               actions
//   peers    Received, Notified, PeerLost    ->   Send, SendNotify, SetPeers
//   KV       ReadDone                        ->   Read, CancelRead
//   compute  LayerDone, ChunkDone, StepDone  ->   RunChunk, CancelRun, JoinBatch, RunStep, LeaveBatch
//   time     Tick (at or after next_wakeup)
//   client   Submit, ClientCancel            ->   Reply (conductor only), SendTokens (decode only)
//   log                                           BreakerChanged (conductor only)
//
// Promises of the host: every Read, RunChunk and RunStep is answered exactly once by ReadDone,
// ChunkDone or StepDone, also after a cancel, and until then the pages it names stay untouched by the
// role (it must not free them). Messages of one peer instance arrive in order or not at all.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "base/one_of.h"
#include "base/result.h"
#include "node/reason.h"
#include "sched/breaker.h"
#include "wire/messages.h"
#include "wire/notify.h"

namespace mc::node {

// ---- events ----------------------------------------------------------------------------------

struct Received {
  NodeId from;
  InstanceId instance;
  wire::Message message;
};

struct Notified {
  NodeId from;
  InstanceId instance;
  wire::ExtentsReady ready;
};

/// The control or data connection to this instance is gone for good.
struct PeerLost {
  NodeId node;
  InstanceId instance;
  std::string why;
};

/// All slices of a Read arrived and match their checksums (ok), or it ended for another reason.
struct ReadDone {
  uint64_t read = 0;
  Code code = Code::ok;
  std::string what;
};

/// The extents of `layer` of a chunk's blocks are sealed; crcs[i] belongs to block first_block + i.
struct LayerDone {
  uint64_t run = 0;
  uint32_t layer = 0;
  uint32_t first_block = 0;
  std::vector<uint32_t> crcs;
};

struct SampledToken {
  uint32_t token = 0;
  wire::TokenLogprobs logprobs;
};

struct ChunkDone {
  uint64_t run = 0;
  Code code = Code::ok;
  std::string what;
  SampledToken sampled;                              // meaningful when the chunk asked for it
  std::vector<wire::PromptLogprob> prompt_logprobs;  // one for each of the run's targets
  uint32_t activations_crc = 0;                      // of slot_out, when end_layer was not the model's last
  std::vector<uint32_t> rotten;  // blocks of the prefix that do not match RunChunk::prefix_crcs; code is corrupt then
  Duration elapsed{};
};

/// One row of a decode step. All else that the step needs of the sequence came with its JoinBatch.
struct RunRow {
  static constexpr uint32_t kNoPage = 0xffffffff;
  uint64_t sequence = 0;
  uint32_t token = 0;       // input token
  uint32_t position = 0;    // its position: one more than in the sequence's step before
  uint32_t page = kNoPage;  // page of `position` when the compute does not have it yet
  bool joined = false;      // the sequence's first step on this node
};

struct StepRow {
  SampledToken sampled;
  std::vector<uint32_t> sealed_crcs;  // one per layer when this row filled its last page, else empty
  std::vector<uint32_t> rotten;       // as in ChunkDone: the row was not computed
};

/// The rows of a step and their results, in the same order. One buffer goes from the machine to the compute and back,
/// so that a step allocates nothing. It has two owners because either of them may end first.
struct StepRows {
  std::vector<RunRow> in;    // written by the machine, before RunStep
  std::vector<StepRow> out;  // written by the compute, before StepDone
};

struct StepDone {
  uint64_t run = 0;
  Code code = Code::ok;
  std::string what;
  std::shared_ptr<StepRows> rows;  // those of the RunStep; `out` has no meaning when code is not ok
  Duration elapsed{};
};

struct Tick {};

/// An error of the process outside the machine, for the operators: it becomes the node's last error. Workers only.
struct HostError {
  std::string what;
};

/// A client's request, already tokenised and checked against the model's limits. Conductor only.
struct Submit {
  RequestId req;
  std::vector<uint32_t> ids;
  std::string model;
  std::string salt;
  std::string attention;  // "" or the request's mc.attention override
  wire::Sampling sampling;
  wire::Stopping stopping;
  Duration deadline{};
  double ttft_slo_s = 0;  // 0 = the conductor's
  double tbt_slo_s = 0;
  std::string pin_prefill, pin_decode;
  bool no_cache = false;
  int32_t prompt_logprobs = -1;  // as in wire::RequestSpec
  /// Cached KV has no logits: who asks for those of the prompt has it computed.
  bool may_reuse() const { return !no_cache && prompt_logprobs < 0; }
  std::string tenant;   // whose quota and share it uses; "" = the default one
  int priority = 0;     // among its tenant's requests; lower goes first
  std::string session;  // requests of one session like the same prefill node
};

/// The client is gone, or its text is complete (a stop string matched).
struct ClientCancel {
  RequestId req;
  CancelReason reason = CancelReason::client_gone;
};

using EventVariant = std::variant<Received, Notified, PeerLost, ReadDone, LayerDone, ChunkDone, StepDone, Tick, Submit,
                                  ClientCancel, HostError>;
using Event = OneOf<EventVariant>;

// ---- actions ---------------------------------------------------------------------------------

struct Send {
  NodeId to;
  InstanceId instance;  // zero = whoever bears the name now
  wire::Message message;
};

struct SendNotify {
  NodeId to;
  InstanceId instance;
  wire::ExtentsReady ready;
};

/// The membership changed: names, instances and addresses that Send, SendNotify and Read may use.
struct SetPeers {
  std::vector<wire::Peer> peers;
};

struct ReadSlice {
  uint32_t page = 0;           // local page
  uint64_t page_offset = 0;    // where in the local page
  uint64_t remote_offset = 0;  // where in the peer's pool buffer
  uint32_t bytes = 0;
  uint32_t crc = 0;  // CRC32C the bytes must have
};

struct Read {
  uint64_t read = 0;
  NodeId peer;
  InstanceId instance;
  uint32_t pool = 0;  // which of this node's pools the local pages belong to (mc-cache has several)
  std::vector<ReadSlice> slices;
  Duration budget{};
  /// Ahead of this node's other reads of that peer (xfer::TransferClass): a request waits for exactly these
  /// bytes, or they are so few that they hold nobody up.
  bool urgent = false;
};
/// A read that a request waits for is urgent when it is at most so long: it holds others up for less than one
/// slice of the transfer engine does.
inline constexpr uint64_t kUrgentBytes = uint64_t{512} << 10;

struct CancelRead {
  uint64_t read = 0;
};

/// Compute tokens [start, start + tokens.size()) of one sequence whose KV lives in `pages`.
struct RunChunk {
  uint64_t run = 0;
  uint32_t start = 0;            // a multiple of the block size
  uint32_t reused = 0;           // tokens at the front of the sequence that were not computed for this request
  std::vector<uint32_t> tokens;  // empty: prefix_crcs are checked, and nothing is computed
  std::vector<uint32_t> pages;   // of the whole sequence up to the end of the chunk
  std::string attention;
  bool sample = false;  // the last chunk: draw the token that follows
  wire::Sampling sampling;
  std::vector<uint32_t> history;  // prompt, then answer so far; only when the sampling has penalties
  uint32_t prompt_tokens = 0;     // where the answer starts in the sequence
  std::vector<uint32_t> banned;   // ids that may not be drawn (stop ids below min_tokens)
  int32_t prompt_logprobs = -1;   // >= 0: tell how likely each of `targets` was, with so many alternatives
  std::vector<uint32_t> targets;  // the prompt tokens after `start`: all of `tokens` but the first, then the next
                                  // chunk's first
  // A pipeline stage: layers [first_layer, end_layer), 0 = to the model's last. Activations come from and go to
  // slots behind the pages of the KV buffer.
  uint32_t first_layer = 0, end_layer = 0;
  uint32_t slot_in = 0, slot_out = 0;
  /// CRC32C that the bytes of the first pages must have before they are used, [block][layer] of this node's layers:
  /// blocks that were cached here, in the first chunk of a request. What does not match is told, and nothing computed.
  std::vector<uint32_t> prefix_crcs;
};

struct CancelRun {
  uint64_t run = 0;
};

/// A sequence enters the batch: what its steps need and what stays the same from step to step. It comes before the
/// first RunStep that has a row of the sequence.
struct JoinBatch {
  uint64_t sequence = 0;        // number on this node, never used again
  uint32_t position = 0;        // of its first step: so many tokens have their KV in `pages`
  uint32_t tokens_max = 0;      // the sequence never grows beyond so many tokens
  std::vector<uint32_t> pages;  // up to the page of `position`; they do not change places
  std::string attention;
  wire::Sampling sampling;
  uint32_t prompt_tokens = 0;     // where the answer starts in the sequence
  std::vector<uint32_t> history;  // the tokens before `position`; only when the sampling has penalties
  std::vector<uint32_t> banned;   // ids that may not be drawn while the answer is shorter than `min_tokens`
  uint32_t min_tokens = 0;
  std::vector<uint32_t> prefix_crcs;  // as in RunChunk; what does not match is told by the first step's row
};

/// One step of the batch. Each sequence has joined before, and has at most one row.
struct RunStep {
  uint64_t run = 0;
  std::shared_ptr<StepRows> rows;
};

/// The sequence has no further row, and the compute forgets it. Never while a step with a row of it is under way.
struct LeaveBatch {
  uint64_t sequence = 0;
};

/// A message with the tokens of a step, for the conductor. The machine fills the same buffer for the next step when
/// the host has let go of it by then, so that a step allocates nothing.
struct SendTokens {
  NodeId to;
  InstanceId instance;
  std::shared_ptr<wire::Tokens> tokens;
};

/// A prefill node that the placement of a request weighed.
struct Considered {
  NodeId node, fetch_from;
  uint32_t local_blocks = 0, fetch_blocks = 0;
  double queue_s = 0, fetch_s = 0, prefill_s = 0, ttft_s = 0;
};

/// An attempt of a request that failed.
struct FailedAttempt {
  NodeId prefill, decode;
  RequestStage stage = RequestStage::unknown;
  Reason reason = Reason::internal;
};

/// Where a request went and what it cost; complete when it ends.
struct RequestSummary {
  NodeId prefill, decode;
  uint32_t attempts = 0;
  double predicted_ttft_s = 0, predicted_tbt_s = 0;
  wire::PrefillReport report;          // of the attempt that gave the first token
  std::vector<Considered> considered;  // by the last placement, best first; the first few
  std::vector<FailedAttempt> failed;   // in order; at most as many as a request has attempts
  uint32_t set_aside = 0;              // pairs and nodes that the last placement was kept from because they fail
  double held_s = 0;                   // waited at the conductor before it was placed first
  Held held_for;                       // none = it did not wait
};

/// Something for the client of a request. Conductor only. Tokens come in order, without a gap; the
/// last reply of a request is finished, failed or rejected, and there is exactly one of them.
struct Reply {
  enum class Kind : uint8_t { token, finished, failed, rejected };
  RequestId req;
  Kind kind = Kind::token;
  uint32_t token = 0;
  uint32_t index = 0;
  wire::TokenLogprobs logprobs;
  std::vector<wire::PromptLogprob> prompt_logprobs;  // with the token of index 0; of the prompt's tokens 1, 2, ...
  Finish finish = Finish::none;                      // of finished
  Reason reason = Reason::none;                      // of failed and rejected
  RequestStage stage = RequestStage::none;
  std::string message;
  sched::Bound bound = sched::Bound::none;  // of predicted_slo_miss, with its numbers
  double predicted_ms = 0, allowed_ms = 0;
  Duration retry_after{};
  RequestSummary summary;
};

/// A pair of nodes, or a node, is set aside because it fails requests, is tried again, or works again; for the log.
/// Conductor only.
struct BreakerChanged {
  NodeId prefill, decode;  // one of them is "" when the other fails with any partner
  sched::BreakerState state = sched::BreakerState::closed;
  uint32_t failures = 0;  // in a row
  Duration backoff{};     // of open
};

/// A request begins another attempt after `failed`; for the log. Conductor only.
struct RequestRetried {
  RequestId req;
  FailedAttempt failed;
  std::string message;
};

using ActionVariant = std::variant<Send, SendNotify, SendTokens, SetPeers, Read, CancelRead, RunChunk, CancelRun,
                                   JoinBatch, RunStep, LeaveBatch, Reply, BreakerChanged, RequestRetried>;
using Action = OneOf<ActionVariant>;
using Actions = std::vector<Action>;

// ---- the machine -----------------------------------------------------------------------------

class Machine {
 public:
  virtual ~Machine() = default;
  /// Called by the owner thread only; `now` never goes back.
  virtual void handle(const Event& event, TimePoint now, Actions& out) = 0;
  /// The host delivers a Tick at or soon after this time; kNever = none is needed.
  virtual TimePoint next_wakeup() const = 0;
  /// Asserts the machine's conservation laws; cheap enough for every simulator step.
  virtual void check() const = 0;
  /// Nothing leased, queued, running or pinned: what `check` may demand after quiesce.
  virtual bool idle() const = 0;
};

}  // namespace mc::node

extern template class mc::OneOf<mc::node::EventVariant>;
extern template class mc::OneOf<mc::node::ActionVariant>;
