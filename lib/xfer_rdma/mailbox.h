// Memory for the messages of one attempt at a path (internal). Notifies travel as SENDs of the first lane, between
// slots that only this NIC may touch. A WRITE with an immediate uses up one of the receives as well.
#pragma once

#include <span>

#include "wire/rdma_frame.h"
#include "xfer_rdma/lane.h"
#include "xfer_rdma/own_pages.h"

namespace mc::xfer {

class RdmaMailbox {
 public:
  /// Posts every receive, before the peer can send.
  Result<void> open(const RdmaDevice& device, RdmaLane& lane);
  /// Sends a notify. Returns an errno, 0 = posted; ENOMEM: no room now.
  int send(RdmaLane& lane, const wire::RdmaNotify& notify);
  /// The message of the peer's SEND in a slot.
  std::span<const std::byte> message(uint32_t slot, uint32_t bytes) const;
  /// Posts the receive of that slot again. Returns an errno, 0 = posted.
  int give_back(RdmaLane& lane, uint32_t slot);
  /// Counts a completed receive, successful or not.
  void completed();
  /// Whether no receive is posted.
  bool idle() const { return receives_ == 0; }

 private:
  std::byte* slot(size_t index) const;

  OwnPages pages_;  // slots to receive into, then slots to send from; declared before the region, so destroyed after it
  Verbs<ibv_mr> region_;
  size_t receives_ = 0;  // number of posted receives
};

}  // namespace mc::xfer
