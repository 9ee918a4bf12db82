#include "xfer/batch_table.h"

#include <utility>

#include "base/assert.h"

namespace mc::xfer {

void OpenBatch::clear() {
  requests.clear();
  pins.clear();
  states.clear();
  results.clear();
  text.clear();
  code = Code::ok;
  slices = quarantined = unfinished = 0;
  done = released = cancelled = false;
}

std::unique_ptr<OpenBatch> BatchTable::make() {
  OpenBatch* spare = spare_.exchange(nullptr, std::memory_order_acquire);  // close() released its changes
  return spare != nullptr ? std::unique_ptr<OpenBatch>(spare) : std::make_unique<OpenBatch>();
}

bool BatchTable::enter() {
  if (open_.fetch_add(1, std::memory_order_relaxed) >= most_) {  // a count alone: the mutex publishes the batches
    open_.fetch_sub(1, std::memory_order_relaxed);
    return false;
  }
  tally_.add(Count::batches_open);
  return true;
}

void BatchTable::leave() {
  open_.fetch_sub(1, std::memory_order_relaxed);  // a count alone
  tally_.sub(Count::batches_open);
}

BatchId BatchTable::reserve() {
  return enter() ? BatchId{last_.fetch_add(1, std::memory_order_relaxed) + 1} : BatchId::none;
}

void BatchTable::keep(std::unique_ptr<OpenBatch> batch) {
  const BatchId id = batch->id;
  MC_ASSERT(id != BatchId::none);
  MC_ASSERT_EQ(batch->results.size(), batch->requests.size());
  MC_ASSERT_EQ(batch->states.size(), batch->requests.size());
  std::lock_guard lock(mutex_);
  const bool fresh = batches_.emplace(id, std::move(batch)).second;
  MC_ASSERT(fresh);
  MC_ASSERT_LE(batches_.size(), most_);
}

Event BatchTable::keep_done(std::unique_ptr<OpenBatch> batch) {
  MC_ASSERT(batch->pins.empty());
  MC_ASSERT_EQ(batch->slices, size_t{0});
  batch->done = batch->released = true;
  Event event = done_event(*batch, true);
  keep(std::move(batch));
  return event;
}

/// Counts the batch as done.
Event BatchTable::done_event(const OpenBatch& batch, bool released) const {
  MC_ASSERT_EQ(batch.unfinished, size_t{0});
  tally_.add(Count::batches_done);
  if (batch.code != Code::ok) tally_.add(Count::batches_failed);
  return {.kind = Event::Kind::batch_done,
          .batch = batch.id,
          .cookie = batch.cookie,
          .code = batch.code,
          .quarantined = !released,
          .text = batch.text};
}

std::span<const RequestResult> BatchTable::results(BatchId id) const {
  std::lock_guard lock(mutex_);
  const auto at = batches_.find(id);
  if (at == batches_.end() || !at->second->done) return {};
  return at->second->results;
}

bool BatchTable::cancel(BatchId id) {
  std::lock_guard lock(mutex_);
  const auto at = batches_.find(id);
  return at != batches_.end() && !at->second->done && !std::exchange(at->second->cancelled, true);
}

Result<void> BatchTable::close(BatchId id, TimePoint deadline) {
  std::unique_ptr<OpenBatch> closed;
  {
    std::unique_lock lock(mutex_);
    const auto at = batches_.find(id);
    if (at == batches_.end())
      return Error{Code::not_found, "xfer: close: there is no batch " + std::to_string(static_cast<uint64_t>(id))};
    const OpenBatch& open = *at->second;
    const auto refuse = [&](Code code) {
      return Error{code, open.done
                             ? "xfer: close: a transport may still touch the batch's memory; wait for batch_released"
                             : "xfer: close: the batch is still running; cancel it, or wait for batch_done"};
    };
    const auto released = [&] { return open.released; };
    if (!open.released && deadline == TimePoint{}) return refuse(Code::busy);
    if (deadline == kNever)
      changed_.wait(lock, released);
    else if (!changed_.wait_until(lock, deadline, released))
      return refuse(Code::timeout);
    closed = std::move(at->second);
    batches_.erase(at);
  }
  MC_ASSERT(closed->done);
  MC_ASSERT_EQ(closed->slices, size_t{0});
  MC_ASSERT(closed->pins.empty());
  // One small batch is kept, so that a caller that transfers piece after piece allocates nothing.
  constexpr size_t kRequestsKept = 64;
  if (closed->requests.capacity() <= kRequestsKept) {
    closed->clear();
    OpenBatch* none = nullptr;
    if (spare_.compare_exchange_strong(none, closed.get(), std::memory_order_release, std::memory_order_relaxed))
      (void)closed.release();
  }
  leave();
  return {};
}

std::optional<Event> BatchTable::report(OpenBatch& batch, bool released) {
  MC_ASSERT_EQ(batch.unfinished, size_t{0});
  MC_ASSERT(!released || (batch.slices == 0 && batch.quarantined == 0));
  Event event{.kind = Event::Kind::batch_released, .batch = batch.id, .cookie = batch.cookie};
  {
    std::lock_guard lock(mutex_);
    if (batch.done && (!released || batch.released)) return std::nullopt;
    if (!batch.done) event = done_event(batch, released);
    batch.done = true;  // set before the event, because a reader of the event may ask for results and close at once
    batch.released = released;
  }
  changed_.notify_all();
  return event;
}

}  // namespace mc::xfer
