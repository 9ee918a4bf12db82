// The batches that the loop works on, and how they end: results, deadlines, cancellation, quarantine.
//
//   every request of a batch has its result   -> batch_done     (the caller may go on)
//   and no slice of it exists                 -> released       (the caller may reuse the memory)
//
// Not thread-safe: only the thread that has the loop's turn calls this class.
#pragma once

#include <map>
#include <set>
#include <string>

#include "xfer/loop_parts.h"

namespace mc::xfer {

class RunningBatches {
 public:
  explicit RunningBatches(LoopParts& parts) : parts_(parts) {}

  /// Starts to run the batch.
  void add(OpenBatch& batch);
  /// Stores the result of a request and cancels its slices. A slice that the transport releases at once ends. The
  /// others are quarantined until the transport reports them.
  void finish_request(OpenBatch& batch, uint32_t request, Code code, const std::string& text);
  /// Ends the unfinished requests of a peer.
  void finish_requests_of(PeerId peer, Code code, const std::string& text);
  /// Ends a slice that no transport uses any more.
  void free_slice(uint32_t slice);
  void cancel(BatchId id);
  /// Ends batches whose deadline has passed, and closes lanes that keep the memory of an ended batch too long.
  void expire(TimePoint now);
  /// Reports and releases the batches that have changed.
  void settle_changed();
  bool any_changed() const { return !changed_.empty(); }
  /// The next time at which expire() has something to do.
  TimePoint due() const;

 private:
  void abandon_slices(OpenBatch& batch, uint32_t request);
  void end(OpenBatch& batch, Code code, const std::string& text);
  void settle(OpenBatch& batch);
  void drop_queued(const OpenBatch& batch);
  void close_holders(const OpenBatch& batch);

  using Moment = std::pair<TimePoint, BatchId>;
  LoopParts& parts_;
  std::map<BatchId, OpenBatch*> running_;  // batches that are not released yet
  std::set<BatchId> changed_;
  std::set<Moment> deadlines_;
  std::set<Moment> drains_;
};

}  // namespace mc::xfer
