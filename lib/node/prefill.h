// The prefill role: turns a prompt into KV blocks and the first token (Mooncake, arXiv:2407.00079).
//
//   queued --turn comes--> preparing --accepted, prefix here--> ready --compute free--> computing --> handing
//                            | lease + read missing prefix         (one request at a time)         over |
//                            | offer to the decode node                                        KvDone |  v
//                            '-- refused, deadline, cancelled, peer gone ----------------------------> ended
//
// At most `prepare_max` requests for each decode node prepare while one computes, so neither a slow
// fetch nor a decode node that makes its offers wait leaves the compute idle. Computing is first in, first out among
// the ready. The prefix is matched again when computing starts: what an earlier request of the queue has published by
// then is reused, so two requests sharing a prefix do not both compute it.
//
// The request's pages stay leased to the decode node until it says KvDone, or the deadline has passed.
//
// With `stages` above 1 this node leads a pipeline (node/stage.h): it computes the first layers of a chunk,
// hands it on, and goes on with the next chunk, of this request or the next one, while later stages compute.
// A chunk's blocks are published when the last stage has done with it. A member that is lost takes with it
// every request under way here and all cached blocks, nothing else; until it is back the conductor sends
// nothing.
#pragma once

#include <deque>
#include <map>
#include <memory>

#include "base/recent.h"
#include "node/copies.h"
#include "node/stage.h"
#include "node/worker.h"

namespace mc::node {

struct PrefillOptions {
  uint32_t chunk_tokens = 512;  // a multiple of the block size
  uint32_t prepare_max = 4;     // of one decode node
  uint32_t queue_max = 1024;    // requests; more are refused as `queue_full`
  Duration fetch_timeout = 5s;  // of one lease or read; after it the prefix is computed instead
  Duration peer_wait = 1s;      // for a decode node that we lost sight of but the conductor has chosen
  Duration grace = 500ms;       // pages outlive the request's deadline by this, then go regardless
  uint32_t stages = 1;          // of the pipeline that this node leads
  ActivationSlots slots;        // with stages > 1
};

class Prefill final : public Worker {
 public:
  Prefill(WorkerOptions worker, PrefillOptions options);

  struct Stats {
    uint64_t requests = 0, finished = 0, failed = 0;
    uint64_t prompt_tokens = 0, local_tokens = 0, remote_tokens = 0, computed_tokens = 0;
    uint64_t chunks = 0;
    uint64_t fetches = 0, fetch_failures = 0, checksum_failures = 0;
    Recent exposed_s;  // of each request: transfer that computing did not hide, first token to KvDone
  };
  const Stats& stats() const { return stats_; }
  size_t request_count() const { return requests_.size(); }
  const Copies::Stats& copies() const { return copies_.stats(); }

 protected:
  void on_message(const Received& event, TimePoint now, Actions& out) override;
  void on_event(const Event& event, TimePoint now, Actions& out) override;
  void on_tick(TimePoint now, Actions& out) override;
  TimePoint role_wakeup() const override;
  void drop_all(TimePoint now, Actions& out) override;
  void on_peer_gone(const NodeId& node, const InstanceId& instance, TimePoint now, Actions& out) override;
  void fill_load(wire::Load& load) const override;
  bool role_idle() const override { return requests_.empty() && copies_.idle(); }
  void role_check() const override;
  bool is_pending(const BlockHash& hash) const override { return pending_.contains(hash); }
  /// A pipeline's blocks are spread over its members: they are not leased to others.
  Shelf* shelf_of(const NamespaceId&) override { return leads() ? nullptr : shelf_.get(); }

 private:
  enum class Phase : uint8_t { queued, preparing, computing, handing_over, ended };
  enum class Fetch : uint8_t { idle, leasing, reading, done };

  struct Request {
    wire::RequestSpec spec;
    NodeId decode;
    InstanceId decode_instance;
    std::vector<wire::Source> sources;
    std::vector<BlockHash> hashes;  // of the full blocks of spec.ids
    uint32_t reusable = 0;          // leading blocks that may come from a cache
    TimePoint arrived{}, deadline{}, prepare_at{}, compute_at{}, computed_at{};
    Phase phase = Phase::queued;

    bool offered = false, accepted = false;
    uint32_t decode_has = 0;                // leading blocks the decode node holds already
    TimePoint accepted_at{}, fetched_at{};  // both: ready to compute

    Fetch fetch = Fetch::idle;
    size_t source = 0;             // index of the source being fetched
    uint64_t lease = 0, read = 0;  // of the fetch; 0 = none outstanding
    TimePoint fetch_until = kNever, fetch_began{};
    double fetch_ms = 0;
    std::vector<wire::LeasedBlock> granted;
    std::vector<kv::PageIndex> fetched;  // owned pages a read is filling
    uint32_t remote_blocks = 0;
    std::vector<wire::NameValue> from;
    wire::Fallback fallback = wire::Fallback::none;
    struct GivenUp {  // blocks that were to be fetched
      uint32_t first_block, end_block;
      wire::Fallback why;
      NodeId node;
      uint64_t age_ms;
    };
    std::vector<GivenUp> given_up;
    /// Notes that the source's blocks from `first_block` on do not come from there.
    void give_up(uint32_t first_block, wire::Fallback why, uint64_t age_ms);

    std::vector<kv::PageIndex> pages;         // of blocks 0, 1, ...: pinned up to `shared`, ours beyond
    std::vector<bool> pinned;                 // per page: pinned (cached) or owned
    uint32_t prefix_blocks = 0;               // cached when computing started
    std::vector<wire::Miss> misses;           // of the blocks behind them
    kv::LeaseId page_lease = 0;               // to the decode node; 0 = none
    std::vector<std::vector<uint32_t>> crcs;  // [block][layer] of computed blocks
    uint32_t next = 0;                        // first token not yet computed
    uint64_t run = 0;                         // chunk being computed; 0 = none
    uint32_t run_end = 0;
    uint32_t chunks = 0;

    // Chunks that later stages still compute, by run number.
    struct Flowing {
      uint32_t first_block, end_block;
      uint64_t stages_left;  // bit s: stage s has not told its part
      SampledToken sampled;  // told by the last stage; its message may come before those of others
    };
    std::map<uint64_t, Flowing> flowing;
    /// The prompt tokens that the chunk [next, run_end) foretells; empty unless the client asks for their likelihood.
    std::vector<uint32_t> targets() const;
  };
  using RequestPtr = std::shared_ptr<Request>;  // queues and tables below name the same request

  void on_start(const Received& event, const wire::PrefillStart& start, TimePoint now, Actions& out);
  void on_refuse(const Received& event, const wire::KvRefuse& refuse, TimePoint now, Actions& out);
  Request* find(const RequestId& req, uint32_t attempt);
  void pump(TimePoint now, Actions& out);
  bool unpin_others(const Request& r);
  bool prefix_is_coming(const Request& r) const;
  void prepare(Request& r, TimePoint now, Actions& out);
  void fetch_next(Request& r, TimePoint now, Actions& out);
  void on_grant(Request& r, const wire::LeaseGrant& grant, TimePoint now, Actions& out);
  void on_read(Request& r, const ReadDone& done, TimePoint now, Actions& out);
  void fetch_failed(Request& r, wire::Fallback why, TimePoint now, Actions& out, uint64_t age_ms = 0);
  std::vector<wire::Miss> misses(const Request& r, TimePoint now) const;
  void end_fetch(Request& r, Actions& out);
  bool start_compute(Request& r, TimePoint now, Actions& out);
  void announce_prefix(const Request& r, Actions& out) const;
  void announce(const Request& r, uint32_t layer, uint32_t first_block, std::vector<wire::ReadyExtent> extents,
                Actions& out) const;
  void run_chunk(Request& r, Actions& out);
  void tell_prompt_logprobs(const Request& r, uint32_t start, std::vector<wire::PromptLogprob> rows,
                            Actions& out) const;
  void on_layer(Request& r, const LayerDone& done, Actions& out);
  void on_chunk(Request& r, const ChunkDone& done, TimePoint now, Actions& out);
  void publish(Request& r, uint32_t first_block, uint32_t end_block);
  void first_token(Request& r, const ChunkDone& done, TimePoint now, Actions& out);
  /// Tells the conductor and the decode node, then ends the request.
  void fail(Request& r, std::string stage, std::string code, std::string message, bool retryable, TimePoint now,
            Actions& out);
  /// Gives everything back as soon as no read or run touches the pages any more.
  void end(Request& r, Actions& out);
  void settle(Request& r);
  double estimate(const Request& r) const;

  // prefill_pipeline.cc: this node as the leader of a pipeline
  bool leads() const { return prefill_.stages > 1; }
  LayerRange own_layers() const { return stage_layers(options_.layout.layers, 0, prefill_.stages); }
  const wire::Peer* stage_peer(uint32_t stage) const;
  std::string missing_stage() const;
  bool stages_here(Request& r, TimePoint now, Actions& out);
  bool take_slot(RunChunk& run);
  void hand_on(Request& r, const ChunkDone& done, TimePoint now, Actions& out);
  void free_slot(uint64_t run);
  void free_late_slots(TimePoint now);
  std::string objection(const wire::StageDone& done, uint32_t stage, const Request::Flowing& flowing) const;
  void on_stage_done(const Received& event, const wire::StageDone& done, TimePoint now, Actions& out);
  void announce_stages(const Request& r, Actions& out) const;
  void on_stage_rotten(const wire::StageRotten& found, TimePoint now, Actions& out);
  void on_stage_gone(const NodeId& node, TimePoint now, Actions& out);
  std::string stage_of(const Request& r) const;

  PrefillOptions prefill_;
  std::map<RequestId, RequestPtr> requests_;  // newest attempt of each
  std::deque<RequestPtr> queue_;              // in order of arrival: queued and preparing
  std::vector<RequestPtr> ended_;             // waiting for a read or run to let go of their pages
  RequestPtr computing_;
  std::map<uint64_t, RequestPtr> by_op_;             // lease, read and run numbers
  std::map<BlockHash, uint32_t> pending_;            // blocks being computed here, with a use count
  std::map<uint64_t, RequestPtr> flowing_;           // runs that later stages compute
  uint64_t slot_runs_[ActivationSlots::kEach] = {};  // whose activations wait in a slot; 0 = free
  // Then it is free whatever was heard: a late reader finds the CRC of other bytes. kNever until handed on.
  TimePoint slot_until_[ActivationSlots::kEach] = {kNever, kNever};
  Stats stats_;
  Copies copies_;
};

}  // namespace mc::node
