// The batches that the loop works on, and how they end: results, deadlines, cancelling, quarantine.
//
//   every request of a batch has its result   -> batch_done     (the caller may go on)
//   and no slice of it exists                 -> released       (the caller may reuse the memory)
//
// Not thread-safe: it belongs to the thread that has the loop's turn.
#pragma once

#include <map>
#include <set>
#include <string>

#include "xfer/loop_parts.h"

namespace mc::xfer {

class RunningBatches {
 public:
  explicit RunningBatches(LoopParts& parts) : parts_(parts) {}

  /// The batch runs from now on.
  void add(OpenBatch& batch);
  /// The request has its result. Its slices are taken back: those that the transport lets go of at once end, the others
  /// are quarantined until the transport reports them.
  void finish_request(OpenBatch& batch, uint32_t request, Code code, const std::string& text);
  /// Ends the unfinished requests of a peer.
  void finish_requests_of(PeerId peer, Code code, const std::string& text);
  /// The slice is free of every transport.
  void free_slice(uint32_t slice);
  void cancel(BatchId id);
  /// Ends batches whose deadline has passed, and closes lanes that keep memory of an ended batch for too long.
  void expire(TimePoint now);
  /// Reports and releases the batches that something has changed for.
  void settle_changed();
  bool any_changed() const { return !changed_.empty(); }
  /// When expire() has more to do.
  TimePoint due() const;

 private:
  void abandon_slices(OpenBatch& batch, uint32_t request);
  void end(OpenBatch& batch, Code code, const std::string& text);
  void settle(OpenBatch& batch);
  void drop_queued(const OpenBatch& batch);
  void close_holders(const OpenBatch& batch);

  using Moment = std::pair<TimePoint, BatchId>;
  LoopParts& parts_;
  std::map<BatchId, OpenBatch*> running_;  // not yet released
  std::set<BatchId> changed_;
  std::set<Moment> deadlines_;
  std::set<Moment> drains_;
};

}  // namespace mc::xfer
