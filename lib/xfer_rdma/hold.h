// WRITEs that failed on a path and may be tried elsewhere (internal, pure). This side's queue pair has released them,
// but packets may still be under way, and the peer's queue pair would accept them. They could damage a WRITE that was
// repeated in the meantime, or a target that has a new owner. So each WRITE waits until the peer's queue pair of that
// attempt is known to be gone, at most kMax, which no packet outlives. READs need no such wait, because their late
// answers find no queue pair here.
//
// A WRITE with an immediate also waits until the peer has reported how many immediates arrived on that attempt. A queue
// pair executes in order, so the ordinal of the WRITE's immediate shows whether the peer got it.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "base/assert.h"
#include "xfer/transport.h"

namespace mc::xfer {

class RdmaHold {
 public:
  static constexpr Duration kMax = 500ms;

  /// The peer's end of every attempt up to this epoch accepts nothing any more.
  void gone(uint32_t epoch) { gone_ = std::max(gone_, epoch); }
  bool must_wait(uint32_t epoch) const { return epoch > gone_; }
  /// The last report about the immediates of that attempt. not `sure`: more may have arrived.
  void landed(uint32_t epoch, uint64_t count, bool sure) {
    if (epoch < landed_.epoch) return;
    landed_ = {epoch, count, sure};
    gone(epoch);
  }
  /// `immediate`: ordinal in that attempt; 0 = none was posted.
  void keep(SliceDone done, uint32_t epoch, TimePoint now, uint64_t immediate = 0) {
    MC_ASSERT_LE(landed_.epoch, epoch);
    kept_.push_back({std::move(done), epoch, immediate == 0 ? now + kMax : kNever, immediate});
  }
  /// The slice was cancelled. False: the slice is not here.
  bool drop(uint64_t slice) {
    return std::erase_if(kept_, [&](const Kept& kept) { return kept.done.slice == slice; }) > 0;
  }
  /// Moves the slices whose wait is over to `out`, in order of arrival.
  void take(TimePoint now, std::vector<SliceDone>& out) {
    std::erase_if(kept_, [&](Kept& kept) {
      if (kept.immediate > 0 ? kept.epoch > landed_.epoch : must_wait(kept.epoch) && kept.until > now) return false;
      if (kept.immediate > 0 && kept.epoch == landed_.epoch && landed_.sure) {
        kept.done.unseen = kept.immediate > landed_.count;
        // The WRITE arrived, and only its acknowledgement was lost.
        if (!kept.done.unseen) kept.done = {.slice = kept.done.slice};
      }
      out.push_back(std::move(kept.done));
      return true;
    });
  }
  /// The latest time at which take() has something; kNever = no slice waits.
  TimePoint due() const {
    TimePoint first = kNever;
    for (const Kept& kept : kept_) first = std::min(first, kept.until);
    return first;
  }
  bool empty() const { return kept_.empty(); }

 private:
  struct Kept {
    SliceDone done;
    uint32_t epoch = 0;
    TimePoint until{};
    uint64_t immediate = 0;
  };
  struct Landed {
    uint32_t epoch = 0;
    uint64_t count = 0;
    bool sure = false;
  };
  uint32_t gone_ = 0;
  Landed landed_;
  std::vector<Kept> kept_;
};

}  // namespace mc::xfer
