// Slices on their way: waiting slices of a route are offered to its lanes, and the reports of lanes end a slice or
// return it to its route. Not thread-safe: only the thread that has the loop's turn calls this class.
#pragma once

#include <string>
#include <vector>

#include "xfer/router.h"

namespace mc::xfer {

class Dispatcher {
 public:
  Dispatcher(LoopParts& parts, RunningBatches& running, Router& router)
      : parts_(parts), running_(running), router_(router) {}

  /// Gives every route of the peer one turn. True when more can be done without waiting.
  bool pump(Peer& peer);
  void on_done(const SliceDone& done);
  /// Ends or retries every slice of an endpoint that is lost (contract of EndpointEvent::Kind::lost).
  void endpoint_died(EndpointId endpoint, Code code, const std::string& text);

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
  std::vector<uint32_t> offered_;  // slices that offer() offered to the lane
  std::vector<Slice> offers_;      // scratch memory of offer()
};

}  // namespace mc::xfer
