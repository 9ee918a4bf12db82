// The prefill role: turns a prompt into KV blocks and the first token (Mooncake, arXiv:2407.00079).
//
//   queued --turn comes--> preparing --accepted, prefix here--> ready --compute free--> computing --> handing
//                            | lease + read missing prefix         (one request at a time)         over |
//                            | offer to the decode node                                        KvDone |  v
//                            '-- refused, deadline, cancelled, peer gone ----------------------------> ended
//
// At most `prepare_max` requests for each decode node prepare while one computes, so neither a slow fetch
// (node/prefix_fetches.h) nor a decode node that makes its offers wait leaves the compute idle. Computing is first in,
// first out among the ready. The prefix is matched again when computing starts: blocks that an earlier request of the
// queue has published by then are reused, so two requests that share a prefix do not both compute it.
//
// Each layer is announced to the decode node as soon as it is sealed, so the transfer overlaps the compute (Mooncake,
// "Layer-wise Prefill"). The request's pages stay leased to the decode node until it sends KvDone, or the deadline has
// passed.
//
// With `stages` above 1 this node leads a pipeline (node/pipeline.h): it computes the first layers of a chunk, hands
// the chunk on, and goes on with the next chunk, of this request or the next one, while later stages compute. The
// blocks of a chunk are published when the last stage is done with it. When a member is lost, every request under way
// and all cached blocks are lost too; until it is back the conductor sends nothing.
#pragma once

#include <deque>
#include <map>
#include <memory>

#include "base/recent.h"
#include "node/copies.h"
#include "node/failure.h"
#include "node/pipeline.h"
#include "node/prefill_request.h"
#include "node/prefix_fetches.h"
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
    uint64_t checksum_failures = 0;  // of cached blocks, found when they were used
    Recent exposed_s;                // of each request: transfer that computing did not hide, first token to KvDone
  };
  const Stats& stats() const { return stats_; }
  const PrefixFetches::Stats& fetches() const { return fetches_.stats(); }
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
  Shelf* shelf_of(const NamespaceId&) override { return pipeline_.leads() ? nullptr : shelf_.get(); }

 private:
  using Request = PrefillRequest;
  using Phase = Request::Phase;
  using RequestPtr = std::shared_ptr<Request>;  // queues and tables below name the same request

  // ---- arrival, turn and end of a request ----
  void on_start(const wire::PrefillStart& start, TimePoint now, Actions& out);
  void check_start(Request& r, Actions& out);
  void on_refuse(const Received& event, const wire::KvRefuse& refuse, Actions& out);
  void on_cancel(const Received& event, const wire::Cancel& cancel, Actions& out);
  void on_handed_over(const Received& event, const wire::KvDone& done, TimePoint now, Actions& out);
  Request* find(const RequestId& req, uint32_t attempt);
  void pump(TimePoint now, Actions& out);
  bool unpin_others(const Request& r);
  bool prefix_is_coming(const Request& r) const;
  void prepare(Request& r, TimePoint now, Actions& out);
  /// Tells the conductor and the decode node, then ends the request.
  void fail(Request& r, Failure failure, std::string message, Actions& out);
  void end(Request& r, Actions& out);
  /// Gives the pages back as soon as no run touches them any more.
  void settle(Request& r);
  RequestStage stage_of(const Request& r) const;
  double estimate(const Request& r) const;

  // ---- computing and handing over ----
  bool take_pages(Request& r);
  bool start_compute(Request& r, TimePoint now, Actions& out);
  void announce_prefix(const Request& r, Actions& out) const;
  void run_chunk(Request& r, Actions& out);
  void on_layer(Request& r, const LayerDone& done, Actions& out);
  void on_chunk(Request& r, const ChunkDone& done, TimePoint now, Actions& out);
  void publish(Request& r, uint32_t first_block, uint32_t end_block);
  void first_token(Request& r, const SampledToken& sampled, TimePoint now, Actions& out);

  // ---- as the leader of a pipeline ----
  bool stages_here(Request& r, TimePoint now, Actions& out);
  void hand_on(Request& r, const ChunkDone& done, TimePoint now, Actions& out);
  void on_stage_done(const Received& event, const wire::StageDone& done, TimePoint now, Actions& out);
  void announce_stages(const Request& r, Actions& out) const;
  void on_stage_rotten(const wire::StageRotten& found, Actions& out);
  void on_stage_gone(const NodeId& node, Actions& out);

  PrefillOptions prefill_;
  std::map<RequestId, RequestPtr> requests_;  // newest attempt of each
  std::deque<RequestPtr> queue_;              // in order of arrival: queued and preparing
  std::vector<RequestPtr> ended_;             // waiting for a run to let go of their pages
  RequestPtr computing_;
  std::map<uint64_t, RequestPtr> by_run_;
  std::map<BlockHash, uint32_t> pending_;  // blocks being computed here, with a use count
  PrefixFetches fetches_;
  Pipeline pipeline_;
  HandedSlots slots_;
  std::map<uint64_t, RequestPtr> flowing_;  // runs that later stages compute
  Stats stats_;
  Copies copies_;
};

}  // namespace mc::node
