// What waits for the lanes of one route (one transport to one peer): requests that are not wholly cut, and slices that
// wait for another attempt, by class. Slices are cut when a lane has room for them, so a slow lane simply takes fewer.
// Not thread-safe: it belongs to the thread that has the loop's turn.
#pragma once

#include <algorithm>
#include <array>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "xfer/class_order.h"
#include "xfer/slice_table.h"

namespace mc::xfer {

/// Bounds of a slice, Options::slice_bytes_min and slice_bytes_max.
struct SliceSizes {
  uint64_t least = 0;
  uint64_t most = 0;
};

/// Limits of the slices that a lane takes in its turn.
struct LaneOffer {
  size_t lane_count = 1;  // of the route
  uint64_t wanted = 0;    // bytes of a slice at most
  size_t tells = 0;       // immediates that the lane takes
  TimePoint now{};
};

class RouteQueue {
 public:
  RouteQueue(SliceTable& slices, SliceSizes sizes) : slices_(&slices), sizes_(sizes) {}

  bool idle() const {
    return std::all_of(classes_.begin(), classes_.end(), [](const PerClass& each) { return each.empty(); });
  }
  void push(const QueuedRequest& request) { of(request.asked().transfer_class).requests.push_back(request); }
  /// A slice that is to be posted later.
  void put_back(uint32_t slice, bool first);

  /// The next slice to post on a lane: of the class whose turn it is, one with an immediate and one without in turn;
  /// one that failed before, else a fresh cut. None: nothing waits that the lane takes.
  std::optional<uint32_t> next(const LaneOffer& offer);
  /// The state of the turns, so that slices that no lane took can be undone.
  struct Turn {
    TimePoint bulk_since{};
    std::array<bool, kTransferClasses> told{};
  };
  Turn turn() const;
  /// Of the slices that next() gave since `turn`, a lane took the first `taken`; the others wait again.
  void taken(const Turn& turn, std::span<const uint32_t> given, size_t taken, TimePoint now);

  /// The slice does not wait any more.
  void erase(uint32_t slice);
  /// No request of the batch waits any more.
  void drop(const OpenBatch& batch);
  struct Content {
    std::vector<QueuedRequest> requests;
    std::vector<uint32_t> slices;
  };
  /// Empties the queue.
  Content take_all();

 private:
  /// Requests and slices that carry an immediate wait apart: not every lane takes them, and no lane does without
  /// credit of the peer. They must not keep others from the lanes that are free.
  struct PerClass {
    std::deque<QueuedRequest> requests;  // not wholly cut
    std::deque<uint32_t> retries;        // slices
    std::deque<QueuedRequest> telling;
    std::deque<uint32_t> retelling;
    bool told = false;  // the last slice that a lane took carried an immediate
    /// For a lane that takes immediates now, or does not.
    bool ready(bool tells) const {
      return !requests.empty() || !retries.empty() || (tells && !(telling.empty() && retelling.empty()));
    }
    /// Immediates and others alternate: a lane that takes fewer than it is offered would else never get to those
    /// behind.
    bool tells_next(bool tells) const {
      return tells && !(telling.empty() && retelling.empty()) && !(told && ready(false));
    }
    bool empty() const { return !ready(true); }
  };

  PerClass& of(TransferClass which) { return classes_[static_cast<size_t>(which)]; }
  uint64_t most_bytes(uint64_t wanted) const;
  uint64_t cut_bytes(const QueuedRequest& request, const LaneOffer& offer) const;
  bool next_cut_tells(const QueuedRequest& request, const LaneOffer& offer) const;
  bool nothing_to_cut(const QueuedRequest& request, const LaneOffer& offer) const;
  void sort_out(const LaneOffer& offer);

  SliceTable* slices_;
  SliceSizes sizes_;
  std::array<PerClass, kTransferClasses> classes_;
  ClassOrder order_;
};

}  // namespace mc::xfer
