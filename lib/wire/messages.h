// Every control message, as a struct with one visitor that names its fields. The visitor drives encoding, decoding,
// golden bytes, fuzzing and `dump`. Bodies travel as msgpack maps inside the envelope of wire/envelope.h (version,
// message id, sender, instance, epoch, remaining deadline).
//
//   messages      registration  worker -> conductor   Hello . Welcome | Refused, Heartbeat . HeartbeatAck
//                index         worker -> conductor   BlockEvents, BlockSnapshot (asked by IndexSync)
//                a request     conductor -> prefill  PrefillStart        prefill -> conductor  FirstToken
//                              prefill -> conductor  PromptLogprobs
//                              prefill -> decode     KvOffer . KvAccept | KvRefuse, KvComplete . KvDone
//                              decode -> conductor   KvReport, Tokens, Preempted
//                              anyone -> conductor   Failed
//                              anyone -> worker      Cancel
//                a pipeline    stage -> next stage   StageRun . StageTaken     stage -> its leader  StageDone
//                              leader -> stage       StageAnnounce         stage -> its leader  Failed, StageRotten
//                              leader -> stage       StageRead . StageReadDone, StageReadCancel
//                blocks        worker -> worker      LeaseRequest . LeaseGrant, LeaseRenew . LeaseRenewed
//                              worker -> worker      LeaseRelease, DemoteOffer . DemoteDone
//                              conductor -> prefill  CopyBlocks . CopyDone
//
// Rules. Times on the wire are remaining milliseconds, never clock readings. `attempt` numbers the attempts of one
// request, and a message of an older attempt is ignored. An unknown field is skipped, and a missing one is an error
// that names message and field. So fields may be added but never reused. A field that was added later is named by
// v.later(): a message without it is valid, and the field keeps its default.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/ids.h"
#include "base/one_of.h"
#include "wire/lease_messages.h"
#include "wire/miss.h"
#include "wire/sampling.h"
#include "wire/stage_messages.h"
#include "wire/tier.h"

namespace mc::wire {

using Bytes = std::vector<uint8_t>;
using NameValue = std::pair<std::string, std::string>;

/// stage: a later member of a pipeline of prefill processes. Its name extends the name of the pipeline's leader.
enum class Role : uint8_t { conductor = 0, prefill = 1, decode = 2, cache = 3, stage = 4 };

/// The linear cost model of one worker, in seconds, after the estimators of Mooncake (arXiv:2407.00079); see
/// sched/cost.h.
struct CostModel {
  double prefill_s = 0;              // per chunkless prefill, constant part
  double prefill_s_per_token = 0;    // per computed token
  double prefill_s_per_token2 = 0;   // times (n^2 - p^2)
  double decode_s = 0;               // per step, constant part
  double decode_s_per_row = 0;       // per request in the batch
  double decode_s_per_kv_token = 0;  // per token of context over the batch
  double read_bytes_per_s = 0;       // KV reads into this node

  bool operator==(const CostModel&) const = default;
  template <class V>
  void fields(V& v) {
    v("prefill_s", prefill_s), v("prefill_s_per_token", prefill_s_per_token);
    v("prefill_s_per_token2", prefill_s_per_token2), v("decode_s", decode_s), v("decode_s_per_row", decode_s_per_row);
    v("decode_s_per_kv_token", decode_s_per_kv_token), v("read_bytes_per_s", read_bytes_per_s);
  }
};

// ---- registration ----------------------------------------------------------------------------

struct Hello {
  static constexpr std::string_view kType = "hello";
  Role role = Role::prefill;
  std::string name;         // wanted name; "": the conductor chooses the role's letter and a number
  std::string control_uri;  // address of this node's control channel for peers
  Bytes data;               // xfer::Engine::describe(): transports, addresses, buffers
  std::string http;         // "127.0.0.1:8100"
  std::string model;        // served name, "" for cache nodes
  // kv::Namespace::text() without salt, with the plan of `auto` on this node; "" for cache nodes
  std::string kv_namespace;
  std::string decode_attention;  // the plan of `auto` for decode on this node
  uint64_t page_bytes = 0;
  uint64_t page_count = 0;
  uint32_t context_tokens = 0;  // longest prompt + answer this node can hold
  // Number of stages of this node's pipeline. `name` is its leader, and name.1, name.2, ... are its other members.
  uint32_t stages = 1;
  CostModel cost;
  std::vector<NameValue> labels;
  std::string version;
  // The key set of this node's data plane, which must be that of the conductor. The check is a value that only the
  // holders of the set can compute (host/key_file.h); empty: the node has no keys. The file is for messages.
  std::string key_file;
  Bytes key_check;
  std::string device;  // the device that computes: cpu, cuda:0, emu; "" for cache nodes
  // Memory and disk for blocks of a cache node, by which other nodes share their blocks out; 0: no cache node, or one
  // of an older version.
  uint64_t cache_bytes = 0;
  // Uncached tokens of a prompt that a decode node computes itself at most; 0: it computes no prompts.
  uint32_t inline_tokens = 0;
  // How long ago a conductor welcomed this instance first: a conductor that has restarted does not take the node for a
  // new one. 0: never.
  uint64_t member_ms = 0;
  bool keeps_values = true;  // of a cache node: it has a store of values; older ones do not say

  bool operator==(const Hello&) const = default;
  template <class V>
  void fields(V& v) {
    v("role", role), v("name", name), v("control_uri", control_uri), v("data", data), v("http", http);
    v("model", model), v("kv_namespace", kv_namespace), v("decode_attention", decode_attention);
    v("page_bytes", page_bytes), v("page_count", page_count);
    v("context_tokens", context_tokens), v("stages", stages), v("cost", cost);
    v("labels", labels), v("version", version);
    v.later("key_file", key_file), v.later("key_check", key_check), v.later("device", device);
    v.later("cache_bytes", cache_bytes), v.later("inline_tokens", inline_tokens);
    v.later("member_ms", member_ms), v.later("keeps_values", keeps_values);
  }
};

struct Welcome {
  static constexpr std::string_view kType = "welcome";
  std::string name;  // the node's name in this cluster
  uint32_t heartbeat_ms = 200;
  uint32_t dead_after_ms = 1000;
  bool has_tenants = false;  // the node's /metrics needs a key, so that a tenant cannot read the counts of others

  bool operator==(const Welcome&) const = default;
  template <class V>
  void fields(V& v) {
    v("name", name), v("heartbeat_ms", heartbeat_ms), v("dead_after_ms", dead_after_ms);
    v("has_tenants", has_tenants);
  }
};

/// The handshake is refused. `mc` is the MC#### number, `message` the complete first line.
struct Refused {
  static constexpr std::string_view kType = "refused";
  uint32_t mc = 0;
  std::string message;
  std::string field;
  std::string ours;
  std::string theirs;
  std::vector<std::string> equal;  // fields compared and found equal

  bool operator==(const Refused&) const = default;
  template <class V>
  void fields(V& v) {
    v("mc", mc), v("message", message), v("field", field), v("ours", ours), v("theirs", theirs), v("equal", equal);
  }
};

struct Load {
  double queue_s = 0;      // predicted seconds of prefill work queued, running part included
  uint32_t running = 0;    // requests computing (prefill) or in the batch (decode)
  uint32_t waiting = 0;    // requests queued, offered or transferring
  uint64_t kv_tokens = 0;  // context tokens of the batch (decode)
  uint64_t pages_free = 0;
  uint64_t pages_private = 0;
  uint64_t pages_cached = 0;
  uint64_t pages_pinned = 0;  // cached pages that may not be evicted now
  uint64_t leases = 0;
  uint64_t hit_tokens = 0;     // since start
  uint64_t prompt_tokens = 0;  // since start
  double tbt_s = 0;            // smoothed decode step
  bool draining = false;
  bool leaving = false;  // the process was told to stop and leaves when its requests have ended
  std::string last_error;
  // The tier on this node's disk. Capacity 0: the node has none.
  uint64_t disk_capacity_bytes = 0;
  uint64_t disk_bytes = 0;       // of the blocks on disk
  uint64_t disk_blocks = 0;      // blocks on disk, also those that are in memory as well
  double disk_block_s = 0;       // smoothed seconds of bringing one block from disk into memory
  bool disk_lost = false;        // the disk failed, and the node goes on without it
  uint64_t disk_hit_tokens = 0;  // part of hit_tokens that came from disk, since start
  // The tier in the memory of this node's device. Pages 0: the node has none.
  uint64_t device_pages = 0;
  uint64_t device_pages_held = 0;      // pages that requests use
  uint64_t device_blocks = 0;          // blocks on the device that another request can use
  double device_block_s = 0;           // smoothed seconds of copying one block from the host to the device
  uint64_t device_loaded_blocks = 0;   // copied from the host, since start
  uint64_t device_evicted_blocks = 0;  // since start

  bool operator==(const Load&) const = default;
  template <class V>
  void fields(V& v) {
    v("queue_s", queue_s), v("running", running), v("waiting", waiting), v("kv_tokens", kv_tokens);
    v("pages_free", pages_free), v("pages_private", pages_private), v("pages_cached", pages_cached);
    v("pages_pinned", pages_pinned), v("leases", leases), v("hit_tokens", hit_tokens);
    v("prompt_tokens", prompt_tokens), v("tbt_s", tbt_s), v("draining", draining), v("leaving", leaving);
    v("last_error", last_error);
    v.later("disk_capacity_bytes", disk_capacity_bytes), v.later("disk_bytes", disk_bytes);
    v.later("disk_blocks", disk_blocks), v.later("disk_block_s", disk_block_s), v.later("disk_lost", disk_lost);
    v.later("disk_hit_tokens", disk_hit_tokens);
    v.later("device_pages", device_pages), v.later("device_pages_held", device_pages_held);
    v.later("device_blocks", device_blocks), v.later("device_block_s", device_block_s);
    v.later("device_loaded_blocks", device_loaded_blocks), v.later("device_evicted_blocks", device_evicted_blocks);
  }
};

struct Heartbeat {
  static constexpr std::string_view kType = "heartbeat";
  Load load;
  uint64_t event_seq = 0;      // number of the newest block event sent, so that a gap shows when idle
  uint64_t peers_version = 0;  // version of the newest Peers received, so that a lost one is sent again

  bool operator==(const Heartbeat&) const = default;
  template <class V>
  void fields(V& v) {
    v("load", load), v("event_seq", event_seq), v("peers_version", peers_version);
  }
};

/// `known = false`: the conductor does not know this instance, because it restarted. The worker must send Hello again.
struct HeartbeatAck {
  static constexpr std::string_view kType = "heartbeat_ack";
  bool known = true;

  bool operator==(const HeartbeatAck&) const = default;
  template <class V>
  void fields(V& v) {
    v("known", known);
  }
};

struct Peer {
  std::string name;
  InstanceId instance;
  Role role = Role::prefill;
  std::string control_uri;
  Bytes data;
  uint64_t cache_bytes = 0;  // see Hello
  /// Time since it joined, when the list was sent. 0: not known, or it was away and is back with its blocks.
  uint64_t member_ms = 0;
  bool keeps_values = true;  // see Hello

  bool operator==(const Peer&) const = default;
  template <class V>
  void fields(V& v) {
    v("name", name), v("instance", instance), v("role", role), v("control_uri", control_uri), v("data", data);
    v.later("cache_bytes", cache_bytes), v.later("member_ms", member_ms), v.later("keeps_values", keeps_values);
  }
};

/// Conductor -> workers, after every change: the whole membership. A peer that is absent, or present under another
/// instance, is lost: its leases and requests end now.
struct Peers {
  static constexpr std::string_view kType = "peers";
  uint64_t version = 0;  // counts the conductor's membership changes
  std::vector<Peer> peers;

  bool operator==(const Peers&) const = default;
  template <class V>
  void fields(V& v) {
    v("version", version), v("peers", peers);
  }
};

struct Drain {
  static constexpr std::string_view kType = "drain";
  bool on = true;

  bool operator==(const Drain&) const = default;
  template <class V>
  void fields(V& v) {
    v("on", on);
  }
};

/// Worker -> conductor: this worker leaves now, so its loss needs no time-out.
struct Goodbye {
  static constexpr std::string_view kType = "goodbye";
  std::string reason;

  bool operator==(const Goodbye&) const = default;
  template <class V>
  void fields(V& v) {
    v("reason", reason);
  }
};

// ---- block index -----------------------------------------------------------------------------

struct BlockRef {
  BlockHash hash;
  BlockHash parent;
  Tier tier = Tier::host;  // fastest tier of the node that holds the block

  bool operator==(const BlockRef&) const = default;
  template <class V>
  void fields(V& v) {
    v("hash", hash), v("parent", parent);
    v.later("tier", tier);
  }
};

/// The block is on the node, in this tier now, or it is on the node no more.
struct BlockEvent {
  bool stored = true;  // false: removed from every tier
  BlockRef block;
  bool evicted = false;  // removed to free its space, by the node or by an operator; older nodes do not send it

  bool operator==(const BlockEvent&) const = default;
  template <class V>
  void fields(V& v) {
    v("stored", stored), v("block", block);
    v.later("evicted", evicted);
  }
};

/// Events first_seq, first_seq + 1, ... A receiver that expected another number asks with IndexSync.
struct BlockEvents {
  static constexpr std::string_view kType = "block_events";
  uint64_t first_seq = 1;
  std::vector<BlockEvent> events;

  bool operator==(const BlockEvents&) const = default;
  template <class V>
  void fields(V& v) {
    v("first_seq", first_seq), v("events", events);
  }
};

struct IndexSync {
  static constexpr std::string_view kType = "index_sync";
  uint64_t have_seq = 0;

  bool operator==(const IndexSync&) const = default;
  template <class V>
  void fields(V& v) {
    v("have_seq", have_seq);
  }
};

/// All resident blocks as of event `seq`, in `part_count` parts of bounded size.
struct BlockSnapshot {
  static constexpr std::string_view kType = "block_snapshot";
  uint64_t seq = 0;
  uint32_t part = 0;
  uint32_t part_count = 1;
  std::vector<BlockRef> blocks;

  bool operator==(const BlockSnapshot&) const = default;
  template <class V>
  void fields(V& v) {
    v("seq", seq), v("part", part), v("part_count", part_count), v("blocks", blocks);
  }
};

// ---- a request -------------------------------------------------------------------------------

/// A run of prefix blocks for which `node` can grant a lease.
struct Source {
  std::string node;
  InstanceId instance;
  uint32_t first_block = 0;
  uint32_t block_count = 0;
  uint32_t wait_ms = 0;  // > 0: the holder still computes the blocks, and a wait of this length is worth it
  // Source of a decode node: it reads only when the prefill node has the prefix, which it may get from `node` too.
  bool after_prefix = false;

  bool operator==(const Source&) const = default;
  template <class V>
  void fields(V& v) {
    v("node", node), v("instance", instance), v("first_block", first_block), v("block_count", block_count);
    v("wait_ms", wait_ms);
    v.later("after_prefix", after_prefix);
  }
};

/// The fields of a request that prefill and decode share.
struct RequestSpec {
  RequestId req;
  uint32_t attempt = 1;
  std::vector<uint32_t> ids;  // prompt, followed by `resumed` tokens answered in earlier attempts
  uint32_t resumed = 0;
  NamespaceId ns;
  std::string salt;
  std::string prefill_attention;  // resolved: full or moba:block=..,top_k=..,full_last=..
  std::string decode_attention;
  Sampling sampling;
  Stopping stopping;
  uint64_t deadline_ms = 600000;  // remaining
  double tbt_slo_ms = 0;          // 0 = none
  bool no_cache = false;          // neither reuse nor publish blocks
  // -1 = none; k = log-probabilities of each prompt token and of the k most likely in its place, for which the whole
  // prompt is computed.
  int32_t prompt_logprobs = -1;
  // Cached copies of the prompt's blocks may be damaged: neither node reuses one, and both publish the new ones. A node
  // of an older version reuses blocks all the same.
  bool reuse_nothing = false;

  bool operator==(const RequestSpec&) const = default;
  template <class V>
  void fields(V& v) {
    v("req", req), v("attempt", attempt), v("ids", ids), v("resumed", resumed), v("ns", ns), v("salt", salt);
    v("prefill_attention", prefill_attention), v("decode_attention", decode_attention), v("sampling", sampling);
    v("stopping", stopping), v("deadline_ms", deadline_ms), v("tbt_slo_ms", tbt_slo_ms), v("no_cache", no_cache);
    v("prompt_logprobs", prompt_logprobs);
    v.later("reuse_nothing", reuse_nothing);
  }
};

struct PrefillStart {
  static constexpr std::string_view kType = "prefill_start";
  RequestSpec spec;
  std::string decode;  // chosen decode node; the receiver itself where it computes the prompt too
  InstanceId decode_instance;
  std::vector<Source> sources;         // fetch plan: ascending runs, then holders that may replace one; empty = none
  std::vector<Source> decode_sources;  // KvOffer::sources

  bool operator==(const PrefillStart&) const = default;
  template <class V>
  void fields(V& v) {
    v("spec", spec), v("decode", decode), v("decode_instance", decode_instance), v("sources", sources);
    v.later("decode_sources", decode_sources);
  }
};

/// Prefill asks decode to take the request before any prefill work is spent.
struct KvOffer {
  static constexpr std::string_view kType = "kv_offer";
  RequestSpec spec;
  // Runs of blocks, ascending, that decode reads from other nodes. Prefill announces these blocks too, for the case
  // that a node does not bring them.
  std::vector<Source> sources;

  bool operator==(const KvOffer&) const = default;
  template <class V>
  void fields(V& v) {
    v("spec", spec);
    v.later("sources", sources);
  }
};

/// Pages are reserved; the first `have_blocks` full blocks are resident at decode already.
struct KvAccept {
  static constexpr std::string_view kType = "kv_accept";
  RequestId req;
  uint32_t attempt = 1;
  uint32_t have_blocks = 0;

  bool operator==(const KvAccept&) const = default;
  template <class V>
  void fields(V& v) {
    v("req", req), v("attempt", attempt), v("have_blocks", have_blocks);
  }
};

struct KvRefuse {
  static constexpr std::string_view kType = "kv_refuse";
  RequestId req;
  uint32_t attempt = 1;
  std::string reason;  // predicted_slo_miss | no_pages | draining | too_long | layout
  double predicted_ms = 0;
  double allowed_ms = 0;

  bool operator==(const KvRefuse&) const = default;
  template <class V>
  void fields(V& v) {
    v("req", req), v("attempt", attempt), v("reason", reason), v("predicted_ms", predicted_ms);
    v("allowed_ms", allowed_ms);
  }
};

/// All extents have been announced; the request may join the batch once they are read.
struct KvComplete {
  static constexpr std::string_view kType = "kv_complete";
  RequestId req;
  uint32_t attempt = 1;
  uint32_t tokens = 0;  // positions whose KV exists: prompt length
  uint32_t first_token = 0;

  bool operator==(const KvComplete&) const = default;
  template <class V>
  void fields(V& v) {
    v("req", req), v("attempt", attempt), v("tokens", tokens), v("first_token", first_token);
  }
};

/// Every extent has arrived and its checksum holds. Prefill may release the request's pages.
struct KvDone {
  static constexpr std::string_view kType = "kv_done";
  RequestId req;
  uint32_t attempt = 1;

  bool operator==(const KvDone&) const = default;
  template <class V>
  void fields(V& v) {
    v("req", req), v("attempt", attempt);
  }
};

/// A read of a prompt's blocks from another node that has ended whole: from its begin, when the lease was granted,
/// until the last byte was here.
struct EndedRead {
  std::string node;
  uint32_t tokens = 0;
  double ms = 0;

  bool operator==(const EndedRead&) const = default;
  template <class V>
  void fields(V& v) {
    v("node", node), v("tokens", tokens), v("ms", ms);
  }
};
// Limits of one report: more is left out. A receiver keeps reports, so it does not read more either.
inline constexpr size_t kEndedReadsMax = 64, kReportNodesMax = 64, kReportMissesMax = 256;

/// The sources of a prompt's KV on the decode node, when all of it is there. Only sent when KvOffer named sources, so
/// the conductor has this type of message.
struct KvReport {
  static constexpr std::string_view kType = "kv_report";
  RequestId req;
  uint32_t attempt = 1;
  uint32_t local = 0;                  // tokens whose blocks were on the decode node
  uint32_t from_prefill = 0;           // tokens read from the prefill node
  uint32_t from_holders = 0;           // tokens read from other nodes
  std::vector<NameValue> holders;      // node -> tokens, for that part
  double holders_ms = 0;               // from the first request to a holder until the last of its blocks was there
  Fallback fallback = Fallback::none;  // why blocks of a holder were read from the prefill node
  std::vector<EndedRead> reads;        // from these nodes

  bool operator==(const KvReport&) const = default;
  template <class V>
  void fields(V& v) {
    v("req", req), v("attempt", attempt), v("local", local), v("from_prefill", from_prefill);
    v("from_holders", from_holders), v("holders", holders, kReportNodesMax), v("holders_ms", holders_ms);
    v("fallback", fallback);
    v.later("reads", reads, kEndedReadsMax);
  }
};

/// The sources of a request's prompt tokens, and its time in each stage.
struct PrefillReport {
  uint32_t cached_local = 0;       // tokens found on the prefill node, in memory or on disk
  uint32_t cached_disk = 0;        // part of cached_local that was on disk
  uint32_t cached_remote = 0;      // tokens fetched from other nodes
  std::vector<NameValue> sources;  // node -> tokens, for the remote part
  std::vector<Miss> misses;        // one for each run of blocks that was computed, ascending
  Fallback fallback = Fallback::none;
  double queue_ms = 0;
  double fetch_ms = 0;         // until computing began
  double fetch_hidden_ms = 0;  // the rest of the fetch, while layers were computed
  double load_ms = 0;          // reading from this node's disk
  double accept_ms = 0;
  double compute_ms = 0;
  uint32_t chunks = 0;
  std::vector<EndedRead> reads;  // from the nodes in `sources`

  /// Reason of the first run.
  MissKind miss_reason() const { return misses.empty() ? MissKind::none : misses.front().kind; }
  bool operator==(const PrefillReport&) const = default;
  template <class V>
  void fields(V& v) {
    v("cached_local", cached_local), v("cached_remote", cached_remote), v("sources", sources, kReportNodesMax);
    MissKind first = miss_reason();
    v("miss_reason", first), v("fallback", fallback), v("queue_ms", queue_ms), v("fetch_ms", fetch_ms);
    v("accept_ms", accept_ms), v("compute_ms", compute_ms), v("chunks", chunks);
    v.later("misses", misses, kReportMissesMax);
    v.later("cached_disk", cached_disk), v.later("load_ms", load_ms);
    v.later("fetch_hidden_ms", fetch_hidden_ms), v.later("reads", reads, kEndedReadsMax);
    if (misses.empty() && first != MissKind::none) misses.push_back({first, 0, 0, "", 0});  // the form of older nodes
  }
};

/// Log-probabilities of the prompt tokens [first, first + rows.size()). One message for each chunk, before FirstToken.
struct PromptLogprobs {
  static constexpr std::string_view kType = "prompt_logprobs";
  RequestId req;
  uint32_t attempt = 1;
  uint32_t first = 1;  // token 0 has no log-probability, because it has no context
  std::vector<PromptLogprob> rows;

  bool operator==(const PromptLogprobs&) const = default;
  template <class V>
  void fields(V& v) {
    v("req", req), v("attempt", attempt), v("first", first), v("rows", rows);
  }
};

struct FirstToken {
  static constexpr std::string_view kType = "first_token";
  RequestId req;
  uint32_t attempt = 1;
  uint32_t token = 0;
  TokenLogprobs logprobs;
  std::string finish_reason;  // "" = decode continues
  PrefillReport report;
  Bytes embedding;  // of Sampling::embed: the hidden state, f32 little-endian, unnormalised

  bool operator==(const FirstToken&) const = default;
  template <class V>
  void fields(V& v) {
    v("req", req), v("attempt", attempt), v("token", token), v("logprobs", logprobs);
    v("finish_reason", finish_reason), v("report", report);
    v.later("embedding", embedding);
  }
};

struct TokenRow {
  RequestId req;
  uint32_t attempt = 1;
  uint32_t index = 0;  // position in the answer, over all attempts, from 0
  uint32_t token = 0;
  TokenLogprobs logprobs;
  std::string finish_reason;

  bool operator==(const TokenRow&) const = default;
  template <class V>
  void fields(V& v) {
    v("req", req), v("attempt", attempt), v("index", index), v("token", token), v("logprobs", logprobs);
    v("finish_reason", finish_reason);
  }
};

/// One decode step: a row for each request that produced a token.
struct Tokens {
  static constexpr std::string_view kType = "tokens";
  std::vector<TokenRow> rows;
  double step_ms = 0;
  uint32_t batch = 0;
  uint64_t kv_tokens = 0;

  bool operator==(const Tokens&) const = default;
  template <class V>
  void fields(V& v) {
    v("rows", rows), v("step_ms", step_ms), v("batch", batch), v("kv_tokens", kv_tokens);
  }
};

/// Decode has released the request's pages. The conductor places the request again with its tokens so far.
struct Preempted {
  static constexpr std::string_view kType = "preempted";
  RequestId req;
  uint32_t attempt = 1;

  bool operator==(const Preempted&) const = default;
  template <class V>
  void fields(V& v) {
    v("req", req), v("attempt", attempt);
  }
};

struct Failed {
  static constexpr std::string_view kType = "failed";
  RequestId req;
  uint32_t attempt = 1;
  std::string stage;  // queue | fetch | accept | prefill | transfer | decode
  std::string code;   // to_string(mc::Code), or a KvRefuse reason when stage is accept
  std::string message;
  bool retryable = false;
  double predicted_ms = 0;
  double allowed_ms = 0;

  bool operator==(const Failed&) const = default;
  template <class V>
  void fields(V& v) {
    v("req", req), v("attempt", attempt), v("stage", stage), v("code", code), v("message", message);
    v("retryable", retryable), v("predicted_ms", predicted_ms), v("allowed_ms", allowed_ms);
  }
};

struct Cancel {
  static constexpr std::string_view kType = "cancel";
  RequestId req;
  uint32_t attempt = 1;  // this attempt and every older one
  std::string reason;    // stop | client_gone | deadline | superseded | finished | failed

  bool operator==(const Cancel&) const = default;
  template <class V>
  void fields(V& v) {
    v("req", req), v("attempt", attempt), v("reason", reason);
  }
};

using MessageVariant =
    std::variant<Hello, Welcome, Refused, Heartbeat, HeartbeatAck, Peers, Drain, Goodbye, BlockEvents, IndexSync,
                 BlockSnapshot, PrefillStart, KvOffer, KvAccept, KvRefuse, KvComplete, KvDone, PromptLogprobs,
                 FirstToken, Tokens, Preempted, Failed, Cancel, LeaseRequest, LeaseGrant, LeaseRelease, DemoteOffer,
                 DemoteDone, StageRun, StageTaken, StageDone, StageAnnounce, CopyBlocks, CopyDone, StageRotten,
                 StageRead, StageReadDone, StageReadCancel, KvReport, LeaseRenew, LeaseRenewed>;
using Message = OneOf<MessageVariant>;

/// The message's type, such as "hello" or "prefill_start".
std::string_view type_name(const Message& message);

}  // namespace mc::wire

extern template class mc::OneOf<mc::wire::MessageVariant>;
