// The prefill role computes the KV blocks of a prompt and the first token (Mooncake, arXiv:2407.00079).
//
//   queued --turn comes--> preparing --accepted, prefix here--> ready --compute free--> computing --> handing
//                            | lease + read missing prefix         (a pass at a time)              over |
//                            | offer to the decode node                                        KvDone |  v
//                            '-- refused, deadline, cancelled, peer gone ----------------------------> ended
//
// At most `prepare_max` requests for each decode node prepare while one computes, so neither a slow fetch
// (node/prefix_fetches.h) nor a decode node that delays its offers leaves the compute idle. Ready requests are computed
// first in, first out. The prefix is matched again when computing starts. Two requests that share a prefix therefore
// compute it once, because the second one reuses the blocks of the first.
//
// A pass computes a chunk of one prompt, or, where the compute gains by it, the rest of several short ones
// (node/prefill_pass.h).
//
// A request may begin before the last layers of its prefix are here, when no other one is ready and computing hides the
// rest of the way. The compute waits for each layer of the prefix. A prefix that fails after that is computed instead.
//
// Each layer is announced to the decode node as soon as it is sealed, so the transfer overlaps the compute (Mooncake,
// "Layer-wise Prefill"). The request's pages stay leased to the decode node until its KvDone or the deadline.
//
// Where the node's device has memory of its own (node/device_tier.h), a request takes pages of it when it begins to
// compute, and gives them back with its first token: the decode node reads the host's pages. The blocks of the prefix
// that the device lacks are copied layer by layer beside the first chunk.
//
// Operators may ask this node alone, without a conductor (kOperators as the sender). Such a request passes through the
// same states without a decode node (node/handover.h). It ends with its first token. The loss of a conductor does not
// end it, except in a pipeline, whose later stages cancel all their work then.
//
// With `stages` above 1 this node leads a pipeline (node/pipeline.h). The leader computes the first layers of a chunk,
// hands the chunk on, and computes the next chunk while later stages work. The blocks of a chunk are published when the
// last stage has finished it. The pipeline is one holder of blocks. The leader's books stand for all members: it grants
// the leases, and readers read each layer from the member that has it. Blocks that the leader fetches are read by each
// member for itself (node/block_reads.h). When a member is lost, every request under way is lost, and no block can be
// used. The other members keep their layers of the blocks. When the member is back, its layers are fetched from other
// nodes that hold the blocks, or computed again (node/lost_parts.h). Until then, the conductor sends nothing.
#pragma once

#include <map>

#include "base/recent.h"
#include "node/copies.h"
#include "node/failure.h"
#include "node/pipeline.h"
#include "node/prefill_pass.h"
#include "node/prefill_requests.h"
#include "node/prefix_fetches.h"
#include "node/worker.h"

namespace mc::node {

struct PrefillOptions {
  uint32_t chunk_tokens = 512;
  uint32_t pass_tokens = 0;     // of a pass that several short prompts share; 0: each has a pass of its own
  uint32_t prepare_max = 4;     // limit for each decode node
  uint32_t queue_max = 1024;    // limit of unfinished requests; more are refused as `queue_full`
  Duration fetch_timeout = 5s;  // time-out of one lease request or read; then the prefix is computed instead
  Duration peer_wait = 1s;      // wait for a decode node that the conductor has chosen but that is not listed here
  Duration grace = 500ms;       // time after the deadline at which the request's pages are released in any case
  // Computing may begin while the last read of so many bytes or more is under way; UINT64_MAX = never. Not in a
  // pipeline.
  uint64_t by_layer_bytes = UINT64_MAX;
  uint32_t stages = 1;    // stages of the pipeline that this node leads
  ActivationSlots slots;  // used when stages > 1
};

class Prefill final : public Worker {
 public:
  Prefill(WorkerOptions worker, PrefillOptions options);

  struct Stats {
    uint64_t requests = 0, finished = 0, failed = 0;
    uint64_t prompt_tokens = 0, local_tokens = 0, remote_tokens = 0, computed_tokens = 0;
    uint64_t disk_tokens = 0;  // part of local_tokens that came from disk
    uint64_t chunks = 0;
    uint64_t checksum_failures = 0;  // cached blocks that failed their checksum when they were used
    // For each request, the transfer time that computing did not hide: first token to KvDone.
    Recent exposed_s;
  };
  const Stats& stats() const { return stats_; }
  const PrefixFetches::Stats& fetches() const { return fetches_.stats(); }
  size_t request_count() const { return requests_.all().size(); }
  const Copies::Stats& copies() const { return copies_.stats(); }

 protected:
  void on_message(const Received& event, TimePoint now, Actions& out) override;
  void on_event(const Event& event, TimePoint now, Actions& out) override;
  void on_tick(TimePoint now, Actions& out) override;
  TimePoint role_wakeup() const override;
  void drop_all(TimePoint now, Actions& out) override;
  void on_peer_gone(const wire::Peer& peer, TimePoint now, Actions& out) override;
  void fill_load(wire::Load& load) const override;
  bool role_idle() const override { return requests_.all().empty() && copies_.idle(); }
  void role_check() const override;
  bool is_pending(const BlockHash& hash) const override { return requests_.is_pending(hash); }
  HolderParts parts() const override { return pipeline_.parts(options_.instance, options_.layout); }

 private:
  using Request = PrefillRequest;
  using Phase = Request::Phase;
  using RequestPtr = PrefillRequests::Ptr;
  using RequestPtrs = std::vector<RequestPtr>;

  // ---- from arrival to end ----
  void on_start(const NodeId& from, const wire::PrefillStart& start, TimePoint now, Actions& out);
  void check_start(Request& r, Actions& out);
  void on_refuse(const Received& event, const wire::KvRefuse& refuse, Actions& out);
  void on_cancel(const Received& event, const wire::Cancel& cancel, Actions& out);
  void pump(TimePoint now, Actions& out);
  void prepare(Request& r, TimePoint now, Actions& out);
  /// To the conductor, or to the operators if they asked.
  void report(const Request& r, wire::Message message, Actions& out) const;
  /// Reports the failure to the client and the decode node, then ends the request.
  void fail(Request& r, Failure failure, std::string message, Actions& out);
  void end(Request& r, Actions& out);
  /// Releases the pages as soon as no run uses them.
  void settle(Request& r);

  // ---- computing and handing over ----
  bool take_pages(Request& r);
  bool start_compute(Request& r, TimePoint now, Actions& out);
  void share_pass(TimePoint now, Actions& out);
  void book_prefix(Request& r, TimePoint now);
  void follow_prefix(Request& r, TimePoint now, Actions& out);
  void run_chunk(Request& r, Actions& out);
  void on_chunk(Request& r, const ChunkDone& done, TimePoint now, Actions& out);
  void publish(Request& r, uint32_t first_block, uint32_t end_block);
  void first_token(Request& r, const SampledToken& sampled, TimePoint now, Actions& out);

  // ---- leader of a pipeline ----
  bool stages_here(Request& r, TimePoint now, Actions& out);
  void hand_on(Request& r, const ChunkDone& done, TimePoint now, Actions& out);
  void on_stage_done(const Received& event, const wire::StageDone& done, TimePoint now, Actions& out);
  void on_stage_rotten(const wire::StageRotten& found, Actions& out);
  void on_stage_gone(const StageName& stage, const InstanceId& instance, TimePoint now, Actions& out);

  PrefillOptions prefill_;
  PrefillRequests requests_;
  RequestPtrs computing_;  // of the pass under way
  PrefixFetches fetches_;
  Pipeline pipeline_;
  HandedSlots slots_;
  std::map<uint64_t, RequestPtr> flowing_;  // runs that later stages are computing
  Stats stats_;
  Copies copies_;
};

}  // namespace mc::node
