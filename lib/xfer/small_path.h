// The short way of a batch of one small request whose peer is up with nothing waiting for it: posted at once, looked
// for on the device, reported. It uses no queue, no timer and no allocation, and no table but SmallTable. The rules are
// those of every batch: access, limit of open batches, pins, counters, checksums.
//
//   begin() --> done            the bytes were there at the first look
//           --> flying -- look() --> done
//                      -- join() --> an ordinary batch, whose slice is posted
//
// At most one batch flies. It joins the others, with its deadline, before the loop does anything else: a round, a
// command, a sleep. So only the ordinary code knows deadlines, cancellation, errors of a device, lost peers and
// retries.
//
// Not thread-safe: only the thread that has the loop's turn calls this class.
#pragma once

#include "xfer/running.h"
#include "xfer/small_table.h"

namespace mc::xfer {

class SmallPath {
 public:
  SmallPath(LoopParts& parts, RunningBatches& running, SmallTable& table)
      : parts_(parts), running_(running), table_(table) {}

  struct Begun {
    BatchId id = BatchId::none;          // none: a condition fails, and nothing was done
    TimePoint until = TimePoint::min();  // time of the loop's next round; min(): at once
  };
  /// Posts the request, which has 1 to slice_bytes_min bytes and no immediate.
  Begun begin(const Request& request, TimePoint deadline, uint64_t cookie);
  bool flying() const { return flying_.id != BatchId::none; }
  /// Looks for the completion of the batch that flies. A batch that flies for long joins the others.
  void look();
  /// Makes an ordinary batch of the one that flies. False: none flies.
  bool join();
  /// Peers, descriptors or connections change now.
  void forget() { known_ = {}; }

 private:
  static constexpr int kLooksMax = 256;      // of one batch: far longer than a round trip
  static constexpr uint64_t kWideLook = 16;  // every so many batches, the completions of all paths are taken

  /// The lane for a peer's buffer.
  struct Target {
    PeerId peer = PeerId::none;
    uint32_t buffer = 0;
    uint64_t length = 0;                 // of the buffer
    bool reads = false, writes = false;  // what judge() allows
    size_t route = 0;
    uint32_t snapshot = 0;  // version of the descriptor that has the buffer
    Lanes::Lane lane;
  };
  bool targets(const Request& request);
  bool find_target(const Request& request);
  bool ended(const Request& request, TimePoint& until);

  struct Flying {
    BatchId id = BatchId::none;
    uint64_t cookie = 0;
    TimePoint deadline{};
    uint64_t slice = 0;
    int looks = 0;
  };
  LoopParts& parts_;
  RunningBatches& running_;
  SmallTable& table_;
  Access::Known local_;  // the buffer of the latest request; pinned while a batch flies
  Target known_;         // of the latest request; its lane and route are those of the batch that flies
  Flying flying_;
  Request request_;  // of the batch that flies
  uint64_t begun_ = 0;
};

}  // namespace mc::xfer
