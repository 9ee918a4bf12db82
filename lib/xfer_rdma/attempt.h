// One attempt at a path (internal): one completion queue, L lanes, the test (RdmaProbe) and the messages (RdmaMailbox).
// Every attempt makes new verbs objects, so that nothing of an earlier one (queue pair number, packet sequence, stale
// completions) can be mistaken for the present one. An attempt that is not open has no lanes.
//
// WRITEs with an immediate use the first lane. Each one uses up a receive of the peer. Both sides count them, so after
// a failure the sender learns how many have arrived (RdmaHold).
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "xfer_rdma/mailbox.h"
#include "xfer_rdma/probe.h"
#include "xfer_rdma/reaper.h"

namespace mc::xfer {

struct RdmaRail;

/// The path that completion events of a queue belong to; null once the path has closed the attempt. The queue's context
/// points here and not to the path, because the queue may outlive the path (see RdmaAttempt::close).
struct RailAnchor {
  RdmaRail* rail = nullptr;
};

class RdmaAttempt {
 public:
  /// Makes the objects. Returns their description for the peer.
  Result<wire::RdmaPathOffer> open(RdmaRail& rail, const RdmaPort& port, const RdmaProbe::Attempt& attempt,
                                   size_t lanes);
  /// The work that connects its lanes to the peer's lanes. It may block, so the connector runs it (connector.h). The
  /// attempt must not be closed in the meantime.
  using Work = std::function<Result<void>()>;
  Result<Work> connect(const RdmaPort& port, const wire::Gid& own_gid, const wire::RdmaPathOffer& peer, uint16_t mtu,
                       const Options& options);
  /// Makes later completion events find no path.
  void orphan() { anchor_->rail = nullptr; }
  /// Ends the attempt: the NIC uses no memory of it any more. Returns the slices that failed. Objects with incomplete
  /// requests are destroyed at once, which may take seconds. `reaper` destroys the others.
  std::vector<RdmaLane::Failed> close(RdmaReaper& reaper);

  /// Posts the test pattern on every lane.
  Result<void> start_probe() { return probe.post(lanes_, peer_); }
  Result<void> allow_writes(bool allowed);
  /// Sends a notify; see RdmaMailbox.
  int send(const wire::RdmaNotify& notify) { return mailbox_.send(*lanes_[0], notify); }
  std::span<const std::byte> message(uint32_t slot, uint32_t bytes) const { return mailbox_.message(slot, bytes); }
  int give_back(uint32_t slot) { return mailbox_.give_back(*lanes_[0], slot); }

  /// The number of WRITEs with an immediate that the peer still has receives for.
  size_t tells_left() const;
  /// The peer has taken `count` of them in all. False: the count is impossible.
  bool landed(uint64_t count);
  struct Heard {
    uint64_t count = 0;  // immediates received from the peer
    uint64_t told = 0;   // part of `count` that the peer was told; it may post kRdmaImmediatesAhead beyond
  } heard;
  /// Every receive of a failed attempt has completed, so `heard` is final.
  bool receives_done() const { return mailbox_.idle() || !probe.posted(); }

  /// Takes completions. `failure` is the status of the first request that failed.
  struct Polled {
    size_t completions = 0;
    std::vector<Slice> ok;
    struct Message {
      uint32_t slot = 0;
      uint32_t bytes = 0;
      std::optional<uint32_t> immediate{};  // immediate of a WRITE; none for a SEND
    };
    std::vector<Message> messages;  // in order; their slots are given back
    WorkStatus failure = WorkStatus::ok;
    size_t failed_lane = 0;
  };
  void poll(Polled& out);
  /// Takes one completion. False: there is none. `slice`: that of the only request on the lane, which has succeeded;
  /// see PostedWork::complete_only(). Null: `done` is another completion, which handle() must handle.
  bool take_one(size_t lane, const Slice*& slice, ibv_wc& done) {
    if (::ibv_poll_cq(queue_.get(), 1, &done) <= 0) return false;
    slice = done.status == IBV_WC_SUCCESS ? lanes_[lane]->complete_only(done.wr_id) : nullptr;
    return true;
  }
  void handle(const ibv_wc& done, Polled& out);
  /// Requests an event for the next completion. poll() must follow. After the event, call disarmed().
  void arm();
  void disarmed() { armed_ = false; }
  bool armed() const { return armed_ || !queue_; }
  void fail_lanes();
  bool drained() const;
  size_t outstanding() const;
  uint64_t bytes() const;  // bytes in flight

  size_t lane_count() const { return lanes_.size(); }
  RdmaLane& lane(size_t index) { return *lanes_[index]; }
  const RdmaLane& lane(size_t index) const { return *lanes_[index]; }
  bool has(const ibv_qp* pair) const;
  const ibv_cq* queue() const { return queue_.get(); }
  uint16_t mtu() const { return mtu_; }

 private:
  // Destroyed in reverse order: lanes before the queue and the memory they use, all before their device.
  std::shared_ptr<RdmaDevice> device_;  // shared: a failed device is destroyed with the last of these attempts

 public:
  RdmaProbe probe;

 private:
  RdmaMailbox mailbox_;
  std::unique_ptr<RailAnchor> anchor_;
  Verbs<ibv_cq> queue_;
  std::vector<std::unique_ptr<RdmaLane>> lanes_;
  wire::RdmaPathOffer peer_;
  uint16_t mtu_ = 0;
  bool armed_ = false;
  uint64_t landed_ = 0;
};

}  // namespace mc::xfer
