// One lane (internal): a reliable connected queue pair and what is posted on it. Requests go out in
// chains with one doorbell, as long as the path's speed warrants; every 16th and the last of a chain are signalled, and
// the middle of a chain on a shallow path, which would run dry before we learn that it has room again. A completion
// retires all requests before it, because a queue pair completes in order. After an error every request that was posted
// completes (flushed), which is how we know that the NIC has let go of its memory: slices that failed are handed back
// only when the lane is drained.
#pragma once

#include <string>

#include "xfer/fifo.h"
#include "xfer_rdma/path.h"
#include "xfer_rdma/verbs.h"

namespace mc::xfer {

struct LaneConnect {
  wire::RdmaLaneAddress peer;
  uint16_t mtu = 1024;  // bytes
  uint8_t port = 1;
  uint8_t gid_index = 0;
  wire::Gid peer_gid{};
  uint16_t peer_lid = 0;
  bool global = true;     // the address is a GID (always on Ethernet)
  uint8_t reads_in = 1;   // RDMA READs the peer may have outstanding here
  uint8_t reads_out = 1;  // and we there
  const Options* options = nullptr;
};

class RdmaLane {
 public:
  static constexpr uint32_t kDepth = 256;  // of the send queue, for slices
  static constexpr uint32_t kMessages = wire::kRdmaNotifiesAhead;
  static constexpr uint32_t kReceives = kMessages + wire::kRdmaImmediatesAhead;  // each takes one of either
  static constexpr uint32_t kSignalEvery = 16;
  static constexpr uint64_t kSignalBytesMin = uint64_t{64} << 10;
  static constexpr uint32_t kInlineMax = 220;
  static constexpr uint32_t kGatherMax = 16;
  static constexpr uint64_t kGatherBytesMax = uint64_t{256} << 10;
  /// In flight on a lane: enough for 400 Gb/s and a round trip of 20 us; more would only make a slow
  /// path hold work that a fast one could take.
  static constexpr uint64_t kWindowBytes = uint64_t{1} << 20;

  /// Creates the queue pair, ready to be connected. `index` comes back in the wr_id of completions.
  static Result<std::unique_ptr<RdmaLane>> open(const RdmaDevice& device, ibv_cq* queue, uint8_t port, uint8_t index);
  /// Posts a receive, for the message of a SEND or used up by a WRITE with an immediate; `slot` comes back in the
  /// wr_id. At most kReceives are posted.
  /// errno, 0 = posted.
  int post_receive(uint32_t slot, const LocalPiece& place);
  Result<void> connect(const LaneConnect& to);
  /// Whether the peer may WRITE here at all; the keys decide where.
  Result<void> allow_writes(bool allowed);

  wire::RdmaLaneAddress address() const { return {pair_->qp_num, psn_}; }
  ibv_qp* pair() const { return pair_.get(); }
  static uint8_t lane_of(uint64_t wr_id) { return static_cast<uint8_t>(wr_id >> 56 & 0x7f); }
  static bool is_receive(uint64_t wr_id) { return wr_id >> 63 != 0; }
  static uint32_t slot_of(uint64_t wr_id) { return static_cast<uint32_t>(wr_id); }

  /// How many of these slices have room now: two at least, and more up to `window` bytes in flight.
  size_t room(std::span<const Slice> slices, uint64_t window) const;
  uint64_t bytes() const { return bytes_; }
  /// Posts from the front. `shallow`: little else is in flight while these are. `burst`: bytes of one doorbell, unless
  /// one slice has more. `error`: errno of the queue pair; the lane must then be failed.
  struct Posted {
    size_t taken = 0;
    int error = 0;
  };
  Posted post(std::span<const PlanItem> items, bool shallow, uint64_t burst);
  /// A request of no slice, signalled. errno, 0 = posted.
  int post_probe(Op op, const LocalPiece& local, uint64_t remote, uint32_t key);
  /// WRITEs with an immediate posted so far: the ordinal of the latest.
  uint64_t immediates() const { return immediates_; }
  /// A SEND, signalled; `message` stays as it is until the peer has it. ENOMEM: no room now.
  int post_send(const LocalPiece& message);

  /// Retires what a completion ends. Slices that succeeded are appended to `ok`.
  void complete(uint64_t wr_id, WorkStatus status, std::vector<Slice>& ok);
  /// Moves the queue pair to the error state: everything posted completes.
  void fail();
  bool drained() const { return retired_ == posted_; }
  size_t outstanding() const { return pending_.size(); }
  bool holds(uint64_t slice) const;

  struct Failed {
    Slice slice;
    WorkStatus status = WorkStatus::flushed;
    uint64_t immediate = 0;  // ordinal of the request that carries the slice's; 0 = it was not posted
  };
  /// The slices that did not make it, once drained (or the queue pair is gone): those whose request
  /// failed, those behind it, and those never retired.
  std::vector<Failed> take_failed();

 private:
  struct Pending {
    Slice slice;
    uint64_t last = 0;       // sequence number of its last request
    bool partial = false;    // not all of it could be posted
    uint64_t immediate = 0;  // ordinal; 0 = none, or not posted
  };

  int post_one(ibv_send_wr& request, const LocalPiece& local);
  bool post_alone(const PlanItem& item, Posted& result);
  bool signal_next(bool last, uint64_t bytes, uint64_t bytes_most);
  void link(size_t count, bool shallow);
  size_t ring(size_t count, uint64_t burst, int& error);

  Verbs<ibv_qp> pair_;
  uint8_t index_ = 0;
  uint32_t psn_ = 0;
  uint32_t inline_max_ = 0;
  uint32_t gather_max_ = 1;
  uint64_t posted_ = 0;  // sequence numbers: requests posted, and retired
  uint64_t retired_ = 0;
  uint64_t immediates_ = 0;
  uint32_t unsignalled_ = 0;
  uint64_t unsignalled_bytes_ = 0;
  uint64_t bytes_ = 0;  // of pending slices
  Fifo<Pending> pending_;
  std::vector<Failed> failed_;
  // scratch of post()
  WorkPlan plan_;
  std::vector<ibv_send_wr> requests_;
  std::vector<ibv_sge> pieces_;
};

WorkStatus work_status(ibv_wc_status status);

}  // namespace mc::xfer
