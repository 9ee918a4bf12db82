// Slices on their way: what waits on a route is offered to its lanes, and what lanes report ends a slice or sends it
// back to its route. Not thread-safe: it belongs to the thread that has the loop's turn.
#pragma once

#include <string>
#include <vector>

#include "xfer/router.h"

namespace mc::xfer {

class Dispatcher {
 public:
  Dispatcher(LoopParts& parts, RunningBatches& running, Router& router)
      : parts_(parts), running_(running), router_(router) {}

  /// One turn for every route of the peer. True when there is more to do without waiting.
  bool pump(Peer& peer);
  void on_done(const SliceDone& done);
  /// Every slice that the endpoint still had is free of it now (contract of News::Kind::lost).
  void endpoint_died(EndpointId endpoint, Code code, const std::string& text);

  /// A batch of one small request to a peer that is up and for which nothing waits is posted at once: no queue, no
  /// timer. False: it is not that plain, and nothing was done.
  bool post_alone(OpenBatch& batch);
  /// What the posted batch needs of the transport now: as Transport::look().
  TimePoint look_alone();
  /// The slice posted by post_alone() is done, without an error, and nothing else has happened: ends it. False: the
  /// batch goes the way of all others.
  bool finish_alone(OpenBatch& batch);

 private:
  static constexpr size_t kPostMax = 256;                       // slices offered to a lane in one call
  static constexpr uint64_t kPostBytesMax = uint64_t{1} << 20;  // bytes before the next lane gets its turn

  bool pump_route(Peer& peer, size_t route);
  size_t offer(Peer& peer, size_t route, const Lanes::Lane& lane, LaneOffer offer);
  Slice slice_of(uint32_t index, uint32_t snapshot) const;
  void finished(uint32_t slice, uint32_t crc);
  void failed(uint32_t slice, Code code, const std::string& text, bool unseen);

  LoopParts& parts_;
  RunningBatches& running_;
  Router& router_;
  std::vector<uint32_t> offered_;  // by offer(): the slices that the lane was asked to take
  std::vector<Slice> offers_;      // scratch of offer()
  struct Alone {
    uint32_t index = 0;
    uint64_t slice = 0;
    size_t route = 0;
  } alone_;  // of the latest post_alone()
};

}  // namespace mc::xfer
