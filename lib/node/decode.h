// The decode role reads a request's KV and generates the answer in a continuous batch (Mooncake, arXiv:2407.00079). The
// KV comes from the prefill node. Blocks that the prefill node does not compute may come straight from nodes that hold
// them (node/holder_reads.h). Blocks that a holder does not bring are read from the prefill node.
//
//   offer --room, promise holds--> receiving --all extents + KvComplete--> loading --> running --stop | length--> ended
//     |  waiting (no pages yet)        |                                      |  preempted (pages ran out)
//     '-- KvRefuse                     '-- Failed (transfer)                  '-- Cancel, deadline, lost conductor
//
// A short prompt may come straight from the conductor. This node computes it, beside its decode rows where the compute
// can (node/inline_prefills.h).
//
//   PrefillStart --room, promise holds--> computing --first token to the conductor--> running
//
// Where the node's device has memory of its own (node/device_tier.h), a request whose KV is here takes pages of it, and
// its blocks are copied there beside the steps of the others. It joins the batch when they are there (Mooncake, section
// 3). Without such a tier it joins at once.
//
// Back-pressure: offers wait in order until pages are free, and the prefill node spends no work before its offer is
// accepted. When a running request needs a page and none is left, the newest request gives up its pages. The conductor
// places that request again with the tokens that it has. A younger request never preempts an older one, so the oldest
// request always makes progress.
#pragma once

#include <deque>
#include <map>
#include <memory>

#include "node/batch.h"
#include "node/failure.h"
#include "node/holder_reads.h"
#include "node/inline_prefills.h"
#include "node/unlisted_offers.h"
#include "node/worker.h"

namespace mc::node {

struct DecodeOptions {
  uint32_t batch_max = 64;      // rows of a step
  uint32_t steps_max = 1;       // steps under way; with 2 the compute never waits for this role
  uint32_t inline_tokens = 0;   // tokens of a prompt that are computed here, in one chunk; 0 = no prompt is
  uint32_t waiting_max = 1024;  // offers that wait; more are refused
  Duration stall = 2s;          // time without an announced extent after KvComplete; then the notify counts as lost
  Duration peer_wait = 1s;      // wait for the list that names a prefill node which the conductor has chosen
  Duration grace = 500ms;       // time after its deadline at which a request ends even without a Cancel
  Duration fetch_timeout = 5s;  // time-out of one lease request to a holder, or of one read from it
};

class Decode final : public Worker {
 public:
  Decode(WorkerOptions worker, DecodeOptions options);

  struct Stats {
    uint64_t requests = 0, finished = 0, refused = 0, failed = 0, preempted = 0;
    uint64_t tokens = 0, steps = 0, checksum_failures = 0;
    uint64_t transferred_bytes = 0, local_blocks = 0;  // bytes: from prefill nodes
  };
  const Stats& stats() const { return stats_; }
  const HolderReads::Stats& from_holders() const { return holders_.stats(); }
  const InlinePrefills::Stats& inlined() const { return inlined_.stats(); }
  size_t request_count() const { return requests_.size(); }

 protected:
  void on_message(const Received& event, TimePoint now, Actions& out) override;
  void on_event(const Event& event, TimePoint now, Actions& out) override;
  void on_tick(TimePoint now, Actions& out) override;
  TimePoint role_wakeup() const override;
  void drop_all(TimePoint now, Actions& out) override;
  void on_peer_gone(const wire::Peer& peer, TimePoint now, Actions& out) override;
  void fill_load(wire::Load& load) const override;
  bool role_idle() const override { return requests_.empty() && ended_.empty() && unlisted_.empty(); }
  void role_check() const override;

 private:
  using Request = DecodeRequest;
  using Phase = Request::Phase;
  using RequestPtr = Batch::RequestPtr;

  void on_offer(const Received& event, const wire::KvOffer& offer, TimePoint now, Actions& out);
  void take(const RequestPtr& r, TimePoint now, Actions& out);
  void on_complete(const Received& event, const wire::KvComplete& complete, TimePoint now, Actions& out);
  void refuse(const Request& r, Reason reason, double predicted_ms, double allowed_ms, Actions& out);
  void admit(TimePoint now, Actions& out);
  bool accept(const RequestPtr& r, TimePoint now, Actions& out);
  Request* find(const RequestId& req, uint32_t attempt);
  void on_ready(const Notified& event, TimePoint now, Actions& out);
  void start_read(Request& r, const Arrivals::Reading& reading, TimePoint now, Actions& out);
  void on_read(Request& r, const ReadDone& done, TimePoint now, Actions& out);
  void take_from_holders(TimePoint now, Actions& out);
  void try_join(Request& r, Actions& out);
  void seat(Actions& out);
  void on_loaded(const PagesLoaded& done, Actions& out);
  void publish_prompt(Request& r);
  void step(TimePoint now, Actions& out);
  bool prepare_step(Actions& out);
  bool give_page(const RequestPtr& r, Actions& out);
  void preempt(Request& r, Actions& out);
  void on_step(const StepDone& done, TimePoint now, Actions& out);
  void on_chunk(const ChunkDone& done, TimePoint now, Actions& out);
  void on_rotten(Request& r, std::span<const uint32_t> rotten, Actions& out);
  void fail(Request& r, Failure failure, std::string message, Actions& out);
  void end(Request& r, Actions& out);
  void settle(Request& r, Actions& out);
  uint64_t batch_tokens() const;

  DecodeOptions decode_;
  UnlistedOffers unlisted_;
  std::map<RequestId, RequestPtr> requests_;  // newest attempt of each request
  std::deque<RequestPtr> waiting_;            // for pages, in order of arrival
  std::deque<RequestPtr> loading_;            // for pages of the device, or for their blocks there
  Batch batch_;
  HolderReads holders_;
  InlinePrefills inlined_;
  std::vector<RequestPtr> ended_;  // ended requests whose pages a read or a run still uses
  std::map<uint64_t, RequestPtr> by_read_;
  std::shared_ptr<wire::Tokens> tokens_;  // message of the step before; reused when the host has released it
  std::vector<RequestPtr> finished_;      // requests that end with the step that is being booked
  uint64_t orders_ = 0;
  Stats stats_;
};

}  // namespace mc::node
