// Which class of slices goes next (internal, pure): urgent ones always, except that bulk work which had
// no turn for kPromoteAfter gets one, so that a stream of urgent requests cannot stop it (papers: RDMA
// notes, A6). A turn is one slice: urgent work waits for at most that, beside what is already posted.
#pragma once

#include "base/clock.h"
#include "xfer/xfer.h"

namespace mc::xfer {

class ClassOrder {
 public:
  static constexpr Duration kPromoteAfter = 10ms;

  /// The class whose turn it is, of those that wait; at least one does.
  TransferClass next(bool urgent_waits, bool bulk_waits, TimePoint now) {
    if (!bulk_waits) {
      bulk_since_ = kNever;
      return TransferClass::urgent;
    }
    if (bulk_since_ == kNever) bulk_since_ = now;
    if (urgent_waits && now - bulk_since_ < kPromoteAfter) return TransferClass::urgent;
    bulk_since_ = now;
    return TransferClass::bulk;
  }
  /// When bulk work last had a turn, or began to wait; kNever while none waits.
  TimePoint bulk_since() const { return bulk_since_; }
  /// No lane took the slice of the turn: it was none.
  void restore(TimePoint bulk_since) { bulk_since_ = bulk_since; }

 private:
  TimePoint bulk_since_ = kNever;
};

}  // namespace mc::xfer
