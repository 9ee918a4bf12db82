// The small batches that are done and not closed. A small batch has one request of at most slice_bytes_min bytes, and
// small_path.h ended it before any other work of the loop. It never is in the BatchTable: its result lies in one of a
// few slots, so that its life costs no allocation, no lock and no search.
//
//   free -> flying -> done -> free        SmallPath opens and ends, a caller closes
//           flying -> free                SmallPath gives the batch, with its id, to the BatchTable
//
// Only the thread that has the loop's turn moves a slot that is free or flying. Any thread may call results() and
// close(), which concern slots that are done.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <span>

#include "xfer/xfer.h"

namespace mc::xfer {

class SmallTable {
 public:
  static constexpr size_t kSlots = 64;

  /// Whether the batch began as a small one.
  static bool is_small(BatchId id) { return (static_cast<uint64_t>(id) & kMark) != 0; }

  // ---- callers ----
  /// The result of a batch that is done; empty: no such batch is done here.
  std::span<const RequestResult> results(BatchId id) const {
    const Slot& slot = slot_of(id);
    // acquire: pairs with finish(), which wrote the result
    if (slot.state.load(std::memory_order_acquire) != static_cast<uint64_t>(id)) return {};
    return {&slot.result, 1};
  }
  /// Frees the slot of a batch that is done. False: no such batch is done here.
  bool close(BatchId id) {
    auto expected = static_cast<uint64_t>(id);
    // release: pairs with open(), after which the result of this batch must not be read any more
    return slot_of(id).state.compare_exchange_strong(expected, kFree, std::memory_order_acq_rel,
                                                     std::memory_order_relaxed);
  }

  // ---- the loop ----
  /// Takes a free slot for a new batch, which flies. BatchId::none: the next slots are all in use.
  BatchId open() {
    for (int tries = 0; tries < kTries; ++tries) {
      const uint64_t number = ++last_;
      std::atomic<uint64_t>& state = slots_[number % kSlots].state;
      // acquire: pairs with close()
      if (state.load(std::memory_order_acquire) != kFree) continue;
      state.store(kFlying, std::memory_order_relaxed);  // callers do not use slots that fly
      return BatchId{kMark | number};
    }
    return BatchId::none;
  }
  /// The batch is done. From now on callers may read its result and close it.
  void finish(BatchId id, const RequestResult& result) {
    Slot& slot = slot_of(id);
    slot.result = result;
    // release: pairs with results() and close()
    slot.state.store(static_cast<uint64_t>(id), std::memory_order_release);
  }
  /// The batch did not fly, or the BatchTable has it.
  void drop(BatchId id) { slot_of(id).state.store(kFree, std::memory_order_relaxed); }

 private:
  static constexpr uint64_t kMark = uint64_t{1} << 63;  // no id of the BatchTable has it
  static constexpr uint64_t kFree = 0, kFlying = 1;     // else: the id of the batch that is done
  static constexpr int kTries = 4;

  struct Slot {
    std::atomic<uint64_t> state{kFree};
    RequestResult result;
  };
  Slot& slot_of(BatchId id) { return slots_[static_cast<uint64_t>(id) % kSlots]; }
  const Slot& slot_of(BatchId id) const { return slots_[static_cast<uint64_t>(id) % kSlots]; }

  std::array<Slot, kSlots> slots_;
  uint64_t last_ = 0;  // number of the latest batch
};

}  // namespace mc::xfer
