// One lane (internal): a reliable connected queue pair and the requests posted on it. Requests are posted in chains
// with one doorbell, as long as the speed of the path warrants. Every 16th request and the last of a chain are
// signalled. On a shallow path the middle of a chain is signalled too, so that the path does not run dry before its
// room is noticed. Which slices the posted requests carry, and when they end: xfer_rdma/posted_work.h.
#pragma once

#include <string>

#include "xfer_rdma/path.h"
#include "xfer_rdma/posted_work.h"
#include "xfer_rdma/verbs.h"

namespace mc::xfer {

struct LaneConnect {
  wire::RdmaLaneAddress peer;
  uint16_t mtu = 1024;
  uint8_t port = 1;
  uint8_t gid_index = 0;
  wire::Gid peer_gid{};
  uint16_t peer_lid = 0;
  bool global = true;     // the address is a GID (always on Ethernet)
  uint8_t reads_in = 1;   // RDMA READs that the peer may have outstanding here
  uint8_t reads_out = 1;  // RDMA READs that may be outstanding at the peer
  const Options* options = nullptr;
};

class RdmaLane {
 public:
  static constexpr uint32_t kDepth = 256;  // size of the send queue for slices
  static constexpr uint32_t kMessages = wire::kRdmaNotifiesAhead;
  static constexpr uint32_t kReceives = kMessages + wire::kRdmaImmediatesAhead;  // a message of either kind takes one
  static constexpr uint32_t kSignalEvery = 16;
  static constexpr uint64_t kSignalBytesMin = uint64_t{64} << 10;
  static constexpr uint32_t kInlineMax = 220;
  static constexpr uint32_t kGatherMax = 16;
  static constexpr uint64_t kGatherBytesMax = uint64_t{256} << 10;
  /// Limit of the bytes in flight on a lane. It suffices for 400 Gb/s and a round trip of 20 us. A larger limit would
  /// make a slow path hold work that a fast one could take.
  static constexpr uint64_t kWindowBytes = uint64_t{1} << 20;

  /// Creates the queue pair, ready to be connected. The wr_id of completions contains `index`.
  static Result<std::unique_ptr<RdmaLane>> open(const RdmaDevice& device, ibv_cq* queue, uint8_t port, uint8_t index);
  /// Posts a receive for the message of a SEND, or for a WRITE with an immediate. The wr_id contains `slot`. At most
  /// kReceives may be posted. Returns an errno, 0 = posted.
  int post_receive(uint32_t slot, const LocalPiece& place);
  Result<void> connect(const LaneConnect& to);
  /// Sets whether the peer may WRITE here at all. The keys decide where.
  Result<void> allow_writes(bool allowed);

  wire::RdmaLaneAddress address() const { return {pair_->qp_num, psn_}; }
  ibv_qp* pair() const { return pair_.get(); }
  static uint8_t lane_of(uint64_t wr_id) { return static_cast<uint8_t>(wr_id >> 56 & 0x7f); }
  static bool is_receive(uint64_t wr_id) { return wr_id >> 63 != 0; }
  static uint32_t slot_of(uint64_t wr_id) { return static_cast<uint32_t>(wr_id); }

  size_t room(std::span<const Slice> slices, uint64_t window) const { return work_.room(slices, window); }
  uint64_t bytes() const { return work_.bytes(); }
  /// Posts slices from the front. `shallow`: little else is in flight meanwhile. `burst`: bytes of one doorbell; a
  /// single larger slice is allowed. `error`: errno of the queue pair; the caller must then fail the lane.
  struct Posted {
    size_t taken = 0;
    int error = 0;
  };
  Posted post(std::span<const PlanItem> items, bool shallow, uint64_t burst);
  /// Posts a slice without an immediate as one signalled request. Returns an errno, 0 = posted.
  int post_slice(const Slice& slice, const SingleWork& work);
  /// Posts a signalled request without a slice. Returns an errno, 0 = posted.
  int post_probe(Op op, const LocalPiece& local, uint64_t remote, uint32_t key);
  /// Number of WRITEs with an immediate posted so far: the ordinal of the latest.
  uint64_t immediates() const { return work_.immediates(); }
  /// Posts a signalled SEND. `message` must not change until the peer has it. ENOMEM: no room now.
  int post_send(const LocalPiece& message);

  /// Retires the requests that a completion ends. Appends slices that succeeded to `ok`.
  void complete(uint64_t wr_id, WorkStatus status, std::vector<Slice>& ok);
  /// Retires the request of a completion that succeeded; see PostedWork::complete_only().
  const Slice* complete_only(uint64_t wr_id) {
    return wr_id >> 56 == index_ ? work_.complete_only(wr_id & kSequenceMask) : nullptr;
  }
  /// Moves the queue pair to the error state, in which every posted request completes.
  void fail();
  bool drained() const { return work_.drained(); }
  size_t outstanding() const { return work_.slices(); }
  bool holds(uint64_t slice) const { return work_.holds(slice); }

  using Failed = PostedWork::Failed;
  /// The slices that did not succeed, once the lane is drained or the queue pair is gone.
  std::vector<Failed> take_failed() { return work_.take_failed(); }

 private:
  static constexpr uint64_t kSequenceMask = (uint64_t{1} << 56) - 1;
  int post_one(ibv_send_wr& request, const LocalPiece& local);
  bool signal_next(bool last, uint64_t bytes, uint64_t bytes_most);
  void link(size_t count, bool shallow);
  size_t ring(size_t count, uint64_t burst, int& error);

  Verbs<ibv_qp> pair_;
  uint8_t index_ = 0;
  uint32_t psn_ = 0;
  uint32_t inline_max_ = 0;
  uint32_t gather_max_ = 1;
  PostedWork work_;
  uint32_t unsignalled_ = 0;
  uint64_t unsignalled_bytes_ = 0;
  // Scratch memory of post().
  WorkPlan plan_;
  std::vector<ibv_send_wr> requests_;
  std::vector<ibv_sge> pieces_;
};

WorkStatus work_status(ibv_wc_status status);

}  // namespace mc::xfer
