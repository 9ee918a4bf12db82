// The books of a prefill node's requests: the newest attempt of each, the queue of those that do not compute yet, the
// runs under way, and the blocks that will exist here when the requests are done.
//
//   add --enqueue--> in the queue --leave_queue--> computing, handing over --end--> ended --drop--> gone
//
// An ended request stays in the books until the host has reported the end of its run and of reads that were given up,
// because they still write into its pages.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "node/prefill_request.h"

namespace mc::node {

class PrefillRequests {
 public:
  using Ptr = std::shared_ptr<PrefillRequest>;  // queue, table and runs share the request
  using Phase = PrefillRequest::Phase;

  // ---- looking ----
  /// The unfinished requests by id.
  const std::map<RequestId, Ptr>& all() const { return requests_; }
  /// Queued and preparing requests in order of arrival.
  const std::deque<Ptr>& queue() const { return queue_; }
  /// Ended requests whose run or reads have not ended.
  std::span<const Ptr> ended() const { return ended_; }
  /// The newest attempt of the request; null = it is not here, or has ended.
  PrefillRequest* find(const RequestId& req) const;
  /// This attempt of the request, unless a newer one is here.
  PrefillRequest* find(const RequestId& req, uint32_t attempt) const;
  const Ptr& shared(const PrefillRequest& r) const;
  /// Whether an unfinished request has the block in its prompt.
  bool is_pending(const BlockHash& hash) const { return pending_.contains(hash); }
  bool any_in(Phase phase) const;
  /// All computing requests but `r`.
  std::vector<const PrefillRequest*> computing_besides(const PrefillRequest& r) const;
  /// The requests that are past their deadline. Those that hand over have `grace` more.
  std::vector<Ptr> late(TimePoint now, Duration grace) const;
  TimePoint next_deadline(Duration grace) const;
  /// Whether computing may begin for a request of the queue. An earlier request may be fetching blocks that this one
  /// needs as well: the conductor sent it here because of these blocks. The fetch has its own time limit.
  bool is_ready(const PrefillRequest& r, const kv::Pool& pool, const PrefixFetches& fetches) const;
  /// Whether a request before `r` in the queue is fetching block number `block` of `r`.
  bool is_fetched_before(const PrefillRequest& r, uint32_t block, const PrefixFetches& fetches) const;

  // ---- from arrival to end ----
  /// No attempt of the request may be here.
  void add(Ptr r);
  /// The request's hashes are known from now on.
  void enqueue(PrefillRequest& r);
  void leave_queue(const PrefillRequest& r);
  /// All requests of the queue but `r` give back the blocks that they hold, where no fetch adds to them. False when
  /// none held any.
  bool unpin_others(const PrefillRequest& r, const PrefixFetches& fetches, kv::Pool& pool);
  /// Moves an unfinished request to ended().
  Ptr end(PrefillRequest& r);
  /// Forgets an ended request, which has no run.
  void drop(const PrefillRequest& r);

  // ---- runs ----
  /// `r.work.run` was given to the host.
  void begin_run(PrefillRequest& r);
  /// The request of a run that has not ended; null = none.
  PrefillRequest* of_run(uint64_t run) const;
  /// The request of a LoadPages that has not ended, which may have ended itself.
  Ptr of_load(uint64_t load) const;
  /// Takes a run that has ended out of the books; null = it is unknown.
  Ptr end_run(uint64_t run);

  /// Aborts the process if the books do not agree.
  void check() const;

 private:
  static TimePoint deadline_of(const PrefillRequest& r, Duration grace) {
    return r.phase == Phase::handing_over ? after(r.times.deadline, grace) : r.times.deadline;
  }

  std::map<RequestId, Ptr> requests_;
  std::deque<Ptr> queue_;
  std::vector<Ptr> ended_;
  std::map<uint64_t, Ptr> by_run_;
  std::map<BlockHash, uint32_t> pending_;  // block -> number of unfinished requests that have it
};

}  // namespace mc::node
