// The batches that callers have submitted and not closed. Any thread may call this class: callers submit, read results
// and close, and the loop reports ends.
#pragma once

#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>

#include "xfer/batch.h"
#include "xfer/tally.h"

namespace mc::xfer {

class BatchTable {
 public:
  /// `most`: limit of open batches.
  BatchTable(size_t most, Tally& tally) : most_(most), tally_(tally) {}
  ~BatchTable() { delete spare_.load(); }
  BatchTable(const BatchTable&) = delete;
  BatchTable& operator=(const BatchTable&) = delete;

  /// An empty batch. The caller owns it until keep().
  std::unique_ptr<OpenBatch> make();
  /// Reserves the number of a batch for keep(). BatchId::none: `most` batches are open.
  BatchId reserve();
  /// Counts a batch as open. False: `most` batches are.
  bool enter();
  /// A batch that enter() counted is closed, or was never open.
  void leave();
  /// Stores a batch whose id was reserved. From now on callers may use the id.
  void keep(std::unique_ptr<OpenBatch> batch);
  /// Stores a batch that is done and released already. Returns its event.
  Event keep_done(std::unique_ptr<OpenBatch> batch);

  /// The results of a batch that is done, one for each request; empty before.
  std::span<const RequestResult> results(BatchId id) const;
  /// False: the batch is done, unknown, or cancelled already.
  bool cancel(BatchId id);
  /// Removes the batch when it is released. Waits for the release until the deadline; TimePoint{} = no wait.
  Result<void> close(BatchId id, TimePoint deadline);

  /// Called by the loop: every request of the batch has its result, and `released` says whether none of its slices
  /// exists. Returns the event for the caller: batch_done the first time, then batch_released once. The caller may free
  /// a released batch at once.
  std::optional<Event> report(OpenBatch& batch, bool released);

 private:
  Event done_event(const OpenBatch& batch, bool released) const;

  const size_t most_;
  Tally& tally_;
  std::atomic<uint64_t> last_{0};
  std::atomic<size_t> open_{0};
  std::atomic<OpenBatch*> spare_{nullptr};  // owned; close() keeps it for the next make()
  mutable std::mutex mutex_;
  std::condition_variable changed_;  // signalled when a batch is done or released
  std::map<BatchId, std::unique_ptr<OpenBatch>> batches_;
};

}  // namespace mc::xfer
