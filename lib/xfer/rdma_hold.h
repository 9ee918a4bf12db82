// WRITEs that failed on a path and may be tried elsewhere (internal, pure). Our end of the path has let
// go of them, but packets of it may still be under way, and the peer's queue pair would take them: a WRITE
// that was done again meanwhile, or whose target has been given away, would be damaged. So each waits until
// the peer's end of that attempt is known to be gone, at most kMax, which no packet outlives (A8, A9).
// READs need no such wait: their late answers find no queue pair here.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "xfer/transport.h"

namespace mc::xfer {

class RdmaHold {
 public:
  static constexpr Duration kMax = 500ms;

  /// The peer's end of every attempt up to this epoch takes nothing any more.
  void gone(uint32_t epoch) { gone_ = std::max(gone_, epoch); }
  bool must_wait(uint32_t epoch) const { return epoch > gone_; }
  void keep(SliceDone done, uint32_t epoch, TimePoint now) { kept_.push_back({std::move(done), epoch, now + kMax}); }
  /// Nobody wants it any more. False: it is not here.
  bool drop(uint64_t slice) {
    return std::erase_if(kept_, [&](const Kept& kept) { return kept.done.slice == slice; }) > 0;
  }
  /// Moves those whose wait is over to `out`, in the order they came.
  void take(TimePoint now, std::vector<SliceDone>& out) {
    std::erase_if(kept_, [&](Kept& kept) {
      if (must_wait(kept.epoch) && kept.until > now) return false;
      out.push_back(std::move(kept.done));
      return true;
    });
  }
  /// When take() has something at the latest; kNever = nothing waits.
  TimePoint due() const { return kept_.empty() ? kNever : kept_.front().until; }
  bool empty() const { return kept_.empty(); }

 private:
  struct Kept {
    SliceDone done;
    uint32_t epoch = 0;
    TimePoint until{};
  };
  uint32_t gone_ = 0;
  std::vector<Kept> kept_;
};

}  // namespace mc::xfer
