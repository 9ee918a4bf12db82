// The contract between a role's logic and the host. A role is a state machine: it receives one event and the time, and
// appends the actions that the host must perform. It owns no socket, thread or clock, so the live host (lib/host) and
// the simulator (lib/sim) drive the same code.
//
//            events                               actions
//   peers    Received, Notified, PeerLost    ->   Send, SendNotify, SetPeers
//   KV       ReadDone, LookedUp, Touched     ->   Read, CancelRead, Lookup, Touch
//   compute  LayerDone, ChunkDone, StepDone  ->   RunChunk, PrefixLayers, CancelRun, JoinBatch, RunStep, CollectSteps,
//                                                 LeaveBatch
//   device   PagesLoaded                    ->   LoadPages
//   disk     DiskFound, DiskWritten,         ->   DiskWrite, DiskLoad, DiskDrop
//            DiskLoaded, DiskEvicted,
//            DiskUpkeepFailed
//   time     Tick (at or after next_wakeup),
//            HostStalled
//   client   Submit, ClientCancel            ->   Reply (conductor only), SendTokens (decode only)
//   operator BlockOrder                      ->   OrderAnswer (workers only, node/orders.h)
//   log                                           BreakerChanged (conductor only)
//
// Promises of the host: every Read, RunChunk and RunStep is answered exactly once by ReadDone, ChunkDone or StepDone,
// also after a cancel, every LoadPages by PagesLoaded, every DiskWrite and DiskLoad by DiskWritten or DiskLoaded, and
// every Lookup by LookedUp. Until then the role must not free the pages that the action names. Messages of one peer
// instance arrive in order or not at all.
//
// A node may have a device with memory of its own (node/device_tier.h). Runs then compute on pages of the device, which
// the role numbers, gives to blocks and takes away. LoadPages brings blocks from the host to the device, layer by
// layer: a run may follow at once, and each of its layers waits for that layer alone (Mooncake, "Layer-wise Prefill").
// A run stores what it writes in the host's pages too, layer by layer: LayerDone and StepDone report bytes of the host.
// So the device never has the only copy, and a block leaves the device without an action.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/extent.h"
#include "base/ids.h"
#include "base/one_of.h"
#include "base/result.h"
#include "node/orders.h"
#include "node/reason.h"
#include "sched/breaker.h"
#include "wire/block_index.h"
#include "wire/messages.h"
#include "wire/notify.h"

namespace mc::node {

/// Names the key set of a process to another one without revealing it (host/key_file.h).
struct KeyMark {
  std::string file;   // path of the key set, for messages
  wire::Bytes check;  // depends on the key set and on the instance of the node that registers; empty: no keys
};

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

/// The control or data connection to this instance is closed for good.
struct PeerLost {
  NodeId node;
  InstanceId instance;
  std::string why;
};

/// Whether a data connection to this instance can be: no transport works with it, or it refuses the handshake. Workers
/// only.
struct DataLink {
  NodeId node;
  InstanceId instance;
  std::string refusal;  // why there is none; "" = the connection is up after all
};

/// The end of a Read. ok: all slices arrived and match their checksums.
struct ReadDone {
  uint64_t read = 0;
  Code code = Code::ok;
  std::string what;
  bool refused = false;  // by a stage of the reader's pipeline (node/block_reads.h), which has not begun it
};

/// The end of a Lookup. ok: `held` says for each of its blocks where the node had it. Other codes: the node has not
/// answered, and may have any of them.
struct LookedUp {
  uint64_t lookup = 0;
  Code code = Code::ok;
  std::vector<wire::HeldIn> held;
};

/// A node used blocks that this node may have, without reading them here.
struct Touched {
  NodeId from;
  InstanceId instance;
  std::vector<BlockHash> hashes;
};

/// The extents of `layer` of a chunk's blocks are sealed. crcs[i] belongs to block first_block + i.
struct LayerDone {
  uint64_t run = 0;
  uint32_t layer = 0;
  uint32_t first_block = 0;
  std::vector<uint32_t> crcs;
};

struct SampledToken {
  uint32_t token = 0;
  wire::TokenLogprobs logprobs;
  wire::Bytes embedding;  // see wire::FirstToken
};

struct ChunkDone {
  uint64_t run = 0;
  Code code = Code::ok;
  std::string what;
  SampledToken sampled;                              // valid when the chunk asked for a sample
  std::vector<wire::PromptLogprob> prompt_logprobs;  // one for each target of the run
  uint32_t activations_crc = 0;                      // CRC32C of slots.out, when end_layer was not the model's last
  std::vector<uint32_t> rotten;  // blocks that do not match RunChunk::prefix_crcs; code is corrupt then
  Duration elapsed{};
};

/// One row of a decode step. JoinBatch gave the compute all other data of the sequence.
struct RunRow {
  static constexpr uint32_t kNoPage = 0xffffffff;
  static constexpr uint32_t kFed = 0xffffffff;
  uint64_t sequence = 0;
  uint32_t token = 0;              // kFed: the token that the sequence's row before this one draws; it may be under way
  uint32_t position = 0;           // position of the token: one more than in the sequence's step before
  uint32_t page = kNoPage;         // page of `position`, when the compute does not have it yet
  uint32_t device_page = kNoPage;  // likewise, where the device is a tier of the node
  bool joined = false;             // the sequence's first step on this node
};

struct StepRow {
  SampledToken sampled;
  std::vector<uint32_t> sealed_crcs;  // one for each layer when this row filled its last page, else empty
  std::vector<uint32_t> rotten;       // as in ChunkDone: the row was not computed
  std::optional<Error> refusal;       // why no token is drawn for this row
};

/// The rows of a step and their results in equal order. One buffer goes from the role to the compute and back, so that
/// a step allocates nothing. It has two owners, because either of them may end first.
struct StepRows {
  std::vector<RunRow> in;    // written by the role, before RunStep
  std::vector<StepRow> out;  // written by the compute, before StepDone
};

struct StepDone {
  uint64_t run = 0;
  Code code = Code::ok;
  std::string what;
  std::shared_ptr<StepRows> rows;  // the rows of the RunStep; `out` is valid when code is ok
  Duration elapsed{};
};

/// The end of a LoadPages. ok: the blocks are on the device, and their bytes match their checksums. After any other
/// code the device's pages have no meaning. A run that uses one of these pages ends after this event, unless it is
/// cancelled.
struct PagesLoaded {
  uint64_t load = 0;
  Code code = Code::ok;
  std::string what;
  std::vector<uint32_t> rotten;  // indexes of pages that do not match their checksums; code is corrupt then
  Duration busy{};               // time of the copies alone, without that of runs between them
};

/// A KV block on this node's disk.
struct DiskBlock {
  BlockHash hash, parent;
  NamespaceId name_space;
  uint32_t first_position = 0;
  ExtentLayout layout;
  std::vector<uint32_t> layer_crcs;  // CRC32C of each layer extent
  std::vector<uint32_t> tokens;      // the block's token ids; empty where they are not known
};

/// Blocks that an earlier process left on the disk, some at a time. They are durable.
struct DiskFound {
  std::vector<DiskBlock> blocks;
  bool last = false;  // no more will be found
};

/// The end of a DiskWrite. ok: the block survives a power cut. corrupt: the page does not match its checksums, and
/// nothing was written.
struct DiskWritten {
  uint64_t op = 0;
  Code code = Code::ok;
  std::string what;
};

/// The end of a DiskLoad. ok: the page has the bytes that were written, and their checksums. not_found: the disk has no
/// such block. corrupt: its bytes fail a checksum, and the disk has forgotten it.
struct DiskLoaded {
  uint64_t op = 0;
  Code code = Code::ok;
  std::string what;
  std::vector<uint32_t> layer_crcs;
  std::vector<uint32_t> tokens;  // empty where the disk does not have them
};

/// The disk gave up these blocks to make room.
struct DiskEvicted {
  std::vector<BlockHash> hashes;
};

/// Background work of the disk failed. drop: forgotten blocks may come back at the next start. maintain: no space was
/// freed in advance.
struct DiskUpkeepFailed {
  enum class Work : uint8_t { drop, maintain };
  Work work = Work::drop;
  std::string what;
};

struct Tick {};

/// The host read no messages for `time`, up to now: the process was stopped, or one round took long. Messages that
/// arrived meanwhile are read after this event, so the time counts as no silence of a peer.
struct HostStalled {
  Duration time{};
};

/// An error of the process outside the role, for the operators. It becomes the node's last error. Workers only.
struct HostError {
  std::string what;
};

/// A client's request, tokenised and checked against the model's limits. Conductor only.
struct Submit {
  RequestId req;
  std::vector<uint32_t> ids;
  std::string model;
  std::string salt;
  std::string attention;  // the request's mc.attention; "" = the default
  wire::Sampling sampling;
  wire::Stopping stopping;
  Duration deadline{};
  double ttft_slo_s = 0;  // 0 = the conductor's SLO
  double tbt_slo_s = 0;
  std::string pin_prefill, pin_decode;
  bool no_cache = false;
  int32_t prompt_logprobs = -1;  // see wire::RequestSpec
  /// Cached KV has no logits, so a request for log-probabilities of its prompt computes the whole prompt.
  bool may_reuse() const { return !no_cache && prompt_logprobs < 0; }
  std::string tenant;   // tenant whose quota and share the request uses; "" = the default one
  int priority = 0;     // order among the tenant's requests; lower goes first
  std::string session;  // requests of one session prefer the prefill node of the session
};

/// The client has disconnected, or its text is complete (a stop string matched).
struct ClientCancel {
  RequestId req;
  CancelReason reason = CancelReason::client_gone;
};

using EventVariant = std::variant<Received, Notified, PeerLost, ReadDone, LayerDone, ChunkDone, StepDone, Tick,
                                  HostStalled, Submit, ClientCancel, HostError, DiskFound, DiskWritten, DiskLoaded,
                                  DiskEvicted, DiskUpkeepFailed, BlockOrder, LookedUp, Touched, DataLink, PagesLoaded>;
using Event = OneOf<EventVariant>;

// ---- actions ---------------------------------------------------------------------------------

struct Send {
  NodeId to;
  InstanceId instance;  // zero = the current instance of that name
  wire::Message message;
};

struct SendNotify {
  NodeId to;
  InstanceId instance;
  wire::ExtentsReady ready;
};

/// The membership has changed. Send, SendNotify and Read may use these names, instances and addresses.
struct SetPeers {
  std::vector<wire::Peer> peers;
};

/// Asks a node which of these blocks it has. It keeps none of them. Only workers with WorkerOptions::lookups ask.
struct Lookup {
  uint64_t lookup = 0;
  NodeId node;
  InstanceId instance;
  std::vector<BlockHash> hashes;  // 1 to wire::kLookupBlocksMax
};

/// Tells a node that these blocks were used, so that it evicts others first. It may get lost.
struct Touch {
  NodeId node;
  InstanceId instance;
  std::vector<BlockHash> hashes;  // as in Lookup
};

struct ReadSlice {
  uint32_t page = 0;
  uint64_t page_offset = 0;    // offset in the local page
  uint64_t remote_offset = 0;  // offset in the peer's pool buffer
  uint32_t bytes = 0;
  uint32_t crc = 0;  // CRC32C that the bytes must have
};

struct Read {
  uint64_t read = 0;
  NodeId peer;
  InstanceId instance;
  uint32_t pool = 0;  // number of this node's pool that holds the local pages (mc-cache has several)
  std::vector<ReadSlice> slices;
  Duration budget{};
  /// Goes ahead of this node's other reads from that peer (xfer::TransferClass), because a request waits for exactly
  /// these bytes, or because they are too few to delay others.
  bool urgent = false;
};
/// Largest read that is urgent whenever a request waits for it. It delays other reads by less than one slice of the
/// transfer engine.
inline constexpr uint64_t kUrgentBytes = uint64_t{512} << 10;

struct CancelRead {
  uint64_t read = 0;
};

/// Writes the block in a page to this node's disk, durably. The host checks the page against the checksums first.
struct DiskWrite {
  uint64_t op = 0;
  uint32_t pool = 0;  // number of the pool that holds the page
  uint32_t page = 0;
  DiskBlock block;
};

/// Reads a block from this node's disk into a page of its layout.
struct DiskLoad {
  uint64_t op = 0;
  uint32_t pool = 0;
  uint32_t page = 0;
  BlockHash hash;
  NamespaceId name_space;
  ExtentLayout layout;
};

/// The disk forgets these blocks. Not answered.
struct DiskDrop {
  std::vector<BlockHash> hashes;
};

/// Copies blocks from pages of the host to pages of the device. Runs that use these pages may follow at once.
struct LoadPages {
  uint64_t load = 0;
  std::vector<uint32_t> pages;         // of the host
  std::vector<uint32_t> device_pages;  // one for each
  std::vector<uint32_t> crcs;          // CRC32C that the extents must have, [page][layer]
};

/// Computes tokens [start, start + tokens.size()) of one sequence whose KV is in `pages`.
struct RunChunk {
  uint64_t run = 0;
  uint32_t start = 0;
  uint32_t reused = 0;                 // tokens at the front of the sequence whose KV was reused
  std::vector<uint32_t> tokens;        // empty: only prefix_crcs are checked
  std::vector<uint32_t> pages;         // pages of the sequence up to the end of the chunk
  std::vector<uint32_t> device_pages;  // one for each; empty where the device is not a tier of the node
  std::string attention;
  bool sample = false;  // this is the last chunk: draw the next token
  wire::Sampling sampling;
  std::vector<uint32_t> history;  // prompt, then answer so far; only when Sampling::needs_history()
  uint32_t prompt_tokens = 0;     // index of the answer's first token in the sequence
  std::vector<uint32_t> banned;   // ids that may not be drawn (stop ids below min_tokens)
  int32_t prompt_logprobs = -1;   // >= 0: return log-probabilities of `targets`, with so many alternatives
  // The prompt tokens after `start`: all of `tokens` but the first, then the first token of the next chunk.
  std::vector<uint32_t> targets;
  // A pipeline stage computes layers [first_layer, end_layer), 0 = to the model's last. It reads and writes activations
  // in slots after the pages of the KV buffer.
  uint32_t first_layer = 0, end_layer = 0;
  struct Slots {
    uint32_t in = 0, out = 0;
  } slots;
  /// CRC32C that the first pages must have before they are used, [block][layer] of this node's layers. Present in the
  /// first chunk of a request that reuses cached blocks. A mismatch is reported in ChunkDone, and nothing is computed.
  std::vector<uint32_t> prefix_crcs;
  /// Another RunChunk or a RunStep comes next, but for sequences that join or leave. The compute may take both in one
  /// pass. Their ends come in any order. All layers of the blocks before `start` are here.
  bool is_followed = false;
  /// Layers of which the blocks before `start` are here. Before the compute reads a later layer of these blocks, it
  /// waits for the PrefixLayers that counts this layer.
  uint32_t layers_here = UINT32_MAX;
};

/// The first `layers` layers of the blocks before a run's start are here. Has no effect when the run has ended.
struct PrefixLayers {
  uint64_t run = 0;
  uint32_t layers = 0;
};

struct CancelRun {
  uint64_t run = 0;
};

/// A sequence enters the batch. JoinBatch carries what stays constant from step to step. It precedes the first RunStep
/// with a row of the sequence.
struct JoinBatch {
  uint64_t sequence = 0;
  uint32_t position = 0;               // position of the first step; `pages` hold the KV of the tokens before it
  uint32_t tokens_max = 0;             // upper bound on the sequence's tokens
  std::vector<uint32_t> pages;         // pages up to the one of `position`; they never move
  std::vector<uint32_t> device_pages;  // as in RunChunk; they are loaded
  std::string attention;
  wire::Sampling sampling;
  uint32_t prompt_tokens = 0;     // index of the answer's first token in the sequence
  std::vector<uint32_t> history;  // the tokens before `position`; only when Sampling::needs_history()
  std::vector<uint32_t> banned;   // ids that may not be drawn while the answer is shorter than `min_tokens`
  uint32_t min_tokens = 0;
  std::vector<uint32_t> prefix_crcs;  // see RunChunk; the first step's row reports a mismatch
};

/// One step of the batch. Each sequence has joined before and has at most one row. Steps end in the order of their
/// RunStep. Once a row has no token in StepDone, what later rows of its sequence give has no meaning.
struct RunStep {
  uint64_t run = 0;
  std::shared_ptr<StepRows> rows;
  bool is_followed = false;  // RunStep or CollectSteps comes next, and the compute may report the step when it has that
};

/// No further step comes before those under way are reported.
struct CollectSteps {};

/// The sequence has no further row, and the compute drops it. No step with a row of it is under way.
struct LeaveBatch {
  uint64_t sequence = 0;
};

/// A message to the conductor with the tokens of a step. The role reuses its buffer when the host has released it
/// before the next step, so that a step allocates nothing.
struct SendTokens {
  NodeId to;
  InstanceId instance;
  std::shared_ptr<wire::Tokens> tokens;
};

/// Blocks of a prompt that a prefill or decode node reads from another node.
struct FetchSource {
  NodeId node;
  uint32_t first_block = 0, blocks = 0;
};

/// A prefill node that a placement compared.
struct Considered {
  NodeId node, fetch_from;
  uint32_t local_blocks = 0, fetch_blocks = 0;
  double queue_s = 0, fetch_s = 0, prefill_s = 0, ttft_s = 0;
  uint32_t disk_blocks = 0;  // part of local_blocks that was on the node's disk
  double load_s = 0;         // seconds of reading them
  bool measured = true;      // false: the node had computed no prompt yet, and its times are assumptions
  std::vector<FetchSource> sources;
  bool fetch_measured = true;  // false: the cost of reads from `fetch_from` into the node was not known
  bool inlined = false;        // a decode node that would compute the prompt itself
  uint32_t device_blocks = 0;  // part of local_blocks that was on the node's device
  double to_device_s = 0;      // seconds of copying the other cached blocks to it, beside the computing
};

struct FailedAttempt {
  NodeId prefill, decode;
  RequestStage stage = RequestStage::unknown;
  Reason reason = Reason::internal;
};

/// The nodes that served a request and its costs. Complete when the request ends.
struct RequestSummary {
  NodeId prefill, decode;
  uint32_t attempts = 0;
  double predicted_ttft_s = 0, predicted_tbt_s = 0;
  wire::PrefillReport report;          // report of the attempt that gave the first token
  wire::KvReport kv;                   // of the last attempt; without a request id: the decode node sent none
  std::vector<Considered> considered;  // best candidates of the last placement, best first
  std::vector<FailedAttempt> failed;   // in order; at most the number of attempts
  // Pairs and nodes that the last placement avoided because their circuit breakers were open.
  uint32_t set_aside = 0;
  double held_s = 0;  // seconds from arrival to the first placement
  Held held_for;      // none = the request was not held
};

/// An output for the client of a request. Conductor only. Tokens arrive in order and without a gap. The last reply of a
/// request is finished, failed or rejected, and a request has exactly one last reply.
struct Reply {
  enum class Kind : uint8_t { token, finished, failed, rejected };
  RequestId req;
  Kind kind = Kind::token;
  uint32_t token = 0;
  uint32_t index = 0;
  wire::TokenLogprobs logprobs;
  // log-probabilities of the prompt's tokens 1, 2, ...; sent with the token of index 0
  std::vector<wire::PromptLogprob> prompt_logprobs;
  wire::Bytes embedding;         // see wire::FirstToken; sent with the token of index 0
  Finish finish = Finish::none;  // set in a reply of kind finished
  Reason reason = Reason::none;  // set in replies of kind failed and rejected
  RequestStage stage = RequestStage::none;
  std::string message;
  std::string param;                        // the field of the request that is wrong; "" = none
  sched::Bound bound = sched::Bound::none;  // set for predicted_slo_miss, with its numbers
  double predicted_ms = 0, allowed_ms = 0;
  Duration retry_after{};
  RequestSummary summary;
};

/// A circuit breaker opens, becomes half open or closes; for the log. Conductor only.
struct BreakerChanged {
  NodeId prefill, decode;  // one of them is "" when the other node fails with every partner
  sched::BreakerState state = sched::BreakerState::closed;
  uint32_t failures = 0;  // failures in a row
  Duration backoff{};     // back-off of an open breaker
};

/// A request begins another attempt after `failed`; for the log. Conductor only.
struct RequestRetried {
  RequestId req;
  FailedAttempt failed;
  std::string message;
};

using ActionVariant =
    std::variant<Send, SendNotify, SendTokens, SetPeers, Read, CancelRead, RunChunk, PrefixLayers, CancelRun, JoinBatch,
                 RunStep, CollectSteps, LeaveBatch, Reply, BreakerChanged, RequestRetried, DiskWrite, DiskLoad,
                 DiskDrop, OrderAnswer, Lookup, Touch, LoadPages>;
using Action = OneOf<ActionVariant>;
using Actions = std::vector<Action>;

// ---- the role --------------------------------------------------------------------------------

class Machine {
 public:
  virtual ~Machine() = default;
  /// Called by one thread only. `now` never decreases.
  virtual void handle(const Event& event, TimePoint now, Actions& out) = 0;
  /// The host delivers a Tick at or soon after this time; kNever = no Tick is needed.
  virtual TimePoint next_wakeup() const = 0;
  /// Asserts the invariants of the role. It is cheap enough for every simulator step.
  virtual void check() const = 0;
  /// Nothing is leased, queued, running or pinned. check() may demand this after the cluster has come to rest.
  virtual bool idle() const = 0;
};

}  // namespace mc::node

extern template class mc::OneOf<mc::node::EventVariant>;
extern template class mc::OneOf<mc::node::ActionVariant>;
