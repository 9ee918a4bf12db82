// The work that waits for the lanes of one route (one transport to one peer), by class: requests that are not wholly
// cut, and slices that wait for another attempt. A slice is cut when a lane has room for it, so a slow lane takes fewer
// slices. Not thread-safe: only the thread that has the loop's turn calls this class.
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

/// The limits of a lane in its turn.
struct LaneOffer {
  size_t lane_count = 1;  // number of lanes of the route
  uint64_t wanted = 0;    // upper bound of the bytes of a slice
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
  /// Queues a slice that is to be posted later.
  void put_back(uint32_t slice, bool first);

  /// The next slice for a lane. It belongs to the class whose turn it is. Slices with and without an immediate
  /// alternate, and a slice that failed before goes ahead of a fresh cut. None: no waiting slice suits the lane.
  std::optional<uint32_t> next(const LaneOffer& offer);
  /// The state of the turns, for undoing slices that no lane took.
  struct Turn {
    TimePoint bulk_since{};
    std::array<bool, kTransferClasses> told{};
  };
  Turn turn() const;
  /// Ends an offer: of the slices that next() gave since `turn`, a lane took the first `taken`. The others wait again.
  void taken(const Turn& turn, std::span<const uint32_t> given, size_t taken, TimePoint now);

  /// Removes a waiting slice.
  void erase(uint32_t slice);
  /// Removes all requests of the batch.
  void drop(const OpenBatch& batch);
  struct Content {
    std::vector<QueuedRequest> requests;
    std::vector<uint32_t> slices;
  };
  /// Empties the queue.
  Content take_all();

 private:
  /// Requests and slices with an immediate wait in queues of their own, because a lane takes them only while the peer
  /// has granted credit. They must not block other work from free lanes.
  struct PerClass {
    std::deque<QueuedRequest> requests;  // requests that are not wholly cut
    std::deque<uint32_t> retries;        // indexes of slices
    std::deque<QueuedRequest> telling;
    std::deque<uint32_t> retelling;
    bool told = false;  // the last slice that a lane took carried an immediate
    /// Whether work waits that suits a lane which takes immediates now (or not).
    bool ready(bool tells) const {
      return !requests.empty() || !retries.empty() || (tells && !(telling.empty() && retelling.empty()));
    }
    /// Whether an immediate is next. They alternate with other slices, because a lane that takes only a part of its
    /// offer would otherwise never reach the later ones.
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
