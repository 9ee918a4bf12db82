// The class of the next slice (internal, pure). Urgent slices go first. Bulk work that had no turn for kPromoteAfter
// gets one turn, so a stream of urgent requests cannot stop it. A turn is one slice, so urgent work waits for at most
// one slice beside those already posted.
#pragma once

#include "base/clock.h"
#include "xfer/xfer.h"

namespace mc::xfer {

class ClassOrder {
 public:
  static constexpr Duration kPromoteAfter = 10ms;

  /// The class of the next turn. At least one class must be waiting.
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
  /// Time of the last bulk turn, or since when bulk work waits; kNever while none waits.
  TimePoint bulk_since() const { return bulk_since_; }
  /// Undoes a turn whose slice no lane took.
  void restore(TimePoint bulk_since) { bulk_since_ = bulk_since; }

 private:
  TimePoint bulk_since_ = kNever;
};

}  // namespace mc::xfer
