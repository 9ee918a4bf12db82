// The short way of one small slice on a path that is idle (internal): Transport::post_alone() and end_alone(). It posts
// one request without a plan, reads no clock, and takes one completion. Whatever is not as usual is left to RdmaPoster
// and RdmaPaths: a path that is busy, limited or not up, keys that are missing, a slice in two chunks, any other
// completion. The slice is posted work of its lane like any other, so its failure is handled like that of any other.
// A slice that stays posted after that gets its timers in keep().
//
// Not thread-safe: only the thread that has the loop's turn calls this class.
#pragma once

#include "xfer_rdma/paths.h"

namespace mc::xfer {

class RdmaSmall {
 public:
  RdmaSmall(RdmaParts& parts, RdmaPaths& paths) : parts_(parts), paths_(paths) {}

  /// Posts the slice. False: nothing was done, and RdmaPoster must decide.
  bool post(RdmaEndpoint& endpoint, int lane, const Slice& slice);
  /// Whether the latest call of post() posted that slice, and it has not ended.
  bool has(uint64_t slice) const { return rail_ != nullptr && slice_ == slice; }
  /// Takes the completion of that slice. False: it has not come, or something else has. `changed`: see
  /// RdmaPaths::poll().
  bool end(uint32_t& crc, bool& changed, Reports& out);
  /// The slice, if any, stays posted.
  void keep();

 private:
  RdmaParts& parts_;
  RdmaPaths& paths_;
  RdmaMemory::Known local_;  // the registration of the latest slice's memory
  // of the slice that is posted and has not ended; rail_ null: there is none
  uint64_t slice_ = 0;
  RdmaEndpoint* endpoint_ = nullptr;
  RdmaRail* rail_ = nullptr;
  size_t lane_ = 0;
};

}  // namespace mc::xfer
