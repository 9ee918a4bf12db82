// The batches that callers have submitted and not closed. Any thread may call it: callers submit, ask and close, and
// the loop reports what has ended.
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
  /// `most`: batches that may be open.
  BatchTable(size_t most, Tally& tally) : most_(most), tally_(tally) {}
  ~BatchTable() { delete spare_.load(); }
  BatchTable(const BatchTable&) = delete;
  BatchTable& operator=(const BatchTable&) = delete;

  /// An empty batch, owned by the caller until keep().
  std::unique_ptr<OpenBatch> make();
  /// The number of a batch that is about to be kept; BatchId::none: `most` are open.
  BatchId reserve();
  /// The batch's id was reserved. From now on callers may ask for it.
  void keep(std::unique_ptr<OpenBatch> batch);
  /// The same for a batch that is done and released already; its event.
  Event keep_done(std::unique_ptr<OpenBatch> batch);

  /// Results by request of a batch that is done; empty before.
  std::span<const RequestResult> results(BatchId id) const;
  /// False: there is nothing to cancel, because the batch is done, is unknown, or was cancelled before.
  bool cancel(BatchId id);
  /// Forgets the batch when it is released; waits for that until the deadline, TimePoint{} = not at all.
  Result<void> close(BatchId id, TimePoint deadline);

  /// The loop: every request of the batch has its result, and `released` says whether no slice of it exists. Returns
  /// the event that callers must see: batch_done the first time, then batch_released once. As soon as the batch is
  /// released, its caller may free it.
  std::optional<Event> report(OpenBatch& batch, bool released);

 private:
  Event done_event(const OpenBatch& batch, bool released) const;

  const size_t most_;
  Tally& tally_;
  std::atomic<uint64_t> last_{0};
  std::atomic<size_t> open_{0};
  std::atomic<OpenBatch*> spare_{nullptr};  // owned: kept by close() for the next make()
  mutable std::mutex mutex_;
  std::condition_variable changed_;  // a batch was done or released
  std::map<BatchId, std::unique_ptr<OpenBatch>> batches_;
};

}  // namespace mc::xfer
